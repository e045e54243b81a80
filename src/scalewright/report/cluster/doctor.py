"""The checks of `doctor` as tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from scalewright.here.inventory import Check
from scalewright.report.console import plain_table

COLOUR = {"ok": "green", "missing": "dim", "denied": "yellow", "broken": "red", "untested": "yellow"}


def print_checks(console: Console, checks: Sequence[Check]) -> None:
    for area in ("installed", "visible", "permitted", "sandbox", "untested"):
        table = plain_table("", "", "", title=area)
        for check in (c for c in checks if c.area == area):
            state = "" if area == "untested" else f"[{COLOUR[check.state]}]{check.state}[/]"
            table.add_row(escape(check.name), state, escape(check.detail))
        console.print(table)
        console.print()
