"""The report of one run of any kind: training has steps and a summary, a micro benchmark has rows."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from scalewright.errors import ConfigError, ScalewrightError
from scalewright.observe.collect import CollectedRun, collect
from scalewright.observe.rollup import refresh_rollup
from scalewright.observe.summary import RunSummary, summarize
from scalewright.records.measurements import Measurements, read_measurements
from scalewright.records.reasoning import StageRecord, read_stage
from scalewright.records.run_directory import RunDirectory
from scalewright.report.bench.measurements import print_measurements
from scalewright.report.run.stage import print_stage
from scalewright.report.run.summary import plot_run, print_run


class RunReport(Protocol):
    def document(self) -> dict[str, Any]: ...

    def show(self, console: Console) -> None: ...

    def plot(self, path: Path) -> None: ...


@dataclass(frozen=True, slots=True)
class TrainingReport:
    run: CollectedRun
    summary: RunSummary

    def document(self) -> dict[str, Any]:
        return self.summary.as_document()

    def show(self, console: Console) -> None:
        print_run(console, self.run, self.summary)

    def plot(self, path: Path) -> None:
        plot_run(path, self.run, self.summary)


@dataclass(frozen=True, slots=True)
class BenchmarkReport:
    measurements: Measurements
    path: Path

    def document(self) -> dict[str, Any]:
        return self.measurements.document()

    def show(self, console: Console) -> None:
        print_measurements(console, self.measurements)

    def plot(self, path: Path) -> None:
        del path
        raise ConfigError(f"{self.path} is a {self.measurements.kind} benchmark, which has no plot")


@dataclass(frozen=True, slots=True)
class StageReport:
    """A stage of reasoning-model training."""

    record: StageRecord
    directory: RunDirectory

    def document(self) -> dict[str, Any]:
        return self.record.document()

    def show(self, console: Console) -> None:
        print_stage(console, self.record, self.directory)

    def plot(self, path: Path) -> None:
        del path
        raise ConfigError(f"{self.directory.path} is a stage of `reason`, which has no plot: see its curve.jsonl")


def run_report(directory: RunDirectory) -> RunReport:
    """The report of a run directory; a training run's totals are brought up to date."""
    if directory.stage.exists():
        return StageReport(read_stage(directory), directory)
    if directory.measurements.exists():
        return BenchmarkReport(read_measurements(directory), directory.path)
    run = collect(directory)
    with contextlib.suppress(ScalewrightError, OSError):  # another user's run, or a full disk: totals stay as they are
        refresh_rollup(directory)
    return TrainingReport(run, summarize(run))
