"""How busy a host was when something on it began to be measured: the one place that says what others' work means."""

from __future__ import annotations

import os
from dataclasses import dataclass

BUSY_FRAC = 0.5
"""Load of a core from which on others may be what is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLoad:
    """Processes that wanted to run, as the kernel averages them over a minute, and the cores of the whole host."""

    load: float
    num_cores: int

    @property
    def is_busy(self) -> bool:
        return self.load > BUSY_FRAC * self.num_cores

    def note(self) -> str:
        """What a reader of the figures must know; empty where the cores were free."""
        if not self.is_busy:
            return ""
        cores = f"{self.num_cores} core{'s' if self.num_cores > 1 else ''}"
        return (
            f"this machine was at work in the minute before (load {self.load:.1f} on {cores}): where that went on, "
            "figures are what it left; measure again when it is quiet"
        )


def load_now() -> HostLoad:
    """Of the whole host, as the kernel counts it: not of the cores that a job or container may use."""
    return HostLoad(load=os.getloadavg()[0], num_cores=os.cpu_count() or 1)
