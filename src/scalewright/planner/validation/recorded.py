"""The scores we had. `validate` without a file compares today's with them, so that none gets worse unseen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from scalewright.catalog.library import packaged_data
from scalewright.costs.interval import COVERAGE_FRAC
from scalewright.errors import DocumentError
from scalewright.planner.validation.error_table import Scores
from scalewright.records.documents import document, read_document, write_document

KIND = "recorded-scores"
Better = Literal["lower", "higher", "promised"]
BETTER: dict[str, Better] = {
    "balanced_mape_frac": "lower",
    "median_ape_frac": "lower",
    "spearman": "higher",
    "pairwise_accuracy_frac": "higher",
    "memory_allocated_mape_frac": "lower",
    "memory_reserved_mape_frac": "lower",
    "memory_device_mape_frac": "lower",
    "num_oom_missed": "lower",
    "coverage_frac": "promised",
    "winkler_frac": "lower",
    "num_expressed": "higher",
    "num_false_alarms": "lower",
}
"""Which way is better. `promised`: what lacks to the interval's promise counts; a wider one covers more for nothing."""
RELATIVE_MARGIN_FRAC = 0.02
ABSOLUTE_MARGIN = 0.002
"""A score may move by the larger of the two: what another NumPy or processor changes, and a little more."""
EXACT = ("num_expressed",)
"""No margin: a row that is no longer predicted makes all the other scores easier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreChange:
    """A score that moved by more than its margin."""

    name: str
    recorded: float
    now: float | None
    """None where the score no longer exists."""
    is_worse: bool

    @property
    def sentence(self) -> str:
        now = "nothing" if self.now is None else _shown(self.now)
        rule = {
            "lower": "should not grow",
            "higher": "should not fall",
            "promised": f"should not fall below {COVERAGE_FRAC:g}",
        }[BETTER[self.name]]
        if not self.is_worse:
            return f"{self.name} got better, from {_shown(self.recorded)} to {now}: keep it with validate --record."
        margin = "" if self.name in EXACT else f" by more than {RELATIVE_MARGIN_FRAC:.0%} or {ABSOLUTE_MARGIN:g}"
        return f"{self.name} got worse{margin}, from {_shown(self.recorded)} to {now}: it {rule}."


def _shown(value: float) -> str:
    return f"{value:.4g}" if value != int(value) else str(int(value))


def recorded_scores_path() -> Path:
    return packaged_data() / "published" / "recorded_scores.json"


def recorded_document(overall: Scores) -> dict[str, Any]:
    return document(KIND, {name: overall[name] for name in BETTER})


def record_scores(path: Path, overall: Scores) -> None:
    write_document(path, recorded_document(overall))


def read_scores(path: Path) -> dict[str, float]:
    """The recorded scores, each of them a number."""
    body = read_document(path, KIND)
    scores: dict[str, float] = {}
    for name in BETTER:
        value = body.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise DocumentError(f"{path}: {name} is {value!r}, not a number; write it anew with validate --record")
        scores[name] = float(value)
    return scores


def compare_scores(recorded: dict[str, float], overall: Scores) -> list[ScoreChange]:
    """Scores that moved by more than their margin, worse ones first."""
    changes = [_change(name, recorded[name], overall.get(name)) for name in BETTER]
    return sorted((c for c in changes if c is not None), key=lambda c: not c.is_worse)


def _change(name: str, recorded: float, now: float | int | None) -> ScoreChange | None:
    if now is None:
        return ScoreChange(name=name, recorded=recorded, now=None, is_worse=True)
    margin = 0.0 if name in EXACT else max(RELATIVE_MARGIN_FRAC * abs(recorded), ABSOLUTE_MARGIN)
    loss = _badness(name, float(now)) - _badness(name, recorded)
    if abs(loss) <= margin:
        return None
    return ScoreChange(name=name, recorded=recorded, now=float(now), is_worse=loss > 0)


def _badness(name: str, value: float) -> float:
    if BETTER[name] == "promised":
        return max(COVERAGE_FRAC - value, 0.0)
    return value if BETTER[name] == "lower" else -value
