"""Blocks per compute unit against NVIDIA's own examples and its calculator's rules worked by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs.occupancy import Kernel, Occupancy, occupancy
from scalewright.errors import ConfigError, NotExpressedError

CATALOG = Catalog((packaged_data(),))
A100 = CATALOG.accelerator("a100-sxm-80gb")


def held(gpu: str = "a100-sxm-80gb", threads: int = 256, registers: int = 32, shared: int = 0) -> Occupancy:
    kernel = Kernel(num_threads=threads, num_registers=registers, shared_bytes=shared)
    return occupancy(CATALOG.accelerator(gpu), kernel)


@pytest.mark.parametrize(
    ("threads", "registers", "blocks", "percent"),
    [
        # CUDA C++ Best Practices Guide, "Calculating Occupancy", for 65,536 registers and 2,048 threads (7.0):
        (128, 32, 16, 100),  # "for 100 % occupancy each thread can use at most 32 registers"
        (128, 37, 12, 75),  # "75 % with 12 active 128-thread blocks"
        (320, 37, 4, 63),  # "63 % because only four 320-thread blocks can reside"
    ],
)
@pytest.mark.parametrize("gpu", ["v100-sxm2-32gb", "a100-sxm-80gb", "h100-sxm"])
def test_examples_of_the_best_practices_guide(
    gpu: str, threads: int, registers: int, blocks: int, percent: int
) -> None:
    found = held(gpu, threads, registers)
    assert found.num_blocks == blocks
    assert found.warps_frac == pytest.approx(percent / 100, abs=0.006)


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "blocks", "warps", "limit"),
    [
        # 64 x 32 = 2,048 registers a warp, 65,536 / 2,048 = 32 warps, 8 a block.
        (256, 64, 0, 4, 32, "registers"),
        # 2,048 / 256 threads; 32 registers are just few enough.
        (256, 32, 0, 8, 64, "threads"),
        # 33 x 32 = 1,056, given as 1,280: 51 warps, counted as 48, and a block has 32 of them.
        (1024, 33, 0, 1, 32, "registers"),
        # 64 / 1 warp, but 32 blocks at most: half of the warps.
        (32, 32, 0, 32, 32, "blocks"),
        # 164 KiB / 49 KiB (48 and 1 for the runtime) = 3.3.
        (256, 32, 49 * 1024, 3, 24, "shared memory"),
        # 163 KiB is the most a block can ask for, and 1 KiB is the runtime's: one block fills the unit.
        (1024, 32, 164 * 1024, 1, 32, "shared memory"),
        # 255 x 32 = 8,160, given as 8,192: 8 warps.
        (256, 255, 0, 1, 8, "registers"),
        # 100 threads are 4 warps; 64 / 4.
        (100, 32, 0, 16, 64, "threads"),
    ],
)
def test_a100_by_the_calculators_rules(
    threads: int, registers: int, shared: int, blocks: int, warps: int, limit: str
) -> None:
    found = held(threads=threads, registers=registers, shared=shared)
    assert (found.num_blocks, found.num_warps, found.limit) == (blocks, warps, limit)
    assert found.blocks_frac == blocks / 32
    assert found.warps_frac == warps / 64


def test_h100_holds_more_shared_memory_than_a100() -> None:
    assert held("h100-sxm", shared=57 * 1024).num_blocks == 4  # 228 / 57
    assert held("a100-sxm-80gb", shared=57 * 1024).num_blocks == 2  # 164 / 57


def test_kernel_that_cannot_run_has_no_block() -> None:
    assert held(threads=1024, registers=128).num_blocks == 0
    assert held(shared=165 * 1024).num_blocks == 0


@given(
    threads=st.integers(1, 1024),
    registers=st.integers(1, 255),
    shared=st.integers(0, 164 * 1024),
    more=st.integers(0, 64),
)
@settings(deadline=None, max_examples=200)
def test_asking_for_more_never_gives_more_and_nothing_is_overdrawn(
    threads: int, registers: int, shared: int, more: int
) -> None:
    found = held(threads=threads, registers=registers, shared=shared)
    assert held(threads=threads, registers=registers + more, shared=shared).num_blocks <= found.num_blocks
    assert held(threads=threads, registers=registers, shared=shared + 64 * more).num_blocks <= found.num_blocks
    assert found.num_blocks * threads <= 2048
    assert found.num_blocks * shared <= 164 * 1024
    assert found.num_blocks * threads * registers <= 65536
    assert 0 <= found.warps_frac <= 1
    assert 0 <= found.blocks_frac <= 1


def test_other_makers_and_missing_fields_are_refused_by_name() -> None:
    with pytest.raises(NotExpressedError, match="mi250x"):
        held("mi250x-gcd")
    bare = A100.model_copy(update={"max_blocks_per_compute_unit": None})
    with pytest.raises(NotExpressedError, match="max_blocks_per_compute_unit"):
        occupancy(bare, Kernel(num_threads=256, num_registers=32))
    with pytest.raises(ConfigError, match="at least 1"):
        held(threads=0)
