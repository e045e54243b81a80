"""Sequences of uneven length as micro-batches: how many a rank works through, and how full they are."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from scalewright.workload.lengths import LengthDistribution

SEED = 0
"""Which sequences meet in an update is drawn once, so that the same question has the same answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """What the busiest rank works through in one update."""

    num_micro_batches: int
    num_tokens: float
    """Of one micro-batch, on average."""
    num_together: int
    """Sequences in a micro-batch, as attention sees them: each attends to itself only."""

    @property
    def seq(self) -> int:
        """Tokens of one of them."""
        return max(round(self.num_tokens / self.num_together), 1)


@lru_cache(maxsize=4096)
def packed(
    answers: LengthDistribution, *, prompt_len: int, num_sequences: int, num_updates: int, num_ranks: int,
    pack_tokens: int,
) -> Packed:  # fmt: skip
    """Sequences of one update, balanced over ranks by their tokens, each rank's packed up to `pack_tokens`.

    Equation  longest first to the rank with the fewest tokens; on each rank longest first into the fullest micro-batch
              that has room;  m the most micro-batches of a rank, T the most tokens of a rank over m
    Source    krell2021 (arXiv:2107.02027), section 3: packing by decreasing length
    Assumes   lengths are the quantiles of their distribution in a random order; ranks run as many micro-batches as the
              one with the most
    Checked   tests/workload/test_packing.py: no tokens lost, never below the longest sequence of a rank
    """
    order = np.random.default_rng(SEED).permutation(num_sequences)
    lengths = prompt_len + answers.quantiles((order + 0.5) / num_sequences)
    each = num_sequences // num_updates
    counts, most = [], []
    for start in range(0, each * num_updates, each):
        ranks = _balanced(np.sort(lengths[start : start + each])[::-1].tolist(), num_ranks)
        counts.append(max(_num_packs(rank, pack_tokens) for rank in ranks))
        most.append(max(sum(rank) for rank in ranks))
    num_micro_batches = max(round(float(np.mean(counts))), 1)
    num_tokens = float(np.mean(most)) / num_micro_batches
    weighted = float(np.sum(lengths**2) / np.sum(lengths))  # the sequence that a token drawn at random is part of
    return Packed(
        num_micro_batches=num_micro_batches, num_tokens=num_tokens, num_together=max(round(num_tokens / weighted), 1)
    )


def padded(*, longest_len: int, num_sequences: int, num_updates: int, num_ranks: int, micro_batch: int) -> Packed:
    """Sequences of one update, `micro_batch` at a time, each filled up to the longest."""
    num_micro_batches = -(-num_sequences // (num_updates * num_ranks * micro_batch))
    return Packed(
        num_micro_batches=num_micro_batches, num_tokens=float(micro_batch * longest_len), num_together=micro_batch
    )


def _balanced(lengths: Sequence[float], num_ranks: int) -> list[list[float]]:
    """Longest first, each to the rank that has the fewest tokens."""
    ranks: list[list[float]] = [[] for _ in range(num_ranks)]
    loads = [(0.0, rank) for rank in range(num_ranks)]
    for length in lengths:
        load, rank = loads[0]
        ranks[rank].append(length)
        heapq.heapreplace(loads, (load + length, rank))
    return ranks


def _num_packs(lengths: Sequence[float], pack_tokens: float) -> int:
    """Longest first, each into the fullest pack with room for it."""
    free: list[float] = []
    for length in lengths:
        place = bisect_left(free, length)
        room = free.pop(place) if place < len(free) else max(pack_tokens, length)
        insort(free, room - length)
    return len(free)
