"""Background sampling of a node, every 2 s, by one thread of one rank of each node."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from scalewright.records import metric_names as names
from scalewright.records.events import EventLine, EventWriter
from scalewright.records.host_load import load_now
from scalewright.records.run_directory import RunDirectory
from scalewright.run.sensors import SYS, SensorReading, open_sensors
from scalewright.run.world import World

INTERVAL_S = 2.0


class NodeSampler:
    """Writes a node's readings to the node's event file. Only the first rank of a node does this."""

    def __init__(
        self,
        directory: RunDirectory,
        world: World,
        *,
        interval_s: float = INTERVAL_S,
        env: Mapping[str, str] | None = None,
        sys: Path = SYS,
    ) -> None:
        self._directory, self._world, self._interval_s, self._sys = directory, world, interval_s, sys
        self._env = os.environ if env is None else env
        self._load = load_now()
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self.cpu_time_s = 0.0
        """CPU time that sampling has taken."""

    def __enter__(self) -> NodeSampler:
        if self._world.is_first_on_node:
            self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        line = EventLine(job=self._world.job_id, rank=-1, host=self._world.host)
        file = EventWriter(self._directory.node_events(self._world.host))
        sensors, missing = open_sensors(self._env, local_world_size=self._world.local_world_size, sys=self._sys)

        def note(name: str, detail: str) -> str:
            return line.format(time_s=time.time(), step=-1, name=name, value=1.0, unit="1", detail=detail)

        notes = [note(names.EVENT_NO_SENSOR, text) for text in missing]
        if self._world.switch:
            notes.append(note(names.EVENT_PLACE, self._world.switch))
        if self._load.is_busy:
            notes.append(note(names.EVENT_BUSY, self._load.note()))
        file.append("".join(notes))
        try:
            while True:
                readings = [reading for sensor in sensors for reading in sensor.read()]
                self.cpu_time_s = time.thread_time()
                readings.append(SensorReading(name=names.SAMPLER_CPU_TIME, value=self.cpu_time_s))
                now_s = time.time()
                file.append(
                    "".join(
                        line.format(
                            time_s=now_s, step=-1, name=r.name, value=r.value, unit=names.UNITS[r.name], detail=r.of
                        )
                        for r in readings
                    )
                )
                if self._done.wait(self._interval_s):
                    return
        finally:
            file.close()
