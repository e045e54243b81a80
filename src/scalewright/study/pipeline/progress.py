"""How far a pipeline is: gates that were passed or not, and why a stage cannot run. Read from the results alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from scalewright.errors import DocumentError
from scalewright.records.reasoning import StageRecord, read_stage
from scalewright.records.run_directory import RunDirectory
from scalewright.study.pipeline.gate import GateResult, judge
from scalewright.study.pipeline.stages import PlannedPipeline, StageRun


class RunFolders(Protocol):
    """Where the run directories of points are."""

    def run_of(self, point: str, repeat: int) -> RunDirectory: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBlock:
    """Why a stage does not run now."""

    reason: str
    is_final: bool
    """A gate that was not passed: running the study again changes nothing."""


def record_of(store: RunFolders, point: str, repeat: int) -> StageRecord | None:
    """The record of a stage that ended; None if it has not."""
    run = store.run_of(point, repeat)
    info = run.read_exit_info() if run.config.exists() else None
    if info is None or not info.finished:
        return None
    try:
        return read_stage(run)
    except DocumentError:
        return None


def gate_of(pipeline: PlannedPipeline, store: RunFolders, run: StageRun, repeat: int) -> GateResult | None:
    """What the gate of a stage says; None without a gate, or before the stage has ended."""
    if run.gate is None:
        return None
    own = record_of(store, run.point, repeat)
    over = record_of(store, run.over, repeat) if run.over else None
    if own is None or (run.over and over is None):
        return None
    return judge(run.gate, _named(pipeline, run), own, over)


def _named(pipeline: PlannedPipeline, run: StageRun) -> str:
    return f"{run.name} (seed {run.seed})" if len(pipeline.runs_of(run.name)) > 1 else run.name


def block_of(pipeline: PlannedPipeline, store: RunFolders, run: StageRun, repeat: int) -> StageBlock | None:
    """Why a stage cannot run: a gate before it that was not passed, or a stage that it needs and that has not ended."""
    for point in run.gated_by:
        gated = pipeline.run_of(point)
        result = gate_of(pipeline, store, gated, repeat)
        if result is not None and not result.passes:
            return StageBlock(reason=f"the gate after {_named(pipeline, gated)} was not passed", is_final=True)
    for point in dict.fromkeys((*run.needs, *run.gated_by)):
        if record_of(store, point, repeat) is None:
            needed = pipeline.run_of(point)
            below = block_of(pipeline, store, needed, repeat)
            if below is not None:
                return below
            return StageBlock(reason=f"it needs {_named(pipeline, needed)}, which has not finished", is_final=False)
    return None


def judged_gates(pipeline: PlannedPipeline, store: RunFolders, repeat: int) -> list[GateResult]:
    """Every gate that was judged, in the order of the stages."""
    results = (gate_of(pipeline, store, run, repeat) for run in pipeline.runs)
    return [result for result in results if result is not None]
