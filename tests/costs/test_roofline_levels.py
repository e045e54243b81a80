"""Roofs of a device, cache by cache, and the lowest of them over an operation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs.machine import Machine, machine_from_hardware, machine_from_system
from scalewright.costs.roofline import Operation, place, product_cache_bytes, roofs

CATALOG = Catalog((packaged_data(),))
H200 = machine_from_system(CATALOG, "generic-h200")
STREAM = Operation(
    name="copy", phase="forward", kind="elementwise", flop=1e9, traffic_bytes=2e9, fresh_bytes=0.0, cache_bytes=2e9,
    time_s=1e-3,
    num_per_step=1.0,
)  # fmt: skip


def device(name: str) -> Machine:
    return machine_from_hardware(
        CATALOG, gpu=name, gpus_per_node=1, scale_up_bytes_per_s=1e9, network_bytes_per_s_per_gpu=None
    )


@pytest.mark.parametrize("name", CATALOG.ids("accelerators"))
def test_levels_are_faster_and_smaller_from_the_outside_in(name: str) -> None:
    levels = roofs(device(name))
    assert levels[0].name == "memory"
    speeds = [level.bytes_per_s for level in levels]
    assert speeds == sorted(speeds)
    sizes = [level.size_bytes for level in levels[1:]]
    assert sizes == sorted(sizes, key=lambda size: -float(size or 0.0))


def test_a_device_without_published_caches_has_memory_only() -> None:
    assert CATALOG.accelerator("b200-sxm").l2 is not None
    assert [level.name for level in roofs(device("b200-sxm"))] == ["memory"], "a size alone is no roof"
    assert [level.name for level in roofs(device("mi300x"))] == ["memory", "last-level cache", "L2"]


def test_streaming_is_bound_by_memory_until_its_data_fits_a_cache() -> None:
    far = place(STREAM, H200, "bf16")
    assert (far.roof, far.home) == ("memory", "memory")
    assert far.attainable_flop_per_s == pytest.approx(0.5 * H200.hbm_bytes_per_s)
    near = place(replace(STREAM, flop=1e6, traffic_bytes=2e6, cache_bytes=2e6), H200, "bf16")
    assert (near.roof, near.home) == ("L2", "L2")
    assert near.attainable_flop_per_s == pytest.approx(0.5 * 9.7e12)


def test_weights_come_from_memory_even_where_a_product_fits_a_cache() -> None:
    """Decoding: each layer's weights would fit, but the other layers' were there since."""
    decode = replace(STREAM, flop=1.3e9, traffic_bytes=21e6, fresh_bytes=20e6, cache_bytes=22e6)
    bound = place(decode, H200, "fp8")
    assert (bound.roof, bound.home) == ("memory", "L2")
    assert bound.attainable_flop_per_s == pytest.approx(1.3e9 / 20e6 * H200.hbm_bytes_per_s)


def test_a_large_product_is_bound_by_the_units_or_the_cache_never_by_memory() -> None:
    side, work = 8192.0, 2.0 * 8192.0**3
    through = product_cache_bytes(num_rows=side, num_columns=side, num_depth=side, width_bytes=2.0)
    assert work / through == pytest.approx(85.3, rel=0.02), "tiles of 256 x 128: 2 / (2 (1/256 + 1/128))"
    product = replace(STREAM, kind="matmul", flop=work, traffic_bytes=6.0 * side**2, cache_bytes=through)
    bound = place(product, H200, "bf16")
    assert bound.roof == "L2", "9.7 TB/s x 85 FLOP per byte is 0.83 of the dense peak"
    assert bound.attainable_flop_per_s <= H200.peak_flop_per_s("bf16")
    assert place(product, device("b200-sxm"), "bf16").roof == "bf16 peak", "no figure for its L2: no roof"


def test_products_read_their_operands_from_the_cache_at_least_once() -> None:
    for m, n, k in ((1, 4096, 4096), (64, 64, 64), (8192, 128, 128), (300, 500, 700)):
        once = 2.0 * (m * k + k * n + m * n)
        assert product_cache_bytes(num_rows=m, num_columns=n, num_depth=k, width_bytes=2.0) >= once
