"""Share of the time in which a device computes: as the GPU's driver counts it, or the CPU time of this thread."""

from __future__ import annotations

import os
import threading
import time
from typing import Self

from scalewright.records import metric_names as names
from scalewright.run.sensors import Sensor, open_sensors

READ_EVERY_S = 0.1


class DeviceUse:
    """Measures while the block runs. On GPUs a thread asks the driver ten times a second."""

    def __init__(self, *, gpu_index: int | None, local_world_size: int = 1) -> None:
        self._of = None if gpu_index is None else f"gpu{gpu_index}"
        self._sensors: list[Sensor] = []
        if self._of is not None:
            sensors, _ = open_sensors(os.environ, local_world_size=local_world_size)
            self._sensors = [sensor for sensor in sensors if any(r.name == names.GPU_USE for r in sensor.read())]
        self._readings: list[float] = []
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._cpu_s = self._begun_s = 0.0

    def __enter__(self) -> Self:
        self._begun_s, self._cpu_s = time.perf_counter(), time.thread_time()
        if self._sensors:
            self._thread = threading.Thread(target=self._read, name="device use", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()
        self.cpu_s = time.thread_time() - self._cpu_s
        self.wall_s = time.perf_counter() - self._begun_s

    @property
    def busy_frac(self) -> float | None:
        """None where the device does not say."""
        if self._of is None:
            return min(self.cpu_s / self.wall_s, 1.0)
        return sum(self._readings) / len(self._readings) if self._readings else None

    def _read(self) -> None:
        while not self._done.wait(READ_EVERY_S):
            for sensor in self._sensors:
                self._readings += [r.value for r in sensor.read() if r.name == names.GPU_USE and r.of == self._of]
