"""A run with rollouts in the terminal, within 80 columns."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from scalewright import units
from scalewright.records.hybrid_report import HybridShown, RoleUse
from scalewright.report.console import plain_table
from scalewright.report.hybrid.figures import kind_title, seconds, settings_sentence, token_rows, wait_title

MAX_NAMED = 2
"""Largest reasons and kinds that a row names."""
LEAST_FRAC = 0.005
"""Smaller reasons are not named."""


def print_hybrid(console: Console, shown: HybridShown) -> None:
    console.print()
    console.print(escape(settings_sentence(shown.settings)))
    if shown.roles:
        _print_roles(console, shown)
    console.print()
    rows = [
        f"{num:,} {name}" + ("" if share in (None, 1.0) else f" ({share:.1%})")
        for name, num, share in token_rows(shown)
    ]
    console.print(f"tokens: {', '.join(rows)}")
    _print_syncs(console, shown)
    if shown.sandbox_outcomes:
        outcomes = ", ".join(f"{count:,} {name}" for name, count in shown.sandbox_outcomes.items())
        console.print(f"rewards by outcome of the sandbox: {escape(outcomes)}")
    console.print()
    for finding in shown.findings:
        console.print(f"finding: {escape(finding)}")


def _print_roles(console: Console, shown: HybridShown) -> None:
    table = plain_table("role", "ranks", "waiting", "waits for", "works on", right=("ranks", "waiting"))
    for use in shown.roles:
        table.add_row(use.role, f"{use.num_ranks:,}", f"{use.idle_frac:.1%}", escape(_waits(use)), _work(use))
    console.print()
    console.print(table)


def _waits(use: RoleUse) -> str:
    shares = [(reason, value / use.present_s) for reason, value in list(use.waits_s.items())[:MAX_NAMED]]
    return ", ".join(f"{wait_title(reason)} {share:.0%}" for reason, share in shares if share >= LEAST_FRAC)


def _work(use: RoleUse) -> str:
    named = [(kind, value) for kind, value in use.seconds_by_kind.items() if kind != "idle"][:MAX_NAMED]
    return ", ".join(f"{kind_title(kind)} {value / use.present_s:.0%}" for kind, value in named)


def _print_syncs(console: Console, shown: HybridShown) -> None:
    if not shown.syncs:
        return
    numbers = ("number", "size", "time", "rate")
    table = plain_table("weight sync", *numbers, right=numbers)
    for sync in shown.syncs:
        table.add_row(
            escape(sync.way), f"{sync.count:,}", units.format(sync.bytes / sync.count, units.BYTES),
            seconds(sync.seconds / sync.count), units.format(sync.bytes_per_s, units.BYTES_PER_S),
        )  # fmt: skip
    console.print()
    console.print(table)
