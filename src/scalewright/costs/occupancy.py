"""Occupancy: how many blocks of a kernel one compute unit holds at once, and which resource runs out first."""

from __future__ import annotations

from dataclasses import dataclass

from scalewright.catalog.types import Accelerator
from scalewright.errors import ConfigError, NotExpressedError

REGISTER_BYTES = 4.0
REGISTER_UNIT = 256
"""Registers of a warp are given out in whole units of this many (NVIDIA's occupancy calculator, compute capability 3.0
to 9.0)."""
WARP_UNIT = 4
"""Warps that fit the register file are counted in fours, one for each of a unit's schedulers (same source)."""
SHARED_UNIT = 128
"""Bytes in which shared memory is given out (same source, compute capability 8.0 and 9.0; 256 on 7.0)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """What one block of a kernel asks for."""

    num_threads: int
    num_registers: int
    """Per thread."""
    shared_bytes: int = 0
    """Static, dynamic and what the runtime keeps for itself: 1 KiB a block since compute capability 8.0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """Blocks on one compute unit by each limit, and what the smallest leaves."""

    num_by_registers: int
    num_by_shared_memory: int
    num_by_threads: int
    num_by_hardware: int
    num_warps_per_block: int
    max_warps: int

    @property
    def num_blocks(self) -> int:
        return min(self.num_by_registers, self.num_by_shared_memory, self.num_by_threads, self.num_by_hardware)

    @property
    def limit(self) -> str:
        """The resource that runs out first; of several, the first in the order below."""
        by = {
            "threads": self.num_by_threads,
            "registers": self.num_by_registers,
            "blocks": self.num_by_hardware,
            "shared memory": self.num_by_shared_memory,
        }
        return min(by, key=lambda name: by[name])

    @property
    def num_warps(self) -> int:
        """Active warps."""
        return self.num_blocks * self.num_warps_per_block

    @property
    def blocks_frac(self) -> float:
        """Resident blocks over the most that the hardware holds.

        Equation  B / B_max
        Source    NVIDIA CUDA C++ Programming Guide, technical specifications per compute capability
        Assumes   all blocks are of this kernel
        Checked   tests/costs/test_occupancy.py: 4 of 32 for 256 threads of 64 registers
        """
        return self.num_blocks / self.num_by_hardware

    @property
    def warps_frac(self) -> float:
        """Active warps over the most that the hardware holds: what profilers call theoretical occupancy.

        Equation  B ceil(T / W) / (T_max / W)
        Source    NVIDIA CUDA C++ Best Practices Guide, section on occupancy
        Assumes   all blocks are of this kernel
        Checked   tests/costs/test_occupancy.py: the guide's own 75 % and 63 %
        """
        return self.num_warps / self.max_warps


def occupancy(accelerator: Accelerator, kernel: Kernel) -> Occupancy:
    """Blocks of a kernel that one compute unit holds.

    Equation  B = min(floor(W_r / w), floor(S / s), floor(T_max / (32 w)), B_max),  w = ceil(T / 32) warps a block,
              W_r = floor(R / (256 ceil(32 r / 256)) / 4) 4 warps whose registers fit, s in units of 128 bytes
    Source    NVIDIA CUDA Occupancy Calculator; CUDA C++ Best Practices Guide, section on occupancy
    Assumes   NVIDIA's allocation units; shared memory is carved out of the first-level cache at its largest
    Checked   tests/costs/test_occupancy.py: values of the guide and of the calculator
    """
    if accelerator.vendor != "NVIDIA":
        raise NotExpressedError(f"{accelerator.id}: occupancy is counted in NVIDIA's allocation units, not another's")
    if min(kernel.num_threads, kernel.num_registers) < 1 or kernel.shared_bytes < 0:
        raise ConfigError(f"{kernel}: threads and registers must be at least 1, and shared memory not below 0")
    warp = _whole(accelerator, "warp_size")
    warps = _up(kernel.num_threads, warp)
    max_warps = _whole(accelerator, "max_threads_per_compute_unit") // warp
    registers = _whole(accelerator, "registers_per_compute_unit") / REGISTER_BYTES
    per_warp = _up(kernel.num_registers * warp, REGISTER_UNIT) * REGISTER_UNIT
    held = int(registers // per_warp) // WARP_UNIT * WARP_UNIT
    hardware = _whole(accelerator, "max_blocks_per_compute_unit")
    shared = _up(kernel.shared_bytes, SHARED_UNIT) * SHARED_UNIT
    by_shared = _whole(accelerator, "shared_memory_per_compute_unit") // shared if shared else hardware
    return Occupancy(
        num_by_registers=held // warps,
        num_by_shared_memory=by_shared,
        num_by_threads=max_warps // warps,
        num_by_hardware=hardware,
        num_warps_per_block=warps,
        max_warps=max_warps,
    )


def _up(value: int, unit: int) -> int:
    """How many units hold the value."""
    return -(-value // unit)


def _whole(accelerator: Accelerator, field: str) -> int:
    fact = getattr(accelerator, field)
    if fact is None:
        raise NotExpressedError(f"{accelerator.id} has no {field} in the catalogue: add it with its source")
    return int(fact.value)
