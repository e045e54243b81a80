"""Machine: the numbers a cost model needs of a system, catalogued (`from_catalog`) or measured (`calibrated`)."""

from __future__ import annotations

from scalewright.costs.machine.from_catalog import (
    machine_from_hardware,
    machine_from_system,
    pick_partition,
    with_network,
)
from scalewright.costs.machine.machine import Machine

__all__ = ["Machine", "machine_from_hardware", "machine_from_system", "pick_partition", "with_network"]
