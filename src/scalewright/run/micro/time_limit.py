"""An end to what cannot be asked to stop, such as a compiler at work."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

SHORTEST_S = 0.1


class TooLong(BaseException):
    """It was still going on when its time was over; no Exception, which what is interrupted would take for its own."""


@contextlib.contextmanager
def at_most(limit_s: float) -> Iterator[None]:
    """Interrupt what is inside once its time is over. Only in the main thread, where Python handles signals."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, max(limit_s, SHORTEST_S))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
