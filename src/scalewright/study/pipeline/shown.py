"""What the report of a pipeline shows, read from the run directories of its stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from scalewright.observe.hybrid_summary import hybrid_shown
from scalewright.records.documents import read_document
from scalewright.records.pipeline_report import (
    AnswerShown,
    BoundedFigure,
    PipelineShown,
    RoofPoint,
    StageShown,
    StageState,
)
from scalewright.records.reasoning import (
    CurvePoint,
    Rate,
    RolloutLine,
    StageRecord,
    read_curve,
    read_rollouts,
)
from scalewright.records.run_directory import RunDirectory
from scalewright.study.pipeline.progress import block_of, gate_of, record_of
from scalewright.study.pipeline.stages import PlannedPipeline, StageRun
from scalewright.study.points import Study
from scalewright.study.store import Store

CURVES = (
    "reward_mean", "correct_frac", "length_mean", "entropy", "kl_reference", "kl_engines", "masked_frac",
    "effective_sample_frac", "loss", "grad_norm", "accuracy_frac",
)  # fmt: skip
"""Figures of a step that are drawn."""
MAX_STEPS = 300
"""Steps of a curve in the report; of a longer one every nth is kept, and the last."""
MAX_ANSWERS = 12
"""Answers to read of one stage."""
REPEAT = 0
T = TypeVar("T")


def pipeline_shown(study: Study, store: Store) -> PipelineShown:
    """The stages of a measured pipeline. Of several repeats the first is shown: they differ in their times only."""
    pipeline = study.pipeline
    assert pipeline is not None
    stages = tuple(_stage(study, store, pipeline, run) for run in pipeline.runs)
    return PipelineShown(profile=pipeline.setting.profile, sentence=pipeline.sentence, stages=stages)


def _stage(study: Study, store: Store, pipeline: PlannedPipeline, run: StageRun) -> StageShown:
    directory = store.run_of(run.point, REPEAT)
    record = record_of(store, run.point, REPEAT)
    state, reason = _state(store, pipeline, run)
    options = study.combinations[pipeline.runs.index(run)].options
    gate = gate_of(pipeline, store, run, REPEAT)
    common: dict[str, Any] = {
        "name": run.name,
        "stage": str(options["stage"]),
        "seed": run.seed,
        "point": run.point,
        "state": state,
        "reason": reason,
        "follows": tuple(dict.fromkeys(pipeline.run_of(point).name for point in run.needs)),
        "gate": "" if gate is None else gate.sentence,
        "passes_gate": None if gate is None else gate.passes,
        "curve": curve_columns(read_curve(directory)),
        "answers": answers_to_read(read_rollouts(directory)),
        "hybrid": hybrid_shown(directory),
    }
    if record is None:
        return StageShown(**common)
    return StageShown(**common, **_figures(record), **_roofs(directory), **_predicted(directory))


def _state(store: Store, pipeline: PlannedPipeline, run: StageRun) -> tuple[StageState, str]:
    block = block_of(pipeline, store, run, REPEAT)
    directory = store.run_of(run.point, REPEAT)
    info = directory.read_exit_info() if directory.config.exists() else None
    if info is not None and info.finished:
        return "finished", ""
    if block is not None and block.is_final:
        return "skipped", block.reason
    problem = "" if info is None else info.reason
    path = store.path / "problems" / f"{run.point}-repeat-{REPEAT}.json"
    if not problem and path.exists():
        problem = str(read_document(path, "study-problem").get("reason", ""))
    if problem:
        return "failed", problem
    if directory.config.exists():
        return "unfinished", ""
    return "waiting", "" if block is None else block.reason


def _figures(record: StageRecord) -> dict[str, Any]:
    accuracy, split, mismatch = record.accuracy, record.split, record.mismatch
    return {
        "model": record.model,
        "num_params": record.num_params,
        "num_ranks": record.num_ranks,
        "layout": record.layout,
        "precision": record.precision,
        "device": record.device,
        "num_steps": record.steps,
        "num_samples": record.num_samples,
        "num_tokens": record.num_tokens,
        "took_s": sum(record.seconds_by_part.values()),
        "seconds_by_part": dict(record.seconds_by_part),
        "accuracy": None if accuracy is None else _estimate(accuracy.greedy),
        "pass_at_k": {} if accuracy is None else {k: _estimate(rate) for k, rate in accuracy.pass_at_k.items()},
        "num_problems": 0 if accuracy is None else accuracy.num_problems,
        "marks": "" if accuracy is None else accuracy.marks,
        "communication_frac": None if split is None else split.communication_frac,
        "utilisation_frac": record.utilisation_frac,
        "rank_gap_frac": record.rank_gap_frac if record.num_ranks > 1 else None,
        "kv_occupancy_frac": record.kv_occupancy_frac,
        "host_bytes": record.host_bytes,
        "device_bytes": record.device_bytes,
        "energy_j": record.energy_j,
        "cost_usd": record.cost_usd,
        "cost_usd_per_thousand_samples": record.cost_usd_per_thousand_samples,
        "kl_engines": None if mismatch is None else mismatch.kl,
        "masked_frac": None if mismatch is None else mismatch.masked_frac,
        "effective_sample_frac": None if mismatch is None else mismatch.effective_sample_frac,
        "roofline": tuple(
            RoofPoint(name=point.name, flop_per_byte=point.flop_per_byte, flop_per_s=point.flop_per_s)
            for point in record.roofline if point.bytes and point.seconds
        ),
        "notes": tuple(record.notes),
    }  # fmt: skip


def _estimate(rate: Rate) -> BoundedFigure:
    return BoundedFigure(value=rate.value_frac, low=rate.low_frac, high=rate.high_frac)


def _roofs(directory: RunDirectory) -> dict[str, Any]:
    machine = directory.read_machine()
    roofs = {name: machine.get(name) for name in ("peak_flop_per_s", "memory_bytes_per_s")}
    return {name: None if value is None else float(value) for name, value in roofs.items()}


def _predicted(directory: RunDirectory) -> dict[str, Any]:
    """Predicted time of the stage's steps, with its interval, and by part; empty where nothing was predicted."""
    if not directory.prediction.exists():
        return {}
    prediction = read_document(directory.prediction, "prediction")
    value = prediction.get("training_time_s")
    if value is None:
        return {}
    low, high = prediction.get("training_time_interval_s") or (value, value)
    return {
        "predicted_s": BoundedFigure(value=float(value), low=float(low), high=float(high)),
        "predicted_by_part": {name: float(part) for name, part in prediction.get("seconds_by_part", {}).items()},
    }


