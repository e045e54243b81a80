"""How long a pipeline takes on other machines, from the processor time that was measured for each byte."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scalewright import units

SERIAL_PREFIX = "mark-"
"""Phases of one task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineCost:
    """What a byte of input costs, as measured."""

    core_s_per_byte: float
    serial_s_per_byte: float
    """Of phases that one core does alone."""

    def hours(self, *, input_bytes: float, num_nodes: int, cores_per_node: int) -> float:
        """Equation  (core_s_per_byte / cores + serial_s_per_byte) * bytes; assumes that storage keeps up."""
        seconds_per_byte = self.core_s_per_byte / (num_nodes * cores_per_node) + self.serial_s_per_byte
        return seconds_per_byte * input_bytes / units.HOUR_S


def pipeline_cost(result: dict[str, Any]) -> PipelineCost | None:
    """Of a finished data set; None if nothing was read or measured."""
    read_bytes = result["steps"].get("read", {}).get("bytes_in", 0)
    serial_s = sum(one["cpu_s"] for one in result["phases"] if one["name"].startswith(SERIAL_PREFIX))
    core_s = sum(one["cpu_s"] for one in result["phases"]) - serial_s
    if not read_bytes or not core_s:
        return None
    return PipelineCost(core_s_per_byte=core_s / read_bytes, serial_s_per_byte=serial_s / read_bytes)
