"""Energy of this node over a load, from the counters that the node has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from scalewright.records import metric_names as names
from scalewright.run.sensors import SYS, Sensor, open_sensors

COVERED = {names.NODE_ENERGY: "whole nodes", names.GPU_ENERGY: "GPUs", names.CPU_ENERGY: "CPUs"}
"""What a counter covers, the widest first."""


class EnergyMeter:
    """Reads the energy counters of a node."""

    def __init__(self, *, local_world_size: int, env: Mapping[str, str] | None = None, sys: Path = SYS) -> None:
        sensors, _ = open_sensors(os.environ if env is None else env, local_world_size=local_world_size, sys=sys)
        self._sensors: list[Sensor] = [sensor for sensor in sensors if _energies(sensor)]

    def read(self) -> dict[tuple[str, str], float]:
        """Joules so far, by counter and device."""
        return {key: joules for sensor in self._sensors for key, joules in _energies(sensor).items()}

    def since(self, before: Mapping[tuple[str, str], float]) -> tuple[float, str] | None:
        """Joules since then and what they cover; None where the node has no counter, or it was set back."""
        now = self.read()
        for name, words in COVERED.items():
            grown = [joules - before[key] for key, joules in now.items() if key[0] == name and key in before]
            if grown and min(grown) >= 0.0:
                return sum(grown), words
        return None


def _energies(sensor: Sensor) -> dict[tuple[str, str], float]:
    return {(reading.name, reading.of): reading.value for reading in sensor.read() if reading.name in COVERED}
