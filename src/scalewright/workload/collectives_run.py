"""CollectivesRun: everything that decides a run of `bench collectives`. The options are those of nccl-tests."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from scalewright import units
from scalewright.errors import ConfigError
from scalewright.records.documents import document
from scalewright.records.loader import stored
from scalewright.workload.collective import OPS, CollectiveOp
from scalewright.workload.run_options import DeviceKind

KIND = "collectives-run"
ElementType = Literal["fp32", "fp64", "fp16", "bf16", "int32", "uint8"]
ELEMENT_BYTES: dict[str, int] = {"fp32": 4, "fp64": 8, "fp16": 2, "bf16": 2, "int32": 4, "uint8": 1}
MAX_SIZES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivesRun:
    """One run: which operations, over which sizes, how often."""

    ops: tuple[CollectiveOp, ...] = OPS
    dtype: ElementType = "fp32"
    min_bytes: int = 1024
    max_bytes: int = 64 * units.MIB
    factor: float = 2.0
    """From one size to the next, where `step_bytes` is 0."""
    step_bytes: int = 0
    """From one size to the next; 0: sizes grow by `factor`."""
    warmup: int = 1
    """Calls before each timed loop that do not count."""
    iterations: int = 0
    """Timed calls per size; 0: as many as the budget allows."""
    budget_s: float = 60.0
    """For all operations and sizes together, where `iterations` is 0. The largest sizes are left out first."""
    in_place: bool = False
    """All-gather and reduce-scatter: the rank's own part lies inside the whole buffer."""
    root: int = 0
    """Rank that broadcasts."""
    device: DeviceKind = "auto"

    def __post_init__(self) -> None:
        if not self.ops or len(set(self.ops)) != len(self.ops):
            raise ConfigError(f"{len(self.ops)} operations: name one or more of {', '.join(OPS)}, each once")
        if self.dtype not in get_args(ElementType):
            raise ConfigError(f"element type {self.dtype!r} is not known: choose {', '.join(get_args(ElementType))}")
        if self.device not in get_args(DeviceKind):
            raise ConfigError(f"device {self.device!r} is not known: choose {', '.join(get_args(DeviceKind))}")
        if self.min_bytes < ELEMENT_BYTES[self.dtype]:
            raise ConfigError(
                f"sizes from {self.min_bytes} bytes on hold no {self.dtype} element: start at "
                f"{ELEMENT_BYTES[self.dtype]} bytes or more"
            )
        if self.max_bytes < self.min_bytes:
            raise ConfigError(
                f"the largest size, {units.format(self.max_bytes, units.BYTES)}, is below the smallest, "
                f"{units.format(self.min_bytes, units.BYTES)}: swap them"
            )
        if self.step_bytes < 0:
            raise ConfigError(f"a step of {self.step_bytes} bytes does not make sizes grow: give one above 0")
        if not self.step_bytes and not (self.factor > 1 and math.isfinite(self.factor)):
            raise ConfigError(f"a factor of {self.factor:g} does not make sizes grow: give one above 1, or a step")
        if self.warmup < 0 or self.iterations < 0 or self.root < 0:
            raise ConfigError("warm-up calls, iterations and the root must be 0 or more")
        if not 0 < self.budget_s < math.inf:
            raise ConfigError(f"a budget of {self.budget_s:g} s leaves no time to measure: give some seconds")
        if self._num_sizes() > MAX_SIZES:
            raise ConfigError(
                f"{self._num_sizes()} sizes from {self.min_bytes} to {self.max_bytes} bytes are more than {MAX_SIZES}: "
                "take a larger factor or step"
            )

    def _num_sizes(self) -> int:
        if self.step_bytes:
            return 1 + (self.max_bytes - self.min_bytes) // self.step_bytes
        return 1 + int(math.log(self.max_bytes / self.min_bytes) / math.log(self.factor) + 1e-9)

    @property
    def element_bytes(self) -> int:
        return ELEMENT_BYTES[self.dtype]

    def sizes_bytes(self) -> list[int]:
        """Smallest to largest; the largest is among them where the factor or step reaches it."""
        if self.step_bytes:
            return list(range(self.min_bytes, self.max_bytes + 1, self.step_bytes))
        grown = (round(self.min_bytes * self.factor**i) for i in range(self._num_sizes()))
        return list(dict.fromkeys(size for size in grown if size <= self.max_bytes))

    def check_ranks(self, num_ranks: int) -> None:
        """Refuse a number of ranks that cannot run this."""
        if num_ranks < 2:
            raise ConfigError(f"{num_ranks} rank cannot exchange data: collectives need --ranks 2 or more")
        if self.root >= num_ranks:
            raise ConfigError(f"root {self.root} is not among {num_ranks} ranks: choose 0 to {num_ranks - 1}")

    def check_memory(self, available_bytes: float, *, num_sharing: int) -> None:
        """Refuse sizes whose two buffers do not fit on every rank that shares the memory."""
        needed_bytes = 2.0 * self.max_bytes * num_sharing
        if needed_bytes > available_bytes:
            raise ConfigError(
                f"two buffers of {units.format(self.max_bytes, units.BYTES)} on {num_sharing} ranks need more than the "
                f"{units.format(available_bytes, units.BYTES)} that are free: lower --max-bytes"
            )

    def document(self) -> dict[str, Any]:
        return document(KIND, stored(self))
