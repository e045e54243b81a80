"""Signals that end a start of a cluster: they become exceptions, so that no daemon is left behind."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

ENDING = (signal.SIGTERM, signal.SIGHUP)
SIGNAL_CODE = 128
"""As shells count: 143 for TERM."""


def ended_by_exceptions() -> contextlib.AbstractContextManager[None]:
    """While open, TERM and HUP raise SystemExit in the main thread."""

    def leave(number: int, frame: FrameType | None) -> None:
        del frame
        raise SystemExit(SIGNAL_CODE + number)

    return _handling(leave)


def ignored_signals() -> contextlib.AbstractContextManager[None]:
    """While open, a second TERM or HUP does not stop the cleaning up."""
    return _handling(signal.SIG_IGN)


@contextlib.contextmanager
def _handling(handler: Callable[[int, FrameType | None], Any] | signal.Handlers) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    before = {number: signal.signal(number, handler) for number in ENDING}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
