"""The operations of `bench collectives`: the call, data whose result is known exactly, and the check against it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist

from scalewright.workload.collective import REDUCING, SPLIT, CollectiveOp, num_elements, total_bytes
from scalewright.workload.collectives_run import CollectivesRun

DTYPES = {
    "fp32": torch.float32,
    "fp64": torch.float64,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "int32": torch.int32,
    "uint8": torch.uint8,
}
LARGEST_EXACT = {"fp32": 2**24, "fp64": 2**53, "fp16": 2**11, "bf16": 2**8, "int32": 2**31 - 1, "uint8": 255}
"""Whole numbers up to these are exact, so a sum is right or wrong in any order of additions."""
PERIOD = 251
"""Values count from 0 up to this and start again. It is a prime, so that no part of a buffer equals its neighbour."""
SHIFT = 37
"""Difference between the values of two neighbouring ranks."""
TRIAL_ELEMENTS = 64
"""Elements of each rank in the trial call that shows whether a back end has an operation."""
CHUNK = 2**20
"""Elements checked at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCell:
    """One operation at one size: a row of the table."""

    op: CollectiveOp
    count: int
    """Elements in the call's arguments."""
    size_bytes: int


def cells_of(config: CollectivesRun, op: CollectiveOp, num_ranks: int) -> list[CollectiveCell]:
    """The sizes of an operation, smallest first, without those that have no element for some rank."""
    cells: dict[int, CollectiveCell] = {}
    for size in config.sizes_bytes():
        count = num_elements(op, size_bytes=size, element_bytes=config.element_bytes, num_ranks=num_ranks)
        if count:
            total = total_bytes(op, num_elements=count, element_bytes=config.element_bytes, num_ranks=num_ranks)
            cells[count] = CollectiveCell(op=op, count=count, size_bytes=total)
    return list(cells.values())


