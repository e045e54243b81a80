"""The error table of generation: scores by source, model, device and precision, and with each left out of the fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scalewright.catalog.generation_runs import PublishedGeneration, generation_runs
from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs.interval import COVERAGE_FRAC
from scalewright.errors import ConfigError
from scalewright.planner.validation import scores
from scalewright.planner.validation.generation_rows import GenerationRow, generation_rows
from scalewright.planner.validation.published_rows import reason_counts
from scalewright.records.documents import document, read_document

LEFT_OUT_KIND = "generation-left-out"
DIMENSIONS: dict[str, Callable[[PublishedGeneration], str]] = {
    "source": lambda run: run.document,
    "model": lambda run: run.model.name,
    "device": lambda run: run.hardware.gpu,
}
"""What is left out of the fit, one at a time."""
GROUPINGS: dict[str, Callable[[PublishedGeneration], str]] = DIMENSIONS | {"precision": lambda run: run.precision}
Scores = dict[str, float | int | None]
EMPTY: Scores = {
    "num_rows": 0, "mape_frac": None, "median_ape_frac": None, "bias_frac": None, "coverage_frac": None,
    "mean_width_frac": None, "winkler_frac": None,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationTable:
    """Errors of generation, grouped in four ways, and on the whole."""

    rows: tuple[GenerationRow, ...]
    left_out: dict[str, dict[str, Scores]]
    """Scores of a group under constants fitted to the others, by grouping and name; empty for rows of a file."""

    @property
    def predicted(self) -> list[GenerationRow]:
        return [row for row in self.rows if row.reason is None]

    @property
    def reasons(self) -> dict[str, int]:
        return reason_counts(self.rows)

    def groups(self, grouping: str) -> dict[str, list[GenerationRow]]:
        grouped: dict[str, list[GenerationRow]] = {}
        for row in self.predicted:
            grouped.setdefault(GROUPINGS[grouping](row.run), []).append(row)
        return grouped

    def left_out_mean_frac(self, grouping: str, score: str = "mape_frac") -> float | None:
        """A score with each group of a grouping left out, every row weighing the same."""
        own = self.left_out.get(grouping)
        if not own:
            return None
        pairs = [(float(s[score] or 0.0), int(s["num_rows"] or 0)) for s in own.values()]
        return sum(value * num for value, num in pairs) / sum(num for _, num in pairs)

    def as_document(self) -> dict[str, Any]:
        groups = [
            {"grouping": grouping, "name": name, **generation_scores(rows),
             "left_out": self.left_out.get(grouping, {}).get(name)}
            for grouping in GROUPINGS
            for name, rows in self.groups(grouping).items()
        ]  # fmt: skip
        body = {
            "overall": generation_scores(self.predicted),
            "left_out_mape_frac": {name: self.left_out_mean_frac(name) for name in DIMENSIONS},
            "left_out_coverage_frac": {name: self.left_out_mean_frac(name, "coverage_frac") for name in DIMENSIONS},
            "groups": groups,
            "reasons": self.reasons,
            "rows": [row.as_dict() for row in self.rows],
        }
        return document("generation-validation", body)


def generation_scores(rows: Sequence[GenerationRow]) -> Scores:
    """Error of the predicted time, share inside the interval, its width and Winkler score over the measured time."""
    if not rows:
        return EMPTY
    predicted = np.array([row.predicted_s for row in rows], dtype=np.float64)
    measured = np.array([row.measured_s for row in rows], dtype=np.float64)
    low, high = (np.array([row.interval_s[end] for row in rows if row.interval_s is not None]) for end in (0, 1))
    return {
        "num_rows": len(rows),
        "mape_frac": scores.mape_frac(predicted, measured),
        "median_ape_frac": scores.median_ape_frac(predicted, measured),
        "bias_frac": scores.bias_frac(predicted, measured),
        "coverage_frac": float(np.mean((low <= measured) & (measured <= high))),
        "mean_width_frac": float(np.mean((high - low) / predicted)),
        "winkler_frac": float(np.mean(scores.winkler(low, high, measured, COVERAGE_FRAC) / measured)),
    }


def generation_table(catalog: Catalog, path: Path | None) -> GenerationTable:
    """Predict the generation rows of a file, default those shipped, and score them."""
    runs = generation_runs(path)
    if not runs:
        raise ConfigError(
            f"{path} holds no rows of generation: write one JSON object a line with isl and osl (docs/generation.md)"
        )
    return GenerationTable(
        rows=tuple(generation_rows(catalog, runs)), left_out=read_generation_left_out() if path is None else {}
    )


def left_out_path() -> Path:
    """Errors of each group under constants fitted to the others; written by benchmarks/fit_generation.py."""
    return packaged_data() / "published" / "generation_left_out.json"


def read_generation_left_out() -> dict[str, dict[str, Scores]]:
    body = read_document(left_out_path(), LEFT_OUT_KIND)
    return {name: body[name] for name in DIMENSIONS}
