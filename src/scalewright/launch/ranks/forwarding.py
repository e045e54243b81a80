"""Signals from the launcher to its ranks.

How a stop travels (all steps are described in run/signals.py):

    Slurm -> job script (launch/script/parts.py: on_notice, on_term)
          -> launcher   (this file; launch/ranks/local.py, allocation.py and external.py choose what to send)
          -> ranks      (run/signals.py: a flag; run/saves.py: save after the step)
          -> exit code 75, and the job script requeues the job
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


@contextlib.contextmanager
def signals_to(receive: Callable[[int], object]) -> Iterator[None]:
    """While open, call `receive` with each signal that stops a run. Afterwards the old handlers are restored."""

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        receive(number)

    before: dict[int, Any] = {number: signal.signal(number, handle) for number in FORWARDED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
