"""Metric events of a rank: cheap to write, safe from several threads, only whole lines on disk."""

from __future__ import annotations

import threading
import time

from scalewright.records.events import EventLine, EventWriter
from scalewright.records.run_directory import RunDirectory
from scalewright.run.world import World

FLUSH_EVERY_S = 1.0
MAX_BUFFERED_LINES = 512


class MetricWriter:
    """Writes events of one rank. Lines are buffered in memory and reach the file within a second, or on `flush`."""

    def __init__(self, directory: RunDirectory, world: World) -> None:
        self._line = EventLine(job=world.job_id, rank=world.rank, host=world.host)
        self._file = EventWriter(directory.rank_events(world.rank))
        self._lines: list[str] = []
        self._lock = threading.RLock()
        self._flushed_s = time.monotonic()
        self._closed = False
        self.cpu_time_s = 0.0
        """CPU time spent on writing so far, for the benchmark of what measuring costs."""

    def write(self, *, step: int, name: str, value: float, unit: str) -> None:
        self._add(step=step, name=name, value=value, unit=unit, detail="")

    def event(self, *, step: int, name: str, detail: str, value: float = 1.0, unit: str = "1") -> None:
        """Write something that happened, in words, to disk at once."""
        self._add(step=step, name=name, value=value, unit=unit, detail=detail)
        self.flush()

    def _add(self, *, step: int, name: str, value: float, unit: str, detail: str) -> None:
        started_s = time.thread_time()
        with self._lock:
            if self._closed:
                return
            self._lines.append(
                self._line.format(time_s=time.time(), step=step, name=name, value=value, unit=unit, detail=detail)
            )
            is_due = time.monotonic() - self._flushed_s >= FLUSH_EVERY_S
            if is_due or len(self._lines) >= MAX_BUFFERED_LINES:
                self.flush()
            self.cpu_time_s += time.thread_time() - started_s

    def flush(self) -> None:
        with self._lock:
            if self._lines and not self._closed:
                lines, self._lines = self._lines, []
                self._file.append("".join(lines))
            self._flushed_s = time.monotonic()

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self.flush()
                self._closed = True
                self._file.close()
