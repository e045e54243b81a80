"""Signals that ask a run to stop: noted when they come, acted on between two steps."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any

STOP_SIGNALS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """While open, notes USR1 (the scheduler's warning), TERM and INT; the second INT ends the process at once.

    Only the main thread may open it.
    """

    def __init__(self) -> None:
        self._requested: str | None = None
        self._before: dict[int, Any] = {}

    @property
    def requested(self) -> str | None:
        """Name of the first signal that came, such as SIGTERM; None: go on."""
        return self._requested

    def __enter__(self) -> StopSignals:
        for number in STOP_SIGNALS:
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._requested == "SIGINT" and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self._requested is None:
            self._requested = signal.Signals(number).name
