"""Prefetcher: makes the coming batches in a thread, so that the step does not wait for them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class Prefetcher(Generic[T]):
    """Takes values from `source` in a thread, at most `num_ahead` before they are used.

    An error of the source is raised in the thread that calls `next`.
    """

    def __init__(self, source: Iterable[T], *, num_ahead: int) -> None:
        self._source = source
        self._queue: queue.Queue[T | BaseException] = queue.Queue(maxsize=num_ahead)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._fill, daemon=True, name="loader")
        self._thread.start()

    def next(self) -> T:
        value = self._queue.get()
        if isinstance(value, BaseException):
            raise value
        return value

    def close(self) -> None:
        self._stop.set()
        while self._thread.is_alive():
            try:  # let a blocked put finish
                self._queue.get_nowait()
            except queue.Empty:
                self._thread.join(timeout=0.01)

    def _fill(self) -> None:
        try:
            for value in self._source:
                if self._stop.is_set():
                    return
                self._queue.put(value)
        except Exception as error:  # raised again in the thread that calls next
            self._queue.put(error)
