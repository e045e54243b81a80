"""The one interface of all kinds of points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from scalewright.catalog.library import Catalog
from scalewright.errors import NotExpressedError
from scalewright.records.study_report import Doubt, Number
from scalewright.study.execution import Execution
from scalewright.study.expressions import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The predicted or measured numbers of a point, and remarks about them."""

    numbers: dict[str, Number] = field(default_factory=dict)
    """By the name of the metric."""
    words: dict[str, str] = field(default_factory=dict)
    """Results that are not numbers: the best layout, the recipe."""
    limit: str = ""
    """The largest term of its time, or why it cannot run."""
    why: str = ""
    """One sentence: why, and what would help."""
    parts: dict[str, float] = field(default_factory=dict)
    """Shares of the step by term, largest first."""
    notes: tuple[str, ...] = ()
    problem: str = ""
    """Why there is no figure."""
    series: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Distributions to draw, such as the times of batches."""
    doubts: tuple[Doubt, ...] = ()
    """Doubts about the measurement."""


class Kind(Protocol):
    """A kind of point. `options` are the study's `point` table, or the flags of a benchmark.

    `where` names the file or command that the options come from, for errors.
    """

    metrics: tuple[str, ...]
    """Columns of tables, unless the study names others."""
    runs_as_job: bool
    """Whether a point can run as a Slurm job of its own."""

    def check(self, catalog: Catalog, options: Mapping[str, Value], *, where: str) -> None:
        """Refuse unknown keys, models and systems, and values that do not fit together."""

    def predict(self, catalog: Catalog, options: Mapping[str, Value], *, where: str) -> Outcome: ...

    def stored_prediction(self, prediction: dict[str, Any]) -> Outcome:
        """The numbers of a prediction document that was written before a run."""

    def execution(
        self, catalog: Catalog, options: Mapping[str, Value], *, path: Path, where: str, predicts: bool = True
    ) -> Execution:
        """The run that measures the point on this machine; without `predicts` nothing is predicted or probed."""

    def measured(self, path: Path) -> Outcome:
        """The numbers of a finished run directory."""

    def samples(self, path: Path) -> tuple[float, ...]:
        """Times in seconds by which two results are compared: of steps, or of repeats of one operation."""

    def facts(self, catalog: Catalog, values: Mapping[str, Value]) -> dict[str, Value]:
        """Values that follow from others, such as the GPUs per node of the system."""


class PredictedOnly:
    """Kinds that only the planner answers: there is nothing to run."""

    what = "a question to the planner"
    runs_as_job = False

    def stored_prediction(self, prediction: dict[str, Any]) -> Outcome:
        del prediction
        raise NotExpressedError(f"{self.what} is not run, so it has no stored prediction")

    def execution(
        self, catalog: Catalog, options: Mapping[str, Value], *, path: Path, where: str, predicts: bool = True
    ) -> Execution:
        del catalog, options, path, predicts
        raise NotExpressedError(f"{where}: {self.what} is predicted, not run: give points to measure another kind")

    def measured(self, path: Path) -> Outcome:
        del path
        raise NotExpressedError(f"{self.what} is predicted, not run")

    def samples(self, path: Path) -> tuple[float, ...]:
        del path
        return ()
