"""The time that a benchmark may measure for, and how much of it is left."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class TimeBudget:
    """Starts to run when it is made."""

    total_s: float
    begun_s: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        return self.total_s - (time.monotonic() - self.begun_s)

    @property
    def used_frac(self) -> float:
        return min(1.0, max(0.0, 1.0 - self.left_s / self.total_s))

    def restart(self) -> None:
        self.begun_s = time.monotonic()
