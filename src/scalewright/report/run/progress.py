"""Progress of a run: a live bar on a terminal, otherwise a line every ten seconds. Always on stderr."""

from __future__ import annotations

import time

from rich.progress import MofNCompleteColumn, TextColumn

from scalewright import units
from scalewright.records import metric_names as names
from scalewright.records.events import Event
from scalewright.report.console import rate_words
from scalewright.report.live_bar import LiveBar

LINE_EVERY_S = 10.0
SMOOTHING_FRAC = 0.2
"""Weight of the newest step in the smoothed step time, from which the remaining time follows."""


class RunProgress(LiveBar):
    """Shows steps, throughput, MFU, loss and the time that remains, from the events as they come."""

    def __init__(self, num_steps: int) -> None:
        super().__init__(TextColumn("step"), MofNCompleteColumn(), total=num_steps)
        self._num_steps = num_steps
        self._done = 0
        self._last: dict[str, float] = {}
        self._num_seen = 0
        self._step_s: float | None = None
        self._line_s = time.monotonic()

    def see(self, events: list[Event]) -> None:
        for event in events:
            if event.value is None or event.step < 0:
                continue
            self._last[event.name] = event.value
            self._done = max(self._done, min(event.step + 1, self._num_steps))
            if event.name == names.STEP_TIME and event.rank == 0:
                self._num_seen += 1
                if self._num_seen == 1:
                    continue  # it compiles and allocates, so its time is not typical
                before = event.value if self._step_s is None else self._step_s
                self._step_s = before + SMOOTHING_FRAC * (event.value - before)
        if self._live:
            self._bar.update(self._task, completed=self._done, description=self._words())
        elif self._done and events and time.monotonic() - self._line_s >= LINE_EVERY_S:
            self._line_s = time.monotonic()
            self.say(f"step {self._done} of {self._num_steps}: {self._words()}")

    def _words(self) -> str:
        parts = []
        if names.TOKENS_PER_S in self._last:
            parts.append(rate_words(self._last[names.TOKENS_PER_S], "tokens/s"))
        if names.IMAGES_PER_S in self._last:
            parts.append(rate_words(self._last[names.IMAGES_PER_S], "images/s"))
        if names.MFU in self._last:
            parts.append(f"MFU {self._last[names.MFU]:.1%}")
        if names.LOSS in self._last:
            parts.append(f"loss {self._last[names.LOSS]:.3f}")
        if self._step_s is not None:
            left_s = self._step_s * (self._num_steps - self._done)
            parts.append(f"{units.format(left_s, units.SECONDS)} left")
        return ", ".join(parts) or "starting"


class NoteProgress(LiveBar):
    """Shows which part of a benchmark runs and the share that is done, from its events."""

    def __init__(self, title: str) -> None:
        super().__init__(TextColumn(title), total=1.0)
        self._line_s = time.monotonic()

    def see(self, events: list[Event]) -> None:
        parts = [event for event in events if event.name == names.EVENT_PART and event.rank == 0]
        if not parts:
            return
        if self._live:
            self._bar.update(self._task, completed=parts[-1].value or 0.0, description=parts[-1].detail)
        elif time.monotonic() - self._line_s >= LINE_EVERY_S:
            self._line_s = time.monotonic()
            self.say(f"{parts[-1].value or 0.0:.0%}: {parts[-1].detail}")
