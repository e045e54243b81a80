"""What a sync brought: how much, how fast, and the checksum of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from scalewright.run.weight_sync.wire import bytes_of, checksum

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


def digest(sums: Mapping[str, int]) -> str:
    """One text for the checksums of all tensors."""
    lines = "".join(f"{name} {sums[name]:08x}\n" for name in sorted(sums))
    return hashlib.blake2b(lines.encode(), digest_size=8).hexdigest()


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    return digest({name: checksum(bytes_of(tensor.contiguous())) for name, tensor in tensors.items()})
