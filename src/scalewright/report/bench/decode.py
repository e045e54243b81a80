"""Tables of the decode benchmark: a step by batch and context, and prompts by their length."""

from __future__ import annotations

from rich.console import Console

from scalewright import units
from scalewright.records.measurements import Measurements
from scalewright.report.bench.lines import print_conditions, spread_text
from scalewright.report.console import plain_table


def print_decode(console: Console, measurements: Measurements) -> None:
    columns = ("batch", "context", "step", "tokens/s", "read", "spread")
    table = plain_table("precision", *columns, right=columns)
    for row in measurements.rows:
        if row["phase"] == "decode":
            table.add_row(
                row["precision"],
                str(row["batch"]),
                f"{row['context']:.0f}",
                units.format(row["time_s"], units.SECONDS),
                f"{row['tokens_per_s']:,.0f}",
                units.format(row["bytes_per_s"], units.BYTES_PER_S),
                spread_text(row),
            )
    console.print(table)
    prompts = plain_table("precision", "prompt", "time", "tokens/s", right=("prompt", "time", "tokens/s"))
    for row in measurements.rows:
        if row["phase"] == "prefill":
            prompts.add_row(
                row["precision"], str(row["num_tokens"]), units.format(row["time_s"], units.SECONDS),
                f"{row['tokens_per_s']:,.0f}",
            )  # fmt: skip
    console.print()
    console.print(prompts)
    print_conditions(console, measurements)
