"""Two results of a study side by side, in the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape

from scalewright import units
from scalewright.report.console import plain_table
from scalewright.report.study.marks import MARKS
from scalewright.report.study.marks import TITLE as MARK

_KEYS = {"before": "doubts_first", "after": "doubts_second"}


def print_diff(console: Console, diff: dict[str, Any]) -> None:
    """A row for each point. The verdict is a word, so that it can be read without colour."""
    rows = diff["differences"]
    counts = {word: sum(row["verdict"] == word for row in rows) for word in ("slower", "faster", "same")}
    console.print(f"{diff['study']}: " + ", ".join(f"{count} {word}" for word, count in counts.items()))
    marked = any(row["doubts_first"] or row["doubts_second"] for row in rows)
    titles = ("point", "before", "after", "ratio", "95 % interval", "verdict", *((MARK,) if marked else ()))
    table = plain_table(*titles, right=("before", "after", "ratio"), gap=1)
    for row in rows:
        labels = ", ".join(row["labels"].values())
        if row["ratio_frac"] is None:
            table.add_row(escape(labels), "-", "-", "-", "-", row["verdict"], *(("",) if marked else ()))
            continue
        low, high = row["interval_frac"]
        table.add_row(
            escape(labels), units.format(row["first_s"], units.SECONDS), units.format(row["second_s"], units.SECONDS),
            f"{row['ratio_frac']:.3f}", f"{low:.3f} to {high:.3f}", row["verdict"],
            *((_marks(row),) if marked else ()),
        )  # fmt: skip
    console.print(table)
    for when in ("before", "after"):
        for sort, letter in MARKS.items():
            texts = [doubt["text"] for row in rows for doubt in row[_KEYS[when]] if doubt["sort"] == sort]
            if texts:
                console.print(f"{letter}, {when}: {escape(texts[0])}")


def _marks(row: dict[str, Any]) -> str:
    """Letters of the doubts about the figures before and after, separated by a slash."""
    sides = [
        "".join(letter for sort, letter in MARKS.items() if any(doubt["sort"] == sort for doubt in row[key]))
        for key in _KEYS.values()
    ]
    return "/".join(side or "-" for side in sides) if any(sides) else ""
