"""A time limit for work that cannot be asked to stop, such as a compiler."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from types import FrameType

SHORTEST_S = 0.1
REPEAT_S = 0.5
"""An interruption that arrives in a destructor or a callback is lost, because Python ignores exceptions there. So it
is repeated until the work ends."""


class TooLong(BaseException):
    """The time limit was reached. Not an Exception: the interrupted code could catch that as its own."""


@contextlib.contextmanager
def at_most(limit_s: float) -> Iterator[None]:
    """Interrupt the body of the `with` after `limit_s`. Only in the main thread, where Python handles signals."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise TooLong

    limit_s = max(limit_s, SHORTEST_S)
    ends_s = time.monotonic() + limit_s
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, limit_s, REPEAT_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
    finally:
        # Once more: the timer may have interrupted the line above.
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    if time.monotonic() > ends_s:
        raise TooLong
