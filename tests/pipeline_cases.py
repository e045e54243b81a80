"""Pipelines for tests: a study file, and run directories as its stages write them."""

from __future__ import annotations

import math
from pathlib import Path

from scalewright.records.documents import document
from scalewright.records.reasoning import (
    Accuracy,
    CollectiveUse,
    CurvePoint,
    MeasuredWork,
    Mismatch,
    Rate,
    RolloutLine,
    StageRecord,
    StepSplitShares,
    append_row,
    curve_writer,
    rollout_writer,
    write_stage,
)
from scalewright.records.run_directory import ExitInfo, RunDirectory

Z95 = 1.959964
STUDY = """
schema = "scalewright.study/1"
id = "mine"
title = "A small pipeline"
question = "Does accuracy rise from stage to stage?"
kind = "reason"

[pipeline]
seeds = [0]

[pipeline.options]
model = "layers=1,hidden=32,heads=2,seq=64,vocab=128"

[pipeline.profiles.cpu]
text = "two cores"
options = { device = "cpu", layout = "dp=1,mbs=8,gbs=16" }

[pipeline.profiles.ranks]
options = { device = "cpu", layout = "dp=2,mbs=8,gbs=16" }

[[pipeline.stages]]
name = "sft"
stage = "sft"
options = { steps = 200 }
takes = { cpu = "2 min", ranks = "1 min" }

[[pipeline.stages]]
name = "grpo"
stage = "grpo"
from = "sft"
options = { steps = 100, correction = "icepop" }
gate = { over = "sft", by = 0.05 }
takes = { cpu = "2 min", ranks = "1 min" }

[[pipeline.stages]]
name = "grpo-unmasked"
stage = "grpo"
from = "sft"
options = { steps = 100, correction = "none" }
takes = { cpu = "2 min", ranks = "1 min" }

[[pipeline.stages]]
name = "samples"
stage = "generate"
from = "grpo"
takes = { cpu = "1 min", ranks = "1 min" }

[[pipeline.stages]]
name = "student"
stage = "distill"
data_from = "samples"
options = { steps = 50 }
takes = { cpu = "1 min", ranks = "1 min" }
"""


def wilson(right: int, num: int) -> Rate:
    """Wilson's interval, as an evaluation writes it."""
    p, z = right / num, Z95
    middle, half = (p + z * z / (2 * num)), z * math.sqrt(p * (1 - p) / num + z * z / (4 * num * num))
    scale = 1 + z * z / num
    return Rate(value_frac=p, low_frac=(middle - half) / scale, high_frac=(middle + half) / scale)


def record(stage: str, right: int, *, num: int = 500, seed: int = 0, energy_j: float | None = None) -> StageRecord:
    """A stage that solved so many problems."""
    is_rl, trains = stage == "grpo", stage in ("sft", "grpo", "distill")
    parts = {"training": 40.0, "evaluation": 6.0, "idle": 1.0, "data": 0.5}
    if stage in ("grpo", "generate"):
        parts = {"generation": 60.0, "reward": 3.0, "evaluation": 6.0, "idle": 2.0}
        parts |= {"log_probs": 9.0, "training": 30.0, "weight_sync": 0.4} if is_rl else {}
    roofs = [MeasuredWork(name="training", flop=3e11, bytes=1.5e10, seconds=4.0)] if trains else []
    if not trains or is_rl:
        roofs += [
            MeasuredWork(name="prefill", flop=4e10, bytes=6e9, seconds=1.0),
            MeasuredWork(name="decode", flop=2e10, bytes=1.6e10, seconds=2.0),
        ]
    return StageRecord(
        stage=stage, model="tiny", num_params=360_000, num_trained_params=360_000, num_ranks=1, layout="dp=1",
        device="CPU", precision="fp32", engine_precision="fp32", seed=seed, steps=40, num_attempts=1,
        wall_s=sum(parts.values()),
        accuracy=Accuracy(num_problems=num, greedy=wilson(right, num), num_answers=4,
                          pass_at_k={1: wilson(right * 9 // 10, num), 4: wilson(min(right * 13 // 10, num), num)}),
        seconds_by_part=parts, rank_seconds_by_part=[parts], rank_gap_frac=0.0,
        split=StepSplitShares(compute_frac=0.9, communication_frac=0.05, data_wait_frac=0.01, idle_frac=0.04),
        collectives={"all_reduce": CollectiveUse(count=40, bytes=1e6, seconds=0.4)}, utilisation_frac=None,
        roofline=roofs, kv_occupancy_frac=0.62 if not trains or is_rl else None, kv_peak_frac=None, host_bytes=6e8,
        device_bytes=None, energy_j=energy_j, energy_of="" if energy_j is None else "CPUs", cost_usd=None,
        num_samples=4096, num_tokens=120_000, train_flop=1e12,
        mismatch=Mismatch(kl=2e-4, masked_frac=0.002, effective_sample_frac=0.98) if is_rl else None,
    )  # type: ignore[arg-type]  # fmt: skip


def write_finished(
    path: Path, stage: StageRecord, *, prompt: str = "3 5 7 -> 22", why: str = "step 2: 8 * 7 = 55 is wrong",
    num_steps: int = 40, falls: bool = False,
) -> RunDirectory:  # fmt: skip
    """A run directory of a stage that has ended, with a curve and answers to read."""
    run = RunDirectory.create_or_resume(path, document("reason-run", {"steps": num_steps, "stage": stage.stage}))
    write_stage(run, stage)
    curve, rollouts = curve_writer(run, first_step=0), rollout_writer(run, first_step=0)
    for step in range(num_steps):
        append_row(curve, _step(stage.stage, step, num_steps, falls=falls).row())
    for step in (0, num_steps // 2, num_steps - 1):
        for number in range(4):
            line = RolloutLine(
                step=step, problem=f"p{number}", prompt=prompt, answer="3 + 5 = 8 * 7 = 56 ; 3 * 5 = 15 + 7 = 22 ; ANS",
                reward=float(number % 2), is_correct=bool(number % 2), why="22 is reached" if number % 2 else why,
                num_tokens=21,
            )  # fmt: skip
            append_row(rollouts, {name: getattr(line, name) for name in RolloutLine.__slots__})
    curve.close()
    rollouts.close()
    run.write_exit_info(ExitInfo(code=0, reason="finished", job="1", attempt=0, rank=0, last_checkpoint=None, time=1.0))
    return run


def _step(stage: str, step: int, num_steps: int, *, falls: bool) -> CurvePoint:
    share = step / num_steps
    if stage != "grpo":
        return CurvePoint(step=step, loss=2.0 * math.exp(-3.0 * share) + 0.4, grad_norm=1.0 + share)
    reward = 0.3 + 0.25 * share if not falls or share < 0.5 else max(0.42 - 0.8 * (share - 0.5), 0.02)
    return CurvePoint(
        step=step, loss=0.1 * math.sin(step), grad_norm=0.5 + (4.0 * share if falls else 0.1), reward_mean=reward,
        reward_std=0.4, correct_frac=reward, length_mean=24.0 - 4.0 * share, entropy=0.8 - 0.5 * share,
        kl_reference=0.001 + 0.02 * share, kl_engines=1e-4 * (1.0 + (200.0 * share if falls else 0.0)),
        masked_frac=0.0 if falls else 0.002 * (1.0 + share), effective_sample_frac=0.98,
    )  # fmt: skip
