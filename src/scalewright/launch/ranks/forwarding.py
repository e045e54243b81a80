"""Signals that this process gets while ranks run under it: handed to whoever knows where they go."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


@contextlib.contextmanager
def signals_to(receive: Callable[[int], object]) -> Iterator[None]:
    """While open, `receive` is called with each signal that asks a run to stop; afterwards all is as before."""

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        receive(number)

    before: dict[int, Any] = {number: signal.signal(number, handle) for number in FORWARDED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
