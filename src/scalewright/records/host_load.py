"""Load of a host before a measurement: the one place that decides when a host is busy, and words the note."""

from __future__ import annotations

import os
from dataclasses import dataclass

BUSY_FRAC = 0.5
"""Load per core above which other work may change a measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLoad:
    """Runnable processes, averaged over a minute by the kernel, and the cores of the whole host."""

    load: float
    num_cores: int

    @property
    def is_busy(self) -> bool:
        return self.load > BUSY_FRAC * self.num_cores

    def note(self) -> str:
        """A note for the reader of the figures; empty if the cores were free."""
        if not self.is_busy:
            return ""
        cores = f"{self.num_cores} core{'s' if self.num_cores > 1 else ''}"
        return (
            f"measured while other work used the machine (load {self.load:.1f} on {cores} in the minute before): "
            "measure again when it is quiet"
        )


def load_now() -> HostLoad:
    """The load of the whole host, as the kernel counts it, not of the cores that a job or container may use."""
    return HostLoad(load=os.getloadavg()[0], num_cores=os.cpu_count() or 1)
