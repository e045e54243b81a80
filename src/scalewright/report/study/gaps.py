"""Points against the fastest one, term by term: a table in the terminal, and the rows of the page's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from scalewright import units
from scalewright.records.study_report import GapShown
from scalewright.report.console import plain_table

MOST_COLUMNS = 5
LEAST_SHOWN_FRAC = 0.005
"""Terms below this share of every step have no row in the terminal."""
NUM_COLOURS = 8
"""Of bars, as gaps.css has them."""
STEP, OTHERS = "step", "all others"
NOT_EXPLAINED = "not explained"


def groups_of(gaps: Sequence[GapShown]) -> dict[str, list[GapShown]]:
    """Gaps against the same point, fastest first."""
    groups: dict[str, list[GapShown]] = {}
    for gap in gaps:
        if gap.terms:
            groups.setdefault(gap.fastest, []).append(gap)
    return groups


def terms_of(group: Sequence[GapShown]) -> dict[str, list[float]]:
    """Seconds of each term: of the fastest point, then of the others; the largest first."""
    names = dict.fromkeys(term.name for gap in group for term in gap.terms)
    rows = {
        name: [
            max((term.fastest_s for gap in group for term in gap.terms if term.name == name), default=0.0),
            *(next((term.own_s for term in gap.terms if term.name == name), 0.0) for gap in group),
        ]
        for name in names
    }
    return dict(sorted(rows.items(), key=lambda row: -max(row[1])))


def print_gaps(console: Console, gaps: Sequence[GapShown]) -> None:
    for group in groups_of(gaps).values():
        _print_group(console, group[:MOST_COLUMNS])
        if len(group) > MOST_COLUMNS:
            console.print(f"{len(group) - MOST_COLUMNS} more: see --json")


def _print_group(console: Console, group: Sequence[GapShown]) -> None:
    labels = [group[0].fastest_label, *(gap.label for gap in group)]
    where = f" ({group[0].where})" if group[0].where else ""
    table = plain_table(
        "term", *labels, title=f"where a step goes, {_origin(group)}{where}", right=tuple(labels), gap=1
    )
    whole = [group[0].fastest_step_time_s, *(gap.step_time_s for gap in group)]
    for name, values in terms_of(group).items():
        if any(value >= LEAST_SHOWN_FRAC * total for value, total in zip(values, whole, strict=True)):
            table.add_row(escape(name), *(units.format(value, units.SECONDS) for value in values))
    table.add_row(STEP, *(units.format(value, units.SECONDS) for value in whole))
    table.add_row("gap", "", *(units.format(gap.step_time_s - gap.fastest_step_time_s, units.SECONDS) for gap in group))
    table.add_row(NOT_EXPLAINED, "", *(_not_explained(gap) for gap in group))
    console.print()
    console.print(table)


def _origin(group: Sequence[GapShown]) -> str:
    kinds = dict.fromkeys(gap.terms_origin for gap in group)
    return " and ".join(kinds)


def _not_explained(gap: GapShown) -> str:
    return "-" if gap.explained_frac is None else f"{round(1.0 - gap.explained_frac, 2) + 0.0:.0%}"  # never -0%


def _with_colours(table: dict[str, list[float]]) -> dict[str, list[float]]:
    """The largest terms, then all others together: no colour of a bar has two meanings."""
    if len(table) <= NUM_COLOURS:
        return table
    named, rest = list(table.items())[: NUM_COLOURS - 1], list(table.values())[NUM_COLOURS - 1 :]
    return {**dict(named), OTHERS: [sum(values) for values in zip(*rest, strict=True)]}


def page_groups(gaps: Sequence[GapShown]) -> Iterator[dict[str, Any]]:
    """Rows of the page: one bar and its terms for each point."""
    for group in groups_of(gaps).values():
        table = terms_of(group)
        drawn = _with_colours(table)
        whole = [group[0].fastest_step_time_s, *(gap.step_time_s for gap in group)]
        labels = [group[0].fastest_label, *(gap.label for gap in group)]
        longest = max(whole)
        yield {
            "where": group[0].where,
            "origin": _origin(group),
            "labels": labels,
            "terms": list(drawn),
            "bars": [
                {
                    "label": label,
                    "time": units.format(whole[at], units.SECONDS),
                    "parts": [
                        {"name": name, "place": place, "width": f"{100.0 * values[at] / longest:.2f}",
                         "words": f"{name}: {units.format(values[at], units.SECONDS)}"}
                        for place, (name, values) in enumerate(drawn.items()) if values[at] > 0.0
                    ],
                }
                for at, label in enumerate(labels)
            ],
            "rows": [
                {"name": name, "cells": [units.format(value, units.SECONDS) for value in values]}
                for name, values in table.items()
            ],
            "step": [units.format(value, units.SECONDS) for value in whole],
            "not_explained": ["", *(_not_explained(gap) for gap in group)],
        }  # fmt: skip
