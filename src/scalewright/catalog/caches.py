"""Caches of a device: sizes and bandwidths, part of `Accelerator`."""

from __future__ import annotations

from scalewright.catalog.facts import Bytes, BytesPerS, Strict


class Caches(Strict):
    """Levels between memory and the units. Unpublished values are absent; no other device's figure replaces them."""

    l1_per_compute_unit: Bytes | None = None
    l1_bandwidth: BytesPerS | None = None
    """Reads from the first-level caches (or shared memory), all compute units together."""
    l2: Bytes | None = None
    l2_bandwidth: BytesPerS | None = None
    """Reads from the second-level cache by all compute units together."""
    last_level_cache: Bytes | None = None
    last_level_bandwidth: BytesPerS | None = None
    """Reads from the cache between the second level and memory, where there is one."""