class Operations:
    """Makes calls and checks them, in two buffers that all sizes share."""

    def __init__(self, config: CollectivesRun, device: torch.device) -> None:
        self._rank, self._num_ranks = dist.get_rank(), dist.get_world_size()
        self._config, self._device = config, device
        elements = max(config.max_bytes // config.element_bytes, TRIAL_ELEMENTS * self._num_ranks)
        self._send = torch.zeros(elements, dtype=DTYPES[config.dtype], device=device)
        self._receive = torch.zeros_like(self._send)
        exact = LARGEST_EXACT[config.dtype]
        self._num_summed = min(self._num_ranks, exact)
        """Ranks whose values in a sum are not 0. With more ranks, the element type could not hold the exact result."""
        period = torch.arange(min(PERIOD, exact // self._num_summed + 1))
        ranks = torch.arange(self._num_summed)
        sums = ((period[:, None] + SHIFT * ranks[None, :]) % len(period)).sum(dim=1)
        self._values = Table.of(torch.arange(PERIOD), self._send)
        self._summands = Table.of(period, self._send)
        self._sums = Table.of(sums, self._send)

    def call(self, cell: CollectiveCell) -> Callable[[], None]:
        """The operation as a function to call repeatedly. On a GPU it is only queued when the call returns."""
        source, target = self._source(cell), self._target(cell)
        root, rank, num = self._config.root, self._rank, self._num_ranks
        if cell.op == "all-reduce":
            return lambda: _ignore(dist.all_reduce(target))
        if cell.op == "all-gather":
            return lambda: _ignore(dist.all_gather_into_tensor(target, source))
        if cell.op == "reduce-scatter":
            return lambda: _ignore(dist.reduce_scatter_tensor(target, source))
        if cell.op == "all-to-all":
            return lambda: _ignore(dist.all_to_all_single(target, source))
        if cell.op == "broadcast":
            return lambda: _ignore(dist.broadcast(target, src=root))
        # The receive first: Gloo announces it on the connection that carries the data, and behind data of the other
        # direction it would wait for all of that.
        pair = [
            dist.P2POp(dist.irecv, target, (rank - 1) % num),
            dist.P2POp(dist.isend, source, (rank + 1) % num),
        ]

        def exchange() -> None:
            for work in dist.batch_isend_irecv(pair):
                work.wait()

        return exchange

    def lacks(self, op: CollectiveOp) -> str:
        """Why the back end cannot do an operation on this element type; empty if it can. The same on all ranks."""
        try:
            self.call(CollectiveCell(op=op, count=TRIAL_ELEMENTS, size_bytes=0))()
        except (RuntimeError, NotImplementedError, ValueError) as error:
            return " ".join(str(error).split())[:120] or type(error).__name__
        return ""

    def clear(self, cell: CollectiveCell) -> None:
        """Fill the buffers with zeros: sums of zeros stay zero, however often they are summed in place."""
        if cell.op in REDUCING:
            self._source(cell).zero_()
            self._target(cell).zero_()

    def num_wrong(self, cell: CollectiveCell) -> int:
        """Wrong elements in this rank's result, after one call."""
        self._fill(cell)
        self.call(cell)()
        target, wrong = self._target(cell), torch.zeros((), dtype=torch.int64, device=self._device)
        part = target.numel() if cell.op not in ("all-gather", "all-to-all") else cell.count
        for first in range(0, target.numel(), part):
            table, phase = self._expected(cell, sender=first // part)
            for actual, expected in _paired(target[first : first + part], table, phase):
                wrong += (actual != expected).sum()
        return int(wrong)

    def _source(self, cell: CollectiveCell) -> torch.Tensor:
        """The buffer that this rank sends."""
        if cell.op == "all-gather":
            return self._own_part(self._receive, cell) if self._config.in_place else self._send[: cell.count]
        if cell.op in ("all-reduce", "broadcast"):
            return self._receive[: cell.count]
        return self._send[: cell.count * (self._num_ranks if cell.op in SPLIT else 1)]

    def _target(self, cell: CollectiveCell) -> torch.Tensor:
        """The buffer that receives this rank's result."""
        if cell.op == "reduce-scatter":
            return self._own_part(self._send, cell) if self._config.in_place else self._receive[: cell.count]
        return self._receive[: cell.count * (self._num_ranks if cell.op in SPLIT else 1)]

    def _own_part(self, buffer: torch.Tensor, cell: CollectiveCell) -> torch.Tensor:
        return buffer[self._rank * cell.count : (self._rank + 1) * cell.count]

    def _fill(self, cell: CollectiveCell) -> None:
        """Write the rank's values, after filling the result with a value that no right result has."""
        source, target = self._source(cell), self._target(cell)
        target.fill_(0 if cell.op in REDUCING else PERIOD)
        if cell.op == "broadcast" and self._rank != self._config.root:
            return
        if cell.op in REDUCING and self._rank >= self._num_summed:
            source.zero_()
            return
        table = self._summands if cell.op in REDUCING else self._values
        for part, values in _paired(source, table, SHIFT * self._rank):
            part.copy_(values)

    def _expected(self, cell: CollectiveCell, *, sender: int) -> tuple[Table, int]:
        """Table and phase of the values that `sender` must deliver."""
        if cell.op in REDUCING:
            return self._sums, self._rank * cell.count if cell.op == "reduce-scatter" else 0
        if cell.op == "all-gather":
            return self._values, SHIFT * sender
        if cell.op == "all-to-all":
            return self._values, SHIFT * sender + self._rank * cell.count
        if cell.op == "broadcast":
            return self._values, SHIFT * self._config.root
        return self._values, SHIFT * ((self._rank - 1) % self._num_ranks)


@dataclass(frozen=True, slots=True)
class Table:
    """Values that repeat after `period`, long enough for a chunk from any phase."""

    values: torch.Tensor
    period: int

    @classmethod
    def of(cls, once: torch.Tensor, like: torch.Tensor) -> Table:
        period = once.numel()
        repeated = once.repeat(-(-min(CHUNK, like.numel()) // period) + 1)
        return cls(repeated.to(device=like.device, dtype=like.dtype), period)


def _paired(buffer: torch.Tensor, table: Table, phase: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Chunks of a buffer, each paired with the table's values at the same positions."""
    for start in range(0, buffer.numel(), CHUNK):
        part, first = buffer[start : start + CHUNK], (start + phase) % table.period
        yield part, table.values[first : first + part.numel()]


def _ignore(work: dist.Work | None) -> None:
    """Drop the return value: synchronous calls have already waited."""
    del work
