"""Progress of a study in the terminal: once, or repeatedly until it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from scalewright import units
from scalewright.report.console import answer_console, bar_mark, plain_table, rate_words

EVERY_S = 2.0
BAR_WIDTH = 10
MAX_ROWS = 40
ORDER = ("running", "queued", "failed", "interrupted", "waiting", "skipped", "finished")


def show_status(look: Callable[[], dict[str, Any]], *, watch: bool, every_s: float = EVERY_S) -> None:
    console = answer_console()
    status = look()
    if not watch or not console.is_terminal:
        console.print(_drawn(status, bar_mark(console)))
        while watch and status["is_running"]:  # without a terminal: one line at a time
            time.sleep(every_s)
            status = look()
            console.print(_counts(status))
        return
    with Live(_drawn(status, bar_mark(console)), console=console, auto_refresh=False) as live:
        while status["is_running"]:
            time.sleep(every_s)
            status = look()
            live.update(_drawn(status, bar_mark(console)), refresh=True)


def _counts(status: dict[str, Any]) -> str:
    counts = {state: sum(one["state"] == state for one in status["tries"]) for state in ORDER}
    words = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    left = status["left_s"]
    eta = (
        "" if left is None or not counts["running"] + counts["queued"] + counts["waiting"] else f"; {_time(left)} left"
    )
    at = [f"; {', '.join(one['labels'].values())}: {one['done']} of {one['total']} steps" for one in status["tries"]
          if one["state"] == "running" and one["total"]]  # fmt: skip
    alive = "" if status["is_running"] or not counts["waiting"] else "; it is not running"
    return f"{status['study']}: {words}{''.join(at[:1])}{eta}{alive}"


def _drawn(status: dict[str, Any], mark: str) -> RenderableType:
    table = plain_table("point", "", "state", "progress", "rate", "took", right=("rate", "took"), gap=1)
    rows = sorted(status["tries"], key=lambda one: ORDER.index(one["state"]))
    for one in rows[:MAX_ROWS]:
        share = one["done"] / one["total"] if one["total"] else 0.0
        bar = mark * round(share * BAR_WIDTH)
        progress = one["reason"] or (f"{bar:<{BAR_WIDTH}} {one['done']}/{one['total']}" if one["total"] else "")
        rate = "-" if one["rate"] is None else rate_words(one["rate"], "").strip() + "/s"
        repeat = f"#{one['repeat'] + 1}" if one["repeat"] else ""
        table.add_row(
            Text(", ".join(one["labels"].values())), repeat, one["state"], Text(progress), rate, _time(one["took_s"])
        )
    more = [] if len(rows) <= MAX_ROWS else [Text(f"and {len(rows) - MAX_ROWS} more")]
    return Group(Text(_counts(status)), table, *more)


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else units.format(seconds, units.SECONDS)
