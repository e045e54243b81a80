"""Files of a stage: what is written comes back, and lines of a killed attempt do not count."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewright.errors import ConfigError, DocumentError
from scalewright.observe.reason_summary import add_cost
from scalewright.records.documents import document, write_document
from scalewright.records.reasoning import (
    Accuracy,
    CollectiveUse,
    CurvePoint,
    MeasuredWork,
    Mismatch,
    Rate,
    RolloutLine,
    ShardHead,
    StageRecord,
    StepSplitShares,
    StoredAnswer,
    append_row,
    curve_writer,
    read_curve,
    read_rollouts,
    read_stage,
    read_stored_answers,
    rollout_writer,
    write_shard,
    write_stage,
)
from scalewright.records.run_directory import RunDirectory


def record() -> StageRecord:
    rate = Rate(value_frac=0.4, low_frac=0.35, high_frac=0.45)
    return StageRecord(
        stage="grpo", model="tiny", num_params=1000, num_trained_params=1000, num_ranks=1, layout="dp=1", device="CPU",
        precision="fp32", engine_precision="bf16", seed=0, steps=3, num_attempts=1, wall_s=3.0,
        accuracy=Accuracy(num_problems=10, greedy=rate, num_answers=4, pass_at_k={1: rate, 4: rate}),
        seconds_by_part={"generation": 2.0, "training": 1.0}, rank_seconds_by_part=[{"generation": 2.0}],
        rank_gap_frac=0.0, split=StepSplitShares(compute_frac=1.0, communication_frac=0.0, data_wait_frac=0.0,
        idle_frac=0.0), collectives={"all_reduce": CollectiveUse(count=3, bytes=12.0, seconds=0.1)},
        utilisation_frac=None, roofline=[MeasuredWork(name="decode", flop=8.0, bytes=4.0, seconds=2.0)],
        kv_occupancy_frac=0.5, kv_peak_frac=0.9, host_bytes=1.0, device_bytes=None, energy_j=None, energy_of="",
        cost_usd=2.0, num_samples=500, num_tokens=100, train_flop=1e9,
        mismatch=Mismatch(kl=1e-4, masked_frac=0.0, effective_sample_frac=0.99),
    )  # fmt: skip


def test_a_stage_comes_back(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    write_stage(directory, record())
    assert read_stage(directory) == record()
    assert record().cost_usd_per_thousand_samples == 4.0
    assert record().document()["roofline"][0]["flop_per_byte"] == 2.0


def test_a_part_of_a_stage_is_refused(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.stage.write_text('{"schema": "scalewright.reason-stage/1", "stage": "sft"}')
    with pytest.raises(DocumentError, match="is not a whole reason-stage"):
        read_stage(directory)


def test_a_resumed_stage_writes_its_steps_again(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    first = curve_writer(directory, first_step=0)
    for step in range(4):
        append_row(first, CurvePoint(step=step, loss=float(step), entropy=float("nan")).row())
    first.append('{"step": 4, "lo')  # killed inside a line
    again = curve_writer(directory, first_step=2)
    append_row(again, CurvePoint(step=2, loss=20.0).row())
    assert [(p.step, p.loss, p.entropy) for p in read_curve(directory)] == [
        (0, 0.0, None), (1, 1.0, None), (2, 20.0, None)
    ]  # fmt: skip


def test_rollouts_come_back(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    line = RolloutLine(
        step=0, problem="p1", prompt="1 2 = 3", answer="1 + 2", reward=1.0, is_correct=True, why="right", num_tokens=3
    )
    writer = rollout_writer(directory, first_step=0)
    append_row(writer, {f: getattr(line, f) for f in line.__dataclass_fields__})
    assert read_rollouts(directory) == [line]


def test_answers_of_all_shards_each_once(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    answer = StoredAnswer(problem="p1", prompt=(1, 2), response=(3, 4), reward=1.0, is_correct=True)
    other = StoredAnswer(problem="p1", prompt=(1, 2), response=(3, 5), reward=0.0, is_correct=False)
    write_shard(directory, 0, [answer, other], ShardHead(num_sampled=4, num_kept=2))
    write_shard(directory, 1, [answer], ShardHead(num_sampled=4, num_kept=1))
    assert read_stored_answers(tmp_path) == [answer, other]
    with pytest.raises(ConfigError, match="holds no answers"):
        read_stored_answers(tmp_path / "nothing")


def test_money_follows_from_the_price_of_the_machine(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    write_stage(directory, record())
    add_cost(directory)
    assert read_stage(directory).cost_usd == 2.0, "no price is known, so nothing is changed"
    write_document(directory.machine, document("machine", {"usd_per_s": 0.5}))
    add_cost(directory)
    assert read_stage(directory).cost_usd == pytest.approx(1.5)
