"""Whole stages of a tiny model in this process: the run directory is real, the rank is the only one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from scalewright.data.reasoning.settings import TaskSettings
from scalewright.records.reasoning import CurvePoint, read_curve
from scalewright.records.run_directory import RunDirectory
from scalewright.records.types import ExitCode
from scalewright.run.metrics import MetricWriter
from scalewright.run.rank_context import RankContext
from scalewright.run.reasoning.run import run_stage
from scalewright.run.signals import StopSignals
from scalewright.run.watchdog import Watchdog
from scalewright.run.world import World
from scalewright.workload.language_run import OptimizerSettings
from scalewright.workload.layout import Layout
from scalewright.workload.model import from_shape
from scalewright.workload.reasoning.stage_run import EvaluationSettings, ReasonRun, StageSettings

CPU = torch.device("cpu")
TASK = TaskSettings(numbers=2, largest=11, values=24, operators="+", attempts=1)
SPEC = from_shape("layers=1,hidden=32,heads=2,vocab=40,seq=16")


def stage_of(stage: str, settings: StageSettings, *, steps: int, gbs: int = 8, **others: Any) -> ReasonRun:
    given: dict[str, Any] = {
        "evaluation": EvaluationSettings(num_problems=8),
        "optimizer": OptimizerSettings(learning_rate=3e-3, warmup_steps=5),
        "num_read": 2, "profile_steps": 0, "device": "cpu", **others,
    }  # fmt: skip
    return ReasonRun(
        stage=stage, model_id="tiny", shape=SPEC.transformer, layout=Layout(mbs=8, gbs=gbs), settings=settings,  # type: ignore[arg-type]
        task=TASK, steps=steps, **given,
    )  # fmt: skip


class StopAfter(StopSignals):
    """Asks to stop once the curve has so many steps, as a signal does."""

    def __init__(self, directory: RunDirectory, num_steps: int) -> None:
        super().__init__()
        self._directory, self._num_steps = directory, num_steps

    @property
    def requested(self) -> str | None:
        return "SIGTERM" if len(read_curve(self._directory)) >= self._num_steps else None


@contextlib.contextmanager
def rank_of(directory: RunDirectory, stop: StopSignals) -> Iterator[RankContext]:
    world = World.from_environment({}, host="here")
    with contextlib.closing(MetricWriter(directory, world)) as metrics:
        watchdog = Watchdog(directory, world, metrics, factor=10.0, minimum_s=60.0)
        yield RankContext(directory=directory, world=world, metrics=metrics, stop=stop, watchdog=watchdog)


def run_in(path: Path, config: ReasonRun, *, stop_after: int | None = None) -> ExitCode:
    directory = RunDirectory.create_or_resume(path, config.document())
    stop = StopSignals() if stop_after is None else StopAfter(directory, stop_after)
    with rank_of(directory, stop) as rank:
        return run_stage(config, rank, CPU)


def curve_of(path: Path) -> list[CurvePoint]:
    """The curve without times, which differ from run to run."""
    return [replace(point, seconds_by_part={}) for point in read_curve(RunDirectory(path))]
