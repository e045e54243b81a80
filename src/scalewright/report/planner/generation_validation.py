"""The errors of generation for people, in 80 columns."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape

from scalewright.planner.validation.generation_table import (
    GROUPINGS,
    GenerationTable,
    Scores,
    generation_scores,
)
from scalewright.report.console import plain_table
from scalewright.report.planner.validation import percent, print_reasons

NAME_WIDTH = 26


def print_generation_table(console: Console, table: GenerationTable) -> None:
    """One table by source, model, device and precision; the last columns are scores under constants that did not see
    the group."""
    columns = ("rows", "MAPE", "med", "bias", "inside", "width", "Winkler", "left out", "inside it")
    for grouping in GROUPINGS:
        title = f"error of predicted time by {grouping}, %; 90 % interval; left out of the fit"
        shown = plain_table(grouping, *columns, right=columns, gap=1, title=title)
        for name, rows in table.groups(grouping).items():
            own = table.left_out.get(grouping, {}).get(name, {})
            shown.add_row(escape(name[:NAME_WIDTH]), *_cells(generation_scores(rows)), *_unseen(own))
        unseen = (table.left_out_mean_frac(grouping, score) for score in ("mape_frac", "coverage_frac"))
        shown.add_row("[bold]all rows[/]", *_cells(generation_scores(table.predicted)), *map(percent, unseen))
        console.print(shown)
        console.print()
    print_reasons(console, table.reasons)


def _unseen(own: Mapping[str, float | int | None]) -> tuple[str, str]:
    return percent(own.get("mape_frac")), percent(own.get("coverage_frac"))


def _cells(scores: Scores) -> tuple[str, ...]:
    return (
        str(scores["num_rows"]), percent(scores["mape_frac"]), percent(scores["median_ape_frac"]),
        percent(scores["bias_frac"], signed=True), percent(scores["coverage_frac"]), percent(scores["mean_width_frac"]),
        percent(scores["winkler_frac"]),
    )  # fmt: skip
