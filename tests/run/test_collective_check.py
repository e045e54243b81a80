"""The check of collectives finds what is wrong: one element of one rank is enough."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from scalewright.run.micro.collective_ops import LARGEST_EXACT, CollectiveCell, Operations
from scalewright.workload.collective import CollectiveOp
from scalewright.workload.collectives_run import CollectivesRun, ElementType

ALONE: tuple[CollectiveOp, ...] = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast")
"""Operations that one rank can do with itself."""


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        yield
        dist.destroy_process_group()


class Spoiled(Operations):
    """A library that gets one element wrong."""

    def call(self, cell: CollectiveCell) -> Callable[[], None]:
        right = super().call(cell)

        def wrong() -> None:
            right()
            self._target(cell)[7] += 1

        return wrong


@pytest.mark.parametrize("op", ALONE)
@pytest.mark.parametrize("dtype", sorted(LARGEST_EXACT))
def test_one_wrong_element_is_counted_and_right_ones_are_not(op: CollectiveOp, dtype: ElementType) -> None:
    config, cell = CollectivesRun(dtype=dtype, max_bytes=2**16), CollectiveCell(op=op, count=1000, size_bytes=0)
    assert Operations(config, torch.device("cpu")).num_wrong(cell) == 0
    assert Spoiled(config, torch.device("cpu")).num_wrong(cell) == 1


class Lazy(Operations):
    """A library that does nothing."""

    def call(self, cell: CollectiveCell) -> Callable[[], None]:
        del cell
        return lambda: None


@pytest.mark.parametrize("op", ["all-gather", "reduce-scatter", "all-to-all"])
def test_a_call_that_does_nothing_is_wrong_nearly_everywhere(op: CollectiveOp) -> None:
    config, cell = CollectivesRun(max_bytes=2**16), CollectiveCell(op=op, count=1000, size_bytes=0)
    assert Lazy(config, torch.device("cpu")).num_wrong(cell) > 990
