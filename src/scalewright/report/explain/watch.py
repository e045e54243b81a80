"""Watch a live run: explain it again and again, and print what is new."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from scalewright import units
from scalewright.observe.evidence.series import step_series
from scalewright.observe.findings.rule import Explained
from scalewright.report.explain.build import explained_paths, has_ended
from scalewright.report.explain.document import Explanation
from scalewright.report.explain.terminal import print_finding

INTERVAL_S = 5.0
BUSY_FACTOR = 10.0
"""Reading may take a tenth of the time."""


def watch(
    console: Console, paths: Sequence[Path], *, sleep: Callable[[float], None] = time.sleep, most: int | None = None
) -> Explanation:
    """Print each finding when it appears or becomes more severe, and a line when it goes. Ends with the run.

    `most`: rounds at most; None: until the run has ended.
    """
    shown: dict[str, str] = {}
    num_rounds = 0
    while True:
        started_s = time.monotonic()
        explanation = explained_paths(paths)
        _print_round(console, explanation, shown)
        num_rounds += 1
        if has_ended(explanation.evidence) or (most is not None and num_rounds >= most):
            return explanation
        sleep(max(INTERVAL_S, BUSY_FACTOR * (time.monotonic() - started_s)))


def _print_round(console: Console, explanation: Explanation, shown: dict[str, str]) -> None:
    series = step_series(explanation.evidence)
    rate = "" if series.median_s is None else f", median {units.format(series.median_s, units.SECONDS)}"
    last = f"step {series.numbers[-1]}" if series.numbers else "no step yet"
    loud = {one.rule.id: one for one in explanation.findings if one.severity != "info"}
    console.print(f"{_now()} {last}{rate}, {len(loud)} warnings or errors", markup=False)
    for name, one in loud.items():
        if shown.get(name) != one.severity:
            print_finding(console, one, number=0)
    for name in [name for name in shown if name not in loud]:
        console.print(f"{_now()} no longer: {name}", markup=False)
    shown.clear()
    shown.update(_severities(loud))


def _severities(loud: dict[str, Explained]) -> dict[str, str]:
    return {name: one.severity for name, one in loud.items()}


def _now() -> str:
    return datetime.now(UTC).strftime("%H:%M:%S")
