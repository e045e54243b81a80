"""The errors of vision rates for people, in 80 columns."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape

from scalewright.planner.validation.vision_rows import VisionTable, vision_scores
from scalewright.report.console import plain_table
from scalewright.report.planner.validation import percent, print_reasons

PUBLICATION_WIDTH = 32


def print_vision_table(
    console: Console, table: VisionTable, *, left_out: Mapping[str, Mapping[str, float]]
) -> None:  # fmt: skip
    """One line per publication; `left_out` holds its errors under constants fitted to the others."""
    if not table.rows:
        return
    columns = ("rows", "MAPE", "bias", "inside", "width", "left out", "inside it")
    shown = plain_table(
        "publication", *columns, right=columns, gap=1,
        title="error of predicted vision steps, %; inside and width of the 90 % interval; left out of the fit",
    )  # fmt: skip
    for name, rows in table.groups.items():
        scores, own = vision_scores(rows), left_out.get(name)
        unseen = ("-", "-") if own is None else (percent(own["mape_frac"]), percent(own["coverage_frac"]))
        shown.add_row(escape(name[:PUBLICATION_WIDTH]), *_cells(scores), *unseen)
    balanced = [own["mape_frac"] for own in left_out.values()]
    mean = percent(sum(balanced) / len(balanced)) if balanced else "-"
    rows_inside = sum(own["coverage_frac"] * own["num_rows"] for own in left_out.values())
    inside = percent(rows_inside / sum(own["num_rows"] for own in left_out.values())) if balanced else "-"
    shown.add_row("[bold]all rows[/]", *_cells(vision_scores(table.predicted)), mean, inside)
    console.print()
    console.print(shown)
    print_reasons(console, table.reasons, what="vision rows")


def _cells(scores: Mapping[str, float | int | None]) -> tuple[str, ...]:
    return (
        str(scores["num_rows"]), percent(scores["mape_frac"]), percent(scores["bias_frac"], signed=True),
        percent(scores["coverage_frac"]), percent(scores["mean_width_frac"]),
    )  # fmt: skip
