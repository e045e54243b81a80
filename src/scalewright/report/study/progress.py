"""Progress of a running study: the point, its step, its expected time. Always on stderr."""

from __future__ import annotations

import time
from typing import Any

from rich.progress import MofNCompleteColumn, TextColumn

from scalewright import units
from scalewright.records import metric_names as names
from scalewright.records.events import Event
from scalewright.report.live_bar import LiveBar


class StudyProgress(LiveBar):
    """One line for each point that ends; on a terminal also a bar with the step of the point that runs."""

    def __init__(self, num_tries: int) -> None:
        super().__init__(TextColumn("points"), MofNCompleteColumn(), total=num_tries)
        self._done = 0
        self._num_tries = num_tries
        self._now = ""
        self._begun_s: float | None = None

    def begins(self, tried: Any, execution: Any) -> None:
        labels = ", ".join(f"{name} {value}" for name, value in tried.point.labels.items())
        expected = "" if execution.expected_s is None else f", {units.format(execution.expected_s, units.SECONDS)}"
        if execution.note:
            self.say(f"{labels}: {execution.note}")
        self._now, self._begun_s = labels, time.monotonic()
        if not self._live:
            self.say(f"{self._done + 1} of {self._num_tries}  {labels}: begins{expected and f'{expected} expected'}")
        self._show(f"{labels}{expected}")

    def see(self, events: list[Event]) -> None:
        steps = [event for event in events if event.name == names.STEP_TIME and event.rank == 0]
        if steps:
            self._show(f"{self._now}: step {steps[-1].step + 1}")

    def ends(self, ended: Any) -> None:
        self._done += 1
        labels = ", ".join(f"{name} {value}" for name, value in ended.tried.point.labels.items())
        took = "" if self._begun_s is None else f" in {units.format(time.monotonic() - self._begun_s, units.SECONDS)}"
        how = f"measured{took}" if ended.state == "finished" and took else ended.state
        self._begun_s = None
        reason = f": {ended.reason}" if ended.reason else ""
        self.say(f"{self._done} of {self._num_tries}  {labels}: {how}{reason}")
        self._bar.update(self._task, completed=self._done)

    def _show(self, text: str) -> None:
        self._bar.update(self._task, description=text)
