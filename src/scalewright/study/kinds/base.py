"""The one interface of all kinds of points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from scalewright.catalog.library import Catalog
from scalewright.errors import NotExpressedError
from scalewright.records.study_report import Doubt, Number
from scalewright.study.execute import Execution
from scalewright.study.expressions import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What is predicted or was measured of a point."""

    numbers: dict[str, Number] = field(default_factory=dict)
    """By the name of the metric."""
    words: dict[str, str] = field(default_factory=dict)
    """What is no number: the best layout, the recipe."""
    limit: str = ""
    """What takes most of its time, or keeps it from running."""
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
    """Why what was measured may not say what it seems to."""


class Kind(Protocol):
    """A sort of point. `told` is the study's `point` table, filled in."""

    metrics: tuple[str, ...]
    """What tables show where the study does not say."""

    def check(self, catalog: Catalog, told: Mapping[str, Value], *, where: str) -> None:
        """Refuse what cannot be understood: unknown keys, models, systems."""

    def predict(self, catalog: Catalog, told: Mapping[str, Value], *, where: str) -> Outcome: ...

    def foretold(self, prediction: dict[str, Any]) -> Outcome:
        """What a stored prediction says."""

    def execution(self, catalog: Catalog, told: Mapping[str, Value], *, path: Path, where: str) -> Execution:
        """The run that measures the point on this machine."""

    def measured(self, path: Path) -> Outcome:
        """What a finished run directory says."""

    def samples(self, path: Path) -> tuple[float, ...]:
        """Times in seconds that two results are compared by: of steps, or of repeats of one operation."""

    def facts(self, catalog: Catalog, values: Mapping[str, Value]) -> dict[str, Any]:
        """Values that follow from others: devices of a node of the system."""


class PredictedOnly:
    """Kinds whose points are questions to the planner: there is nothing to run."""

    what = "a question to the planner"

    def foretold(self, prediction: dict[str, Any]) -> Outcome:
        del prediction
        raise NotExpressedError(f"{self.what} is not run, so nothing was foretold of it")

    def execution(self, catalog: Catalog, told: Mapping[str, Value], *, path: Path, where: str) -> Execution:
        del catalog, told, path
        raise NotExpressedError(f"{where}: {self.what} is predicted, not run: give points to measure another kind")

    def measured(self, path: Path) -> Outcome:
        del path
        raise NotExpressedError(f"{self.what} is predicted, not run")

    def samples(self, path: Path) -> tuple[float, ...]:
        del path
        return ()
