"""What a sync brought: how much, how fast, and the checksum of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SyncWay = Literal["peers", "broadcast", "file"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    """One engine rank's sync."""

    way: SyncWay
    version: int
    num_bytes: int
    """That this rank received."""
    seconds: float
    """Until all of it was here and checked."""
    checksum: str
    """Of the parts that this rank stores, by name and in the type that travelled: equal for every way."""

    @property
    def bytes_per_s(self) -> float:
        return self.num_bytes / self.seconds if self.seconds else 0.0
