"""Time collectives in rounds. Every round goes through all operations and sizes, so that a disturbance hits all alike.

Ranks decide together. Rank 0 decides what depends on a clock and broadcasts it: otherwise a rank could wait for a call
that another rank never makes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from scalewright import units
from scalewright.run.micro.collective_ops import CollectiveCell, Operations
from scalewright.run.micro.time_budget import TimeBudget
from scalewright.run.micro.timing import synchronise
from scalewright.run.watchdog import Watchdog
from scalewright.workload.collectives_run import CollectivesRun

MIN_ROUNDS, USUAL_ROUNDS, MAX_ROUNDS = 3, 11, 31
"""With eleven rounds, the 95 % interval of the median leaves out the fastest and the slowest."""
ITERATION_ROUNDS = 5
"""Rounds over which a requested number of iterations is spread."""
MAX_CALLS = 100
"""Calls timed in one loop."""
PROBE_CALLS = 2
"""Calls of a probe: one whose result is checked and one that is timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedCell:
    """A cell that was called and checked once."""

    cell: CollectiveCell
    once_s: float
    """Of the slowest rank."""
    num_wrong: int
    """On all ranks together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledCell:
    """A cell with its times: one per round, the mean of its calls on the rank that took longest."""

    probed: ProbedCell
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
        report_part: Callable[[str, float], None],
    ) -> None:
        self._operations, self._config, self._device = operations, config, device
        self._watchdog, self._is_stopped, self._report_part = watchdog, is_stopped, report_part
        self._budget = TimeBudget(total_s=config.budget_s)
        self._num_done = 0
        self.notes: list[str] = []

    def probe(self, columns: Sequence[Sequence[CollectiveCell]]) -> list[ProbedCell]:
        """Every cell once, size by size over all operations; sizes that the budget has no time for are left out."""
        probes: list[ProbedCell] = []
        probed_s = 0.0
        longest = max((len(column) for column in columns), default=0)
        for from_end in range(longest, 0, -1):  # from the end: operations may lack their smallest sizes
            cells = [column[-from_end] for column in columns if from_end <= len(column)]
            before = {probed.cell.op: probed for probed in probes}  # the size before, by operation
            next_s = sum(_scaled_s(before.get(cell.op), cell) for cell in cells)
            rounds = MIN_ROUNDS * (1 + self._config.warmup)
            fits = probed_s * rounds + next_s * (PROBE_CALLS + rounds) <= self._budget.left_s
            if not self._config.iterations and not _agreed(fits):
                least = units.format(min(cell.size_bytes for cell in cells), units.BYTES)
                budget = units.format(self._budget.total_s, units.SECONDS)
                self.notes.append(f"sizes from {least} on were left out: a budget of {budget} has no time for them")
                break
            for cell in cells:
                probed = self._probed(cell)
                probes.append(probed)
                probed_s += probed.once_s
            if self.stopped():
                return []
        return probes

    def sample(self, probed: Sequence[ProbedCell]) -> list[SampledCell]:
        """The times of each cell; empty if a signal asked the run to stop."""
        if not probed:
            return []
        calls = self._calls(probed)
        samples: list[list[float]] = [[] for _ in probed]
        num_rounds = min(self._config.iterations, ITERATION_ROUNDS) if self._config.iterations else MAX_ROUNDS
        longest_s = 0.0
        for number in range(num_rounds):
            begun_s = time.monotonic()
            for index, one in enumerate(probed):
                samples[index].append(self._timed(one.cell, calls[index]))
            if self.stopped():
                return []
            longest_s = max(longest_s, time.monotonic() - begun_s)
            self._report_part(f"round {number + 1}", self._share(number + 1, num_rounds))
            if not self._config.iterations and not _agreed(number + 1 < MIN_ROUNDS or longest_s <= self._budget.left_s):
                break
        slowest = _slowest_of_ranks(samples)
        return [
            SampledCell(probed=one, samples_s=times, num_calls=num)
            for one, times, num in zip(probed, slowest, calls, strict=True)
        ]

    def stopped(self) -> bool:
        """Whether a signal asked any rank to stop."""
        any_stopped = torch.tensor([float(self._is_stopped())], dtype=torch.float64)
        dist.all_reduce(any_stopped, op=dist.ReduceOp.MAX)
        return bool(any_stopped[0] > 0)

    def _share(self, number: int, num_rounds: int) -> float:
        if self._config.iterations:
            return number / num_rounds
        return max(min(1.0, number / num_rounds), self._budget.used_frac)

    def _probed(self, cell: CollectiveCell) -> ProbedCell:
        wrong = torch.tensor([self._operations.num_wrong(cell)], dtype=torch.int64)
        dist.all_reduce(wrong)
        slowest = torch.tensor([self._timed(cell, 1)], dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        return ProbedCell(cell=cell, once_s=float(slowest[0]), num_wrong=int(wrong[0]))

    def _calls(self, probed: Sequence[ProbedCell]) -> list[int]:
        """Calls in one loop of each cell: as configured, or one call plus what its share of a round allows."""
        if self._config.iterations:
            return [-(-self._config.iterations // min(self._config.iterations, ITERATION_ROUNDS))] * len(probed)
        round_s = self._budget.left_s / USUAL_ROUNDS
        once_s = sum(one.once_s for one in probed) * (1 + self._config.warmup)
        share_s = max(round_s - once_s, 0.0) / max(len(probed), 1)
        calls = torch.tensor([min(MAX_CALLS, 1 + int(share_s / one.once_s)) for one in probed])
        dist.broadcast(calls, src=0)
        return [int(number) for number in calls]

    def _timed(self, cell: CollectiveCell, num_calls: int) -> float:
        """Time per call of a loop that all ranks start together."""
        self._operations.clear(cell)
        call = self._operations.call(cell)
        for _ in range(self._config.warmup):
            call()
        synchronise(self._device)
        _meet()
        begun_s = time.perf_counter()
        for _ in range(num_calls):
            call()
        synchronise(self._device)
        taken_s = time.perf_counter() - begun_s
        self._watchdog.step_done(step=self._num_done, seconds_s=taken_s, loss=None, flop_per_s=0.0)
        self._num_done += 1
        return taken_s / num_calls


def _scaled_s(before: ProbedCell | None, cell: CollectiveCell) -> float:
    """Upper bound of a cell's time: the time of a smaller one, in proportion to the sizes."""
    return 0.0 if before is None else before.once_s * cell.size_bytes / before.cell.size_bytes


def _agreed(own_decision: bool) -> bool:
    """The decision of rank 0."""
    decision = torch.tensor([int(own_decision)])
    dist.broadcast(decision, src=0)
    return bool(decision[0])


def _meet() -> None:
    """Wait for all ranks, on the host: a barrier on the device would be part of the timed work."""
    dist.all_reduce(torch.zeros(1))


def _slowest_of_ranks(samples: list[list[float]]) -> list[list[float]]:
    """The slowest rank counts, as in nccl-tests -a 3: a root returns when its data is in the sockets' buffers."""
    together = torch.tensor(samples, dtype=torch.float64)
    dist.all_reduce(together, op=dist.ReduceOp.MAX)
    slowest: list[list[float]] = together.tolist()
    return slowest
