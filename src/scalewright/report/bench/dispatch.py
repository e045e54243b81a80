"""Table of the dispatch benchmark: time per launch by operation and mode."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from scalewright import units
from scalewright.records.measurements import Measurements
from scalewright.report.bench.lines import print_conditions, spread_text
from scalewright.report.console import plain_table

MEANING = {
    "add_and_wait": "one launch, then waiting for it",
    "fused": "one fused kernel, guards included",
}


def print_dispatch(console: Console, measurements: Measurements) -> None:
    columns = ("operation", "mode", "per launch", "+-", "")
    table = plain_table(*columns, right=("per launch", "+-"))
    for row in measurements.rows:
        table.add_row(
            escape(str(row["op"])), escape(str(row["mode"])), units.format(row["time_s"], units.SECONDS),
            spread_text(row), MEANING.get(str(row["op"]), ""),
        )  # fmt: skip
    console.print(table)
    if "compile_s" in measurements.summary:
        took = units.format(measurements.summary["compile_s"], units.SECONDS)
        console.print(f"compiling took {took}", highlight=False)
    print_conditions(console, measurements)
