"""Time collectives in rounds: every round goes through all operations and sizes, so that a disturbance hits all alike.

Ranks decide together. What depends on a clock is decided by rank 0 and told to the others, who would otherwise wait for
a call that is never made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from scalewright import units
from scalewright.run.micro.collective_ops import Cell, Operations
from scalewright.run.micro.timing import settle
from scalewright.run.watchdog import Watchdog
from scalewright.workload.collectives_run import CollectivesRun

MIN_ROUNDS, WANTED_ROUNDS, MAX_ROUNDS = 3, 11, 31
"""Eleven leave the slowest and the fastest out of a 95 % interval of the median."""
ROUNDS_OF_GIVEN = 5
"""Rounds that a given number of iterations is spread over."""
MAX_CALLS = 100
"""Timed in one loop."""
CALLS_OF_PROBE = 2
"""One whose result is checked and one that is timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """A cell that was called and checked once."""

    cell: Cell
    once_s: float
    """Of the slowest rank."""
    num_wrong: int
    """On all ranks together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """A cell with its times: one per round, the mean of its calls on the rank that took longest."""

    probed: Probed
    samples_s: list[float]
    num_calls: int
    """Per round."""


class Rounds:
    """Probes cells, then samples them in rounds until the iterations are done or the budget is spent."""

    def __init__(
        self,
        operations: Operations,
        config: CollectivesRun,
        device: torch.device,
        *,
        watchdog: Watchdog,
        is_stopped: Callable[[], bool],
        tell: Callable[[str, float], None],
    ) -> None:
        self._operations, self._config, self._device = operations, config, device
        self._watchdog, self._is_stopped, self._tell = watchdog, is_stopped, tell
        self._begun_s = time.monotonic()
        self._num_done = 0
        self.notes: list[str] = []

    @property
    def _left_s(self) -> float:
        return self._config.budget_s - (time.monotonic() - self._begun_s)

    def probe(self, columns: Sequence[Sequence[Cell]]) -> list[Probed]:
        """Every cell once, size by size over all operations; sizes that the budget has no time for are left out."""
        found: list[Probed] = []
        reckoned_s = 0.0
        longest = max((len(column) for column in columns), default=0)
        for left in range(longest, 0, -1):  # from the end: what an operation lacks are its smallest sizes
            cells = [column[-left] for column in columns if left <= len(column)]
            before = {probed.cell.op: probed for probed in found}  # the size before, by operation
            next_s = sum(_scaled_s(before.get(cell.op), cell) for cell in cells)
            rounds = MIN_ROUNDS * (1 + self._config.warmup)
            fits = reckoned_s * rounds + next_s * (CALLS_OF_PROBE + rounds) <= self._left_s
            if not self._config.iterations and not _agreed(fits):
                least = units.format(min(cell.size_bytes for cell in cells), units.BYTES)
                budget = units.format(self._config.budget_s, units.SECONDS)
                self.notes.append(f"sizes from {least} on were left out: a budget of {budget} has no time for them")
                break
            for cell in cells:
                probed = self._probed(cell)
                found.append(probed)
                reckoned_s += probed.once_s
            if self.stopped():
                return []
        return found

    def sample(self, probed: Sequence[Probed]) -> list[Sampled]:
        """The times of each cell; empty where the run was asked to stop."""
        if not probed:
            return []
        calls = self._calls(probed)
        samples: list[list[float]] = [[] for _ in probed]
        num_rounds = min(self._config.iterations, ROUNDS_OF_GIVEN) if self._config.iterations else MAX_ROUNDS
        longest_s = 0.0
        for number in range(num_rounds):
            begun_s = time.monotonic()
            for place, one in enumerate(probed):
                samples[place].append(self._timed(one.cell, calls[place]))
            if self.stopped():
                return []
            longest_s = max(longest_s, time.monotonic() - begun_s)
            self._tell(f"round {number + 1}", self._share(number + 1, num_rounds))
            if not self._config.iterations and not _agreed(number + 1 < MIN_ROUNDS or longest_s <= self._left_s):
                break
        slowest = _slowest_of_ranks(samples)
        return [
            Sampled(probed=one, samples_s=times, num_calls=num)
            for one, times, num in zip(probed, slowest, calls, strict=True)
        ]

    def stopped(self) -> bool:
        """Whether any rank was asked to stop."""
        asked = torch.tensor([float(self._is_stopped())], dtype=torch.float64)
        dist.all_reduce(asked, op=dist.ReduceOp.MAX)
        return bool(asked[0] > 0)

    def _share(self, number: int, num_rounds: int) -> float:
        if self._config.iterations:
            return number / num_rounds
        return min(1.0, max(number / num_rounds, 1.0 - self._left_s / self._config.budget_s))

    def _probed(self, cell: Cell) -> Probed:
        wrong = torch.tensor([self._operations.num_wrong(cell)], dtype=torch.int64)
        dist.all_reduce(wrong)
        slowest = torch.tensor([self._timed(cell, 1)], dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        return Probed(cell=cell, once_s=float(slowest[0]), num_wrong=int(wrong[0]))

    def _calls(self, probed: Sequence[Probed]) -> list[int]:
        """In one loop of each cell: what was asked for, or one and what its share of the rest of a round allows."""
        if self._config.iterations:
            return [-(-self._config.iterations // min(self._config.iterations, ROUNDS_OF_GIVEN))] * len(probed)
        round_s = self._left_s / WANTED_ROUNDS
        once_s = sum(one.once_s for one in probed) * (1 + self._config.warmup)
        share_s = max(round_s - once_s, 0.0) / max(len(probed), 1)
        calls = torch.tensor([min(MAX_CALLS, 1 + int(share_s / one.once_s)) for one in probed])
        dist.broadcast(calls, src=0)
        return [int(number) for number in calls]

    def _timed(self, cell: Cell, num_calls: int) -> float:
        """Time per call of a loop that all ranks begin together."""
        self._operations.clear(cell)
        call = self._operations.call(cell)
        for _ in range(self._config.warmup):
            call()
        settle(self._device)
        _meet()
        begun_s = time.perf_counter()
        for _ in range(num_calls):
            call()
        settle(self._device)
        taken_s = time.perf_counter() - begun_s
        self._watchdog.step_done(step=self._num_done, seconds_s=taken_s, loss=None, flop_per_s=0.0)
        self._num_done += 1
        return taken_s / num_calls


def _scaled_s(before: Probed | None, cell: Cell) -> float:
    """What a cell will take at most, from a smaller one: in proportion to its size."""
    return 0.0 if before is None else before.once_s * cell.size_bytes / before.cell.size_bytes


def _agreed(is_so: bool) -> bool:
    """What rank 0 thinks."""
    said = torch.tensor([int(is_so)])
    dist.broadcast(said, src=0)
    return bool(said[0])


def _meet() -> None:
    """Wait for all ranks, on the host: a barrier on the device would be part of what is timed."""
    dist.all_reduce(torch.zeros(1))


def _slowest_of_ranks(samples: list[list[float]]) -> list[list[float]]:
    """As nccl-tests -a 3: a root is done when its data lies in the sockets' buffers, the operation when it has come."""
    together = torch.tensor(samples, dtype=torch.float64)
    dist.all_reduce(together, op=dist.ReduceOp.MAX)
    slowest: list[list[float]] = together.tolist()
    return slowest