def curve_columns(points: Sequence[CurvePoint]) -> dict[str, tuple[float | None, ...]]:
    """The steps as columns. Figures that no step has are left out."""
    kept = thinned(points, MAX_STEPS)
    columns: dict[str, tuple[float | None, ...]] = {
        name: tuple(getattr(point, name) for point in kept)
        for name in CURVES
        if any(getattr(point, name) is not None for point in kept)
    }
    return {"step": tuple(float(point.step) for point in kept), **columns} if columns else {}


def thinned(values: Sequence[T], most: int) -> list[T]:
    """At most so many values: every nth, and the last."""
    if len(values) <= most:
        return list(values)
    every = -(-len(values) // (most - 1))
    return [value for at, value in enumerate(values) if at % every == 0 or at == len(values) - 1]


def answers_to_read(lines: Sequence[RolloutLine]) -> tuple[AnswerShown, ...]:
    """Answers of the first, the middle and the last step that has some, right and wrong ones side by side."""
    steps = sorted({line.step for line in lines})
    chosen = list(dict.fromkeys([steps[0], steps[len(steps) // 2], steps[-1]])) if steps else []
    each = MAX_ANSWERS // max(len(chosen), 1)
    shown: list[RolloutLine] = []
    for step in chosen:
        of_step = [line for line in lines if line.step == step]
        wrong = [line for line in of_step if not line.is_correct]
        right = [line for line in of_step if line.is_correct]
        num_wrong = min(len(wrong), max(each // 2, each - len(right)))
        shown += [*right[: each - num_wrong], *wrong[:num_wrong]]
    return tuple(
        AnswerShown(
            step=line.step, prompt=line.prompt, answer=line.answer, reward=line.reward, is_correct=line.is_correct,
            why=line.why,
        )
        for line in shown
    )  # fmt: skip
