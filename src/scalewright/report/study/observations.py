"""Published observations in the terminal: each with what is predicted, what was measured, and whether it holds."""

from __future__ import annotations

import textwrap

from rich.console import Console
from rich.markup import escape

from scalewright.records.observations import MinimumRow, ObservationRow, ObservationTable
from scalewright.report.console import plain_table

STYLES = {"holds": "green", "does not hold": "red", "cannot say": "dim"}


def print_observations(console: Console, table: ObservationTable) -> None:
    """The observations, then the fewest devices of the stages by partition and mode."""
    console.print()
    console.print(f"[bold]{escape(table.title)}[/]")
    for row in table.rows:
        statement, *others = lines_of(row, table.system)
        console.print(f"[{STYLES[row.verdict]}]{row.verdict}[/]: {escape(statement)}")
        for line in others:
            filled = textwrap.fill(line, console.width, initial_indent="  ", subsequent_indent="    ")
            console.print(escape(filled), highlight=False)
    print_minima(console, table)


def lines_of(row: ObservationRow, system: str) -> list[str]:
    """The statement with its stage, then one line for each origin."""
    lines = [f"{row.stage}: {row.text}"]
    if row.published:
        lines.append(f"published: {row.published}")
    has_both = row.measured is not None
    if row.assumption:
        verdict = f" ({row.predicted.verdict})" if has_both else ""
        lines += [f"predicted for {system}: {row.predicted.text}{verdict}", f"assumed: {row.assumption}"]
    if row.predicted.why:
        lines.append(f"why they differ: {row.predicted.why}")
    if row.measured is not None:
        lines.append(f"measured here: {row.measured.text} ({row.measured.verdict})")
    elif row.not_measured and row.assumption:
        lines.append(f"not tested here: {row.not_measured}")
    return lines


def print_minima(console: Console, table: ObservationTable) -> None:
    if not table.minima:
        return
    partitions = list(table.minima[0].num_gpus)
    titles = ["stage", "model", "mode", *partitions, "published"]
    rows = plain_table(
        *titles, title=f"fewest GPUs on the partitions of {table.system}", right=(*partitions, "published")
    )
    for row in table.minima:
        cells = [row.stage, row.model, row.mode, *(_count(row, partition) for partition in partitions)]
        rows.add_row(*map(escape, (*cells, "-" if row.published is None else str(row.published))))
    console.print()
    console.print(rows)


def _count(row: MinimumRow, partition: str) -> str:
    num = row.num_gpus.get(partition)
    return "-" if num is None else str(num)
