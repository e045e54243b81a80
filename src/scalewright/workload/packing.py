"""Sequences of uneven length as micro-batches: how many a rank works through, and how full they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scalewright.workload.lengths import LengthDistribution


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """What the busiest rank works through in one update, in sequences of equal length. None of it is a whole number:
    it is the mean of many updates."""

    num_sequences: float
    """Of the busiest rank."""
    num_together: float
    """In a micro-batch."""
    seq: float
    """Tokens of a sequence: the mean."""
    attended_frac: float = 1.0
    """Tokens of the sequence that a token drawn at random is part of, over the mean: each attends to its own only."""

    @property
    def num_micro_batches(self) -> float:
        return self.num_sequences / self.num_together

    @property
    def num_tokens(self) -> float:
        """Of one micro-batch."""
        return self.num_together * self.seq


def packed(
    answers: LengthDistribution, *, prompt_len: int, num_sequences: int, num_updates: int, num_ranks: int,
    pack_tokens: float,
) -> Packed:  # fmt: skip
    """Sequences of one update, balanced over ranks by their tokens, each rank's packed up to `pack_tokens`.

    Equation  T = max(B s / R, E[max of B]) tokens of the busiest of R ranks;  q = min(P / s - 1/2, T / s) sequences
              of the mean length s in a micro-batch, T / (q s) micro-batches; a token attends to E[s^2] / s
    Source    krell2021 (arXiv:2107.02027), section 3: packing by decreasing length leaves hardly any room
    Assumes   ranks are even but for one sequence that is longer than a rank's share; room for half a sequence is left
    Checked   tests/workload/test_packing.py: longest first to the rank with the fewest tokens, packed one by one
    """
    each, mean = num_sequences / num_updates, prompt_len + answers.mean
    means, ends = answers.cells
    longest = prompt_len + float(means[0] + np.sum(np.diff(means) * (1.0 - ends[:-1] ** each)))
    share = max(each / num_ranks, 1.0)
    squares = prompt_len**2 + 2.0 * answers.mean * (prompt_len + answers.mean_age)
    # Room for half a sequence is left on average.
    together = min(max(pack_tokens / mean - 0.5, 1.0), share)
    return Packed(
        num_sequences=max(share, longest / mean), num_together=together, seq=mean, attended_frac=squares / mean**2
    )


def padded(*, longest_len: int, num_sequences: int, num_updates: int, num_ranks: int, micro_batch: int) -> Packed:
    """Sequences of one update, `micro_batch` at a time, each filled up to the longest."""
    num_micro_batches = -(-num_sequences // (num_updates * num_ranks * micro_batch))
    return Packed(
        num_sequences=float(num_micro_batches * micro_batch), num_together=float(micro_batch), seq=float(longest_len)
    )
