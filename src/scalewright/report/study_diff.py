"""Two results of a study side by side, for people."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape

from scalewright import units
from scalewright.report.console import plain_table


def print_diff(console: Console, found: dict[str, Any]) -> None:
    """A row for each point; the verdict in a word, so that it is read without colour too."""
    rows = found["differences"]
    counts = {word: sum(row["verdict"] == word for row in rows) for word in ("slower", "faster", "same")}
    console.print(f"{found['study']}: " + ", ".join(f"{count} {word}" for word, count in counts.items()))
    table = plain_table(
        "point", "before", "after", "ratio", "95 % interval", "verdict", right=("before", "after", "ratio"), gap=1
    )
    for row in rows:
        labels = ", ".join(row["labels"].values())
        if row["ratio_frac"] is None:
            table.add_row(escape(labels), "-", "-", "-", "-", row["verdict"])
            continue
        low, high = row["interval_frac"]
        table.add_row(
            escape(labels), units.format(row["first_s"], units.SECONDS), units.format(row["second_s"], units.SECONDS),
            f"{row['ratio_frac']:.3f}", f"{low:.3f} to {high:.3f}", row["verdict"],
        )  # fmt: skip
    console.print(table)
