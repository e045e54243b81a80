"""The roofline with cache levels: an operation's work and traffic, a device's roofs, and which roof is the lowest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scalewright.catalog.types import Precision
from scalewright.costs.machine import Machine

Kind = Literal["matmul", "attention", "elementwise", "head", "optimizer", "convolution", "layout"]
Phase = Literal["forward", "backward", "input_gradient", "weight_gradient", "update", "decode"]
TILE = (256.0, 128.0)
"""Rows and columns of the largest tile a product is cut into: each operand is read from the cache once per tile."""
QUERY_TILE = 128.0
"""Rows of queries a fused attention kernel holds while keys and values pass (dao2023, FlashAttention-2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One kernel, or a run of alike ones, as often as a device repeats it in a step."""

    name: str
    phase: Phase
    kind: Kind
    """The group of the step's compute terms that its time is part of."""
    flop: float
    """Useful work of one call: no padding; half of the square for causal attention."""
    traffic_bytes: float
    """What one call moves through the device's memory at least: also the set of data it works on."""
    fresh_bytes: float
    """Of the traffic, what no kernel before it left in a cache: weights, cached keys, activations kept for backward."""
    cache_bytes: float
    """What one call moves between the second-level cache and the compute units."""
    time_s: float
    """Of one call."""
    num_per_step: float
    """Calls per step; a fraction where an average layer has a fraction of it."""
    shape: str = ""
    """`m x n x k` of a matrix product."""

    @property
    def total_s(self) -> float:
        """Time of all calls of a step.

        Equation  T = t c, c calls
        Source    the definition
        Assumes   every call takes the same time
        Checked   tests/costs/test_operations.py: their sum is the step's compute terms
        """
        return self.time_s * self.num_per_step

    @property
    def intensity_flop_per_byte(self) -> float:
        """Arithmetic intensity.

        Equation  I = W / Q
        Source    williams2009 (Roofline, CACM 52(4))
        Assumes   each operand crosses memory once
        Checked   tests/costs/test_operations.py: a product's is 2 m n k over its three matrices
        """
        return self.flop / self.traffic_bytes

    @property
    def achieved_flop_per_s(self) -> float:
        """Rate of useful work.

        Equation  P = W / t
        Source    williams2009 (Roofline, CACM 52(4))
        Assumes   nothing of its own: t is the cost model's
        Checked   tests/costs/test_operations.py: never above the device's peak
        """
        return self.flop / self.time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Roof:
    """A level of memory that operands come from."""

    name: str
    bytes_per_s: float
    size_bytes: float | None
    """What it holds; None for the device's memory, which holds all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """An operation under the roofs of a device."""

    roof: str
    """The lowest one: the peak, memory, or a cache."""
    attainable_flop_per_s: float
    home: str
    """The smallest level that holds all the data of a call."""


def roofs(machine: Machine) -> list[Roof]:
    """Memory and the caches whose size and bandwidth the catalogue has, from the outside in.

    Equation  memory: B x share; caches: as measured or from the datasheet
    Source    the catalogue's entry of the device; caches of other devices are never taken
    Assumes   reads; what is written passes at the same rate
    Checked   tests/costs/test_roofline_levels.py: each level inside is faster; a device without figures has memory only
    """
    a = machine.accelerator
    levels = [Roof(name="memory", bytes_per_s=machine.hbm_bytes_per_s, size_bytes=None)]
    caches = (
        ("last-level cache", a.last_level_cache, a.last_level_bandwidth),
        ("L2", a.l2, a.l2_bandwidth),
    )
    for name, size, speed in caches:
        if size is not None and speed is not None:
            levels.append(Roof(name=name, bytes_per_s=speed.value, size_bytes=size.value))
    return levels


def place(op: Operation, machine: Machine, precision: Precision) -> Placement:
    """The lowest roof over an operation.

    Equation  P = min(F, W/Q B_home, W/Q_f B, W/Q_2 B_2): peak, the level that holds the data, memory for what is
              fresh, the second-level cache for what passes it
    Source    williams2009 (Roofline, CACM 52(4)); yang2019 (Hierarchical Roofline, arXiv:1910.08695) for one
              intensity per level
    Assumes   data that fits a cache and is not fresh is still there from the kernel before; the cost model itself
              counts all as read from memory, so its times are on the safe side there
    Checked   tests/costs/test_roofline_levels.py: never above the peak; data that fits the cache is not bound by memory
    """
    levels = roofs(machine)
    home = next(
        (r for r in reversed(levels) if r.size_bytes is not None and op.traffic_bytes <= r.size_bytes), levels[0]
    )
    limits = {f"{precision} peak": machine.peak_flop_per_s(precision)}
    limits[home.name] = op.flop / op.traffic_bytes * home.bytes_per_s
    if home.name != "memory" and op.fresh_bytes > 0.0:
        limits["memory"] = op.flop / op.fresh_bytes * levels[0].bytes_per_s
    cache = next((r for r in levels if r.name == "L2"), None)
    if cache is not None:
        through = op.flop / op.cache_bytes * cache.bytes_per_s
        limits["L2"] = min(through, limits.get("L2", through))
    lowest = min(limits, key=lambda name: limits[name])
    return Placement(roof=lowest, attainable_flop_per_s=limits[lowest], home=home.name)


def product_cache_bytes(*, num_rows: float, num_columns: float, num_depth: float, width_bytes: float) -> float:
    """What a tiled matrix product reads from the second-level cache, and writes.

    Equation  w (ceil(n/c) m k + ceil(m/r) k n + m n), tiles of r x c
    Source    NVIDIA (Matrix Multiplication Background User's Guide), tiling; yang2019 (arXiv:1910.08695)
    Assumes   tiles of 256 x 128, nothing shared between the tiles of neighbouring units
    Checked   tests/costs/test_roofline_levels.py: at least the operands once; 85 FLOP per byte of a large one
    """
    m, n, k = num_rows, num_columns, num_depth
    across, down = -(-n // TILE[1]), -(-m // TILE[0])
    return width_bytes * (across * m * k + down * k * n + m * n)
