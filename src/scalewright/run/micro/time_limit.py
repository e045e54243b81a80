"""A time limit for work that cannot be asked to stop, such as a compiler."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

SHORTEST_S = 0.1


class TooLong(BaseException):
    """The time limit was reached. Not an Exception: the interrupted code could catch that as its own."""


@contextlib.contextmanager
def at_most(limit_s: float) -> Iterator[None]:
    """Interrupt the body of the `with` after `limit_s`. Only in the main thread, where Python handles signals."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, max(limit_s, SHORTEST_S))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
