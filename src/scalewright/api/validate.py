"""`sw.validate()`: predictions held against published runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalewright.api.frames import Framed
from scalewright.api.keywords import checked
from scalewright.catalog.library import open_catalog
from scalewright.planner.validation.error_table import ErrorTable, Scores, validation_table
from scalewright.report.notebook import html
from scalewright.report.planner.validation import percent


@dataclass(frozen=True, slots=True)
class Validation(Framed):
    """Predicted beside published step times, row by row, and the scores."""

    table: ErrorTable

    @property
    def scores(self) -> Scores:
        """Over all rows; fractions, such as `mape_frac`."""
        return self.table.overall

    def document(self) -> dict[str, Any]:
        """What `scalewright validate --json` prints."""
        return self.table.as_document()

    def columns(self) -> dict[str, list[Any]]:
        rows = self.table.rows
        return {
            "id": [row.run.id for row in rows],
            "source": [row.run.document for row in rows],
            "gpu": [row.run.hardware.gpu for row in rows],
            "dtype": [row.run.dtype for row in rows],
            "predicted_step_s": [row.predicted_step_s for row in rows],
            "measured_step_s": [row.measured_step_s for row in rows],
            "reason": [row.reason for row in rows],
        }

    def _repr_html_(self) -> str:
        rows = [
            (source, gpu, dtype, str(s["num_timed"]), percent(s["mape_frac"]), percent(s["median_ape_frac"]),
             percent(s["bias_frac"], signed=True), percent(s["rule_mape_frac"]))
            for (source, gpu, dtype), s in self.table.groups.items()
        ]  # fmt: skip
        headers = ["source", "GPU", "dtype", "rows", "MAPE", "median", "bias", "50 % rule"]
        caption = (
            f"error of predicted step time, %: mean {percent(self.scores['mape_frac'])}, "
            f"median {percent(self.scores['median_ape_frac'])} over {self.scores['num_timed']} rows"
        )
        return html.table(headers, rows, caption=caption, right=headers[3:])


@checked()
def validate(rows: str | Path | None = None, *, catalog: str | Path | None = None) -> Validation:
    """Predict published runs from their own model, hardware and layout.

    `rows` is a JSONL file in the shape of the shipped one, which is the default.
    """
    library = open_catalog(None if catalog is None else Path(catalog))
    return Validation(validation_table(library, None if rows is None else Path(rows)))
