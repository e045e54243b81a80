"""Two runs side by side: in the terminal, and as a document (run-comparison/1)."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from scalewright import units
from scalewright.observe.compare import RunComparison, Suspect, compare_runs
from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.readers.reading import read_evidence
from scalewright.records.documents import document
from scalewright.report.console import plain_table

KIND = "run-comparison"
MOST_SUSPECTS = 8


def two_runs(paths: Sequence[Path]) -> tuple[Evidence, Evidence] | None:
    """What each of two paths says, if each is a run of its own: both have step times, of the same ranks.

    Files of one run, such as a log and a trace, or logs of two ranks, are none.
    """
    if len(paths) != 2 or not all(path.exists() for path in paths):
        return None
    first, second = (read_evidence([path]) for path in paths)
    if bool(first.run_dir) != bool(second.run_dir):
        return None
    if first.run_dir and second.run_dir and first.run_dir != second.run_dir:
        return first, second
    ranks = [{one.rank for one in side.steps if one.time_s is not None} for side in (first, second)]
    return (first, second) if ranks[0] & ranks[1] else None


def compared(paths: Sequence[Path], first: Evidence, second: Evidence) -> RunComparison:
    names = [path.resolve().name for path in paths]
    if names[0] == names[1]:
        names = [str(path) for path in paths]
    return compare_runs(first, second, names=(names[0], names[1]))


def is_worse(comparison: RunComparison) -> bool:
    """Whether the second run is slower, or one ended badly."""
    return comparison.gap == "slower" or "ended badly" in comparison.verdict


def comparison_document(comparison: RunComparison) -> dict[str, Any]:
    body = {
        "first": comparison.first, "second": comparison.second, "verdict": comparison.verdict,
        "certainty": comparison.certainty, "first_step_time_s": comparison.first_step_s,
        "second_step_time_s": comparison.second_step_s, "gap": comparison.gap, "gap_frac": comparison.gap_frac,
        "is_at_equal_tokens": comparison.per_token,
        "terms": [{**asdict(one), "gap_s": one.gap_s} for one in comparison.terms],
        "explanations": [
            {"words": one.words, "explained_frac": one.explained_frac, "why": one.why, "certainty": one.certainty,
             "rule": one.finding.rule.id if one.finding else ""}
            for one in comparison.suspects
        ],
        "differences": [asdict(one) for one in comparison.differences],
        "notes": list(comparison.notes),
    }  # fmt: skip
    return document(KIND, body)


def print_comparison(console: Console, comparison: RunComparison) -> None:
    console.print(f"[bold]{escape(comparison.second)}[/] against [bold]{escape(comparison.first)}[/]")
    _wrapped(console, f"{comparison.verdict} (certainty: {comparison.certainty})")
    _print_terms(console, comparison)
    known = [one for one in comparison.suspects if one.explained_frac is None or one.explained_frac > 0]
    if known:
        console.print("\n[bold]What can explain it, best first:[/]")
        for number, one in enumerate(known[:MOST_SUSPECTS], start=1):
            _wrapped(console, f"{number}. {_suspect_words(one)}", lead="   ")
        if len(known) > MOST_SUSPECTS:
            console.print(f"   and {len(known) - MOST_SUSPECTS} more: see --json")
    rest = len(comparison.suspects) - len(known)
    if rest:
        console.print(f"{rest} more difference{'' if rest == 1 else 's'} cannot explain it: see --json")
    if not comparison.differences:
        console.print("No setting, variable, version or placement that was read differs.")
    for note in comparison.notes:
        _wrapped(console, f"note: {note}")


def _print_terms(console: Console, comparison: RunComparison) -> None:
    first_s, second_s = comparison.first_step_s, comparison.second_step_s
    if first_s is None or second_s is None:
        return
    table = plain_table("term", "first", "second", "share of the gap", right=("first", "second", "share of the gap"))
    table.add_row("step", units.format(first_s, units.SECONDS), units.format(second_s, units.SECONDS), "")
    for one in comparison.terms:
        share = f"{one.gap_frac:.0%}" if comparison.gap in ("slower", "faster") else ""
        table.add_row(
            escape(one.name), units.format(one.first_s, units.SECONDS), units.format(one.second_s, units.SECONDS), share
        )
    console.print()
    console.print(table)


def _suspect_words(one: Suspect) -> str:
    share = "" if one.explained_frac is None else f": up to {one.explained_frac:.0%} of the gap"
    return f"{one.words}{share} ({one.why})"


def _wrapped(console: Console, text: str, *, lead: str = "") -> None:
    words = "".join(c if c.isprintable() else "." for c in " ".join(text.split()))
    for line in textwrap.wrap(words, max(console.width - len(lead), 30), break_on_hyphens=False):
        console.print(f"{lead}{line}", markup=False, soft_wrap=True)
