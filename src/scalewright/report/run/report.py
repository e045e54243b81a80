"""The report of one run of any kind: training has steps and a summary, a micro benchmark has rows."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.markup import escape

from scalewright import __version__
from scalewright.errors import ConfigError, ScalewrightError
from scalewright.observe.collect import CollectedRun, collect
from scalewright.observe.hybrid_summary import hybrid_shown
from scalewright.observe.rollup import refresh_rollup
from scalewright.observe.summary import RunSummary, summarize
from scalewright.records.documents import document
from scalewright.records.hybrid import HYBRID
from scalewright.records.hybrid_report import HybridShown
from scalewright.records.measurements import Measurements, read_measurements
from scalewright.records.reasoning import StageRecord, read_curve, read_stage
from scalewright.records.run_directory import RunDirectory
from scalewright.report.bench.measurements import print_measurements
from scalewright.report.explain.build import explained_paths
from scalewright.report.explain.page import findings_section, write_explanation_page
from scalewright.report.hybrid.page import write_run_page
from scalewright.report.hybrid.plot import plot_hybrid
from scalewright.report.hybrid.terminal import print_hybrid
from scalewright.report.run.stage import accuracy_sentence, print_stage
from scalewright.report.run.summary import plot_run, print_run


class RunReport(Protocol):
    def document(self) -> dict[str, Any]: ...

    def show(self, console: Console) -> None: ...

    def plot(self, path: Path) -> None: ...

    def write_page(self, path: Path) -> None: ...


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

    def write_page(self, path: Path) -> None:
        write_explanation_page(path, explained_paths([self.run.directory.path]))


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

    def write_page(self, path: Path) -> None:
        raise _no_page(path, self.path)


@dataclass(frozen=True, slots=True)
class StageReport:
    """A stage of reasoning-model training."""

    record: StageRecord | None
    """None: it has not ended."""
    hybrid: HybridShown | None
    """None: it trains on no answers of its own."""
    directory: RunDirectory

    def document(self) -> dict[str, Any]:
        info = None if self.record is not None else self.directory.read_exit_info()
        end = {} if info is None else {"exit_code": info.code, "end": info.reason}
        body = self.record.document() if self.record else document(HYBRID, {"run": self.directory.path.name} | end)
        return body if self.hybrid is None else body | {"hybrid": self.hybrid.document()}

    @property
    def _progress(self) -> str:
        """How far a stage without a record came, and why it went no further: an attempt that runs has no exit info."""
        num = 0 if self.hybrid is None else len(self.hybrid.iterations)
        steps = f"{num:,} step{'' if num == 1 else 's'}"
        info = self.directory.read_exit_info()
        if info is None:
            return f"the stage has not ended; {steps} so far"
        return f"the stage stopped after {steps} with exit code {info.code}: {info.reason}"

    def show(self, console: Console) -> None:
        if self.record is None:
            console.print(f"[bold]{escape(self.directory.path.name)}[/]: {escape(self._progress)}")
        else:
            print_stage(console, self.record, self.directory)
        if self.hybrid is not None:
            print_hybrid(console, self.hybrid)

    def plot(self, path: Path) -> None:
        if self.hybrid is None:
            raise ConfigError(f"{self.directory.path} is a stage of `reason`, which has no plot: see its curve.jsonl")
        plot_hybrid(path, self.hybrid)

    def write_page(self, path: Path) -> None:
        if self.hybrid is None:
            raise _no_page(path, self.directory.path)
        record, title = self.record, self.directory.path.resolve().name
        summary = [_sentence(self._progress)] if record is None else []
        if record is not None:
            title = f"{title}: {record.stage} of {record.model}"
            summary += [] if record.accuracy is None else [_sentence(accuracy_sentence(record.accuracy))]
        findings = findings_section(explained_paths([self.directory.path]).findings, [])
        write_run_page(
            path, self.hybrid, title=title, version=__version__, summary=summary, curve=read_curve(self.directory),
            findings=findings,
        )  # fmt: skip


def _no_page(path: Path, run: Path) -> ConfigError:
    return ConfigError(
        f"--page {str(path)!r}: {run} has no page: only a training run and a stage that trains on answers of its own "
        "have one; print it without --page"
    )


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def run_report(directory: RunDirectory) -> RunReport:
    """The report of a run directory; a training run's totals are brought up to date."""
    hybrid = hybrid_shown(directory)
    if directory.stage.exists() or hybrid is not None:
        record = read_stage(directory) if directory.stage.exists() else None
        return StageReport(record, hybrid, directory)
    if directory.measurements.exists():
        return BenchmarkReport(read_measurements(directory), directory.path)
    run = collect(directory)
    with contextlib.suppress(ScalewrightError, OSError):  # another user's run, or a full disk: totals stay as they are
        refresh_rollup(directory)
    return TrainingReport(run, summarize(run))
