"""An explanation in the terminal: findings first, each with its evidence, what to do, and what that gains."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from scalewright import units
from scalewright.observe.evidence.facts import Spot
from scalewright.observe.evidence.series import ranks_in_words, step_series
from scalewright.observe.findings.rule import Explained, FindingRule
from scalewright.report.console import plain_table
from scalewright.report.explain.breakdown import print_breakdown
from scalewright.report.explain.document import Explanation

STYLES = {"info": "cyan", "warning": "yellow", "error": "red"}
MOST_SPOTS = 3
MOST_NOTES = 4
INDENT = "      "


def print_explanation(console: Console, explanation: Explanation, *, shows_all: bool = False) -> None:
    """Findings, then what was read and what is missing. Notes beyond the first few need `shows_all`."""
    _print_heading(console, explanation)
    loud = [one for one in explanation.findings if one.severity != "info"]
    quiet = [one for one in explanation.findings if one.severity == "info"]
    if not loud:
        console.print("No warnings and no errors." if explanation.evidence.steps else _nothing(explanation))
    for number, one in enumerate(loud, start=1):
        console.print()
        print_finding(console, one, number=number)
    for one in quiet if shows_all else quiet[:MOST_NOTES]:
        console.print()
        print_finding(console, one, number=0)
    if len(quiet) > MOST_NOTES and not shows_all:
        console.print(f"\n{len(quiet) - MOST_NOTES} more notes: see --json")
    if (breakdown := explanation.breakdown) is not None:
        print_breakdown(console, breakdown)
    _print_missing(console, explanation)


def _nothing(explanation: Explanation) -> str:
    if explanation.findings:
        return "No warnings and no errors in what was read."
    return "Not enough evidence to say anything about this run."


def _print_heading(console: Console, explanation: Explanation) -> None:
    series = step_series(explanation.evidence)
    parts = []
    if series.numbers:
        parts.append(f"{len(series.numbers):,} steps of {ranks_in_words(explanation.evidence, series)}")
        if series.median_s is not None:
            parts.append(f"median {units.format(series.median_s, units.SECONDS)}")
    ends = [one for one in explanation.evidence.happenings if one.kind in ("finished", "exited")]
    if ends:
        parts.append(ends[-1].message or ends[-1].kind)
    console.print(f"[bold]{escape(explanation.title)}[/]: {escape(', '.join(parts) or 'no steps')}")
    read = [
        f"{len(sources):,} {kind}" for kind, sources in explanation.kinds.items() if kind not in ("empty", "missing")
    ]
    _print_wrapped(console, f"read: {', '.join(read) or 'nothing'}", lead="")
    for source in explanation.evidence.sources:
        if source.problem:
            _print_wrapped(console, f"not understood: {_short(source.file)}: {source.problem}", lead="")


def print_finding(console: Console, one: Explained, *, number: int) -> None:
    seen, style = one.seen, STYLES[one.severity]
    count = f"{number}. " if number else ""
    console.print(f"{count}[{style}]{one.severity}[/] [bold]{escape(one.rule.title)}[/] [dim]\\[{one.rule.id}][/]")
    _print_wrapped(console, f"{seen.message[:1].upper()}{seen.message[1:]}.", lead="   ")
    for spot in seen.spots[:MOST_SPOTS]:
        _print_spot(console, spot)
    if len(seen.spots) > MOST_SPOTS:
        console.print(f"   and {len(seen.spots) - MOST_SPOTS} more places: see --json", markup=False)
    if seen.certainty != "certain":
        _print_wrapped(console, f"sure: {seen.certainty}", lead="   ")
    if one.because_of:
        _print_wrapped(console, f"because of: {one.because_of}", lead="   ")
    _print_wrapped(console, f"do: {seen.next_step}", lead="   ")
    if seen.gain is not None:
        _print_wrapped(console, f"gain: {gain_words(one)}", lead="   ")
        if seen.gain.command:
            console.print(f"   try: {seen.gain.command}", markup=False, soft_wrap=True)


def gain_words(one: Explained) -> str:
    gain = one.seen.gain
    assert gain is not None
    saved = gain.step_time_frac
    times = f", {1.0 / (1.0 - saved):.2f} times as fast" if 0.0 < saved < 0.99 else ""
    return f"{100.0 * saved:.0f} % of the time{times} ({gain.how})"


def _print_spot(console: Console, spot: Spot) -> None:
    place = f"{_short(spot.file)}:{spot.line}" if spot.line else _short(spot.file)
    console.print(f"   at {place}", markup=False, soft_wrap=True)
    if spot.text:
        room = max(console.width - len(INDENT) - 2, 20)
        text = "".join(c if c.isprintable() else "." for c in _interesting(spot.text.strip()))
        shown = text if len(text) <= room else f"{text[: room - 3]}..."
        console.print(f"{INDENT}| {shown}", markup=False, soft_wrap=True, no_wrap=True)


def _interesting(text: str) -> str:
    """An event of ours begins with its time, job and host: the step and the value come after them."""
    return f"...{text[at:]}" if text.startswith('{"time":') and (at := text.find('"step":')) > 0 else text


def _print_missing(console: Console, explanation: Explanation) -> None:
    if explanation.missing:
        console.print("\n[bold]More could be said with:[/]")
        for text in explanation.missing:
            _print_wrapped(console, text, lead="   ")
    for note in explanation.evidence.notes:
        _print_wrapped(console, f"note: {note}", lead="")


def _print_wrapped(console: Console, text: str, *, lead: str) -> None:
    width = max(console.width - len(lead), 30)
    words = "".join(c if c.isprintable() else "." for c in " ".join(text.split()))
    for line in textwrap.wrap(words, width, break_on_hyphens=False, break_long_words=False):
        console.print(f"{lead}{line}", markup=False, soft_wrap=True)


def _short(path: str) -> str:
    """Relative to the current folder where that is shorter."""
    try:
        relative = os.path.relpath(path)
    except ValueError:
        return path
    return relative if len(relative) < len(path) else path


def print_rules(console: Console, rules: Sequence[FindingRule]) -> None:
    table = plain_table("rule", "severity", "what it finds")
    for rule in rules:
        table.add_row(rule.id, rule.severity, escape(rule.title))
    console.print(table)
    console.print(f"\n{len(rules)} rules. Each has a page: scalewright explain --rule RULE")


def print_rule(console: Console, rule: FindingRule) -> None:
    console.print(f"[bold]{escape(rule.id)}[/] ({rule.severity}): {escape(rule.title)}", soft_wrap=True)
    for text in (rule.why, f"What helps: {rule.advice}", f"Source: {rule.source}"):
        console.print()
        _print_wrapped(console, text, lead="")
