"""Sequences of uneven length as micro-batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalewright.workload.lengths import LengthDistribution, LogNormalLength
from scalewright.workload.packing import packed, padded


def packed_one_by_one(
    answers: LengthDistribution, *, prompt_len: int, num_sequences: int, num_updates: int, num_ranks: int,
    pack_tokens: float,
) -> tuple[float, float]:  # fmt: skip
    """Micro-batches of the rank with the most, and tokens of the rank with the most, in the mean of all updates:
    longest first to the rank with the fewest tokens, and on each rank into the fullest pack with room."""
    order = np.random.default_rng(0).permutation(num_sequences)
    lengths = prompt_len + answers.quantiles((order + 0.5) / num_sequences)
    counts, most = [], []
    for update in np.split(lengths, num_updates):
        ranks: list[list[float]] = [[] for _ in range(num_ranks)]
        for length in sorted(update, reverse=True):
            min(ranks, key=sum).append(length)
        counts.append(max(num_packs(rank, pack_tokens) for rank in ranks))
        most.append(max(sum(rank) for rank in ranks))
    return float(np.mean(counts)), float(np.mean(most))


def num_packs(lengths: list[float], pack_tokens: float) -> int:
    free: list[float] = []
    for length in lengths:
        fitting = [room for room in free if room >= length]
        if fitting:
            free.remove(min(fitting))
        free.append((min(fitting) if fitting else max(pack_tokens, length)) - length)
    return len(free)


@pytest.mark.parametrize(("cv", "ranks", "updates", "tokens"), [
    (0.8, 4, 2, 4100), (0.8, 8, 1, 8200), (0.3, 8, 2, 6000), (1.5, 4, 1, 8200), (0.8, 2, 1, 16384),
])  # fmt: skip
def test_micro_batches_are_those_of_sequences_packed_one_by_one(
    cv: float, ranks: int, updates: int, tokens: int
) -> None:
    answers = LogNormalLength(num_mean=1000.0, cv=cv, num_max=4000.0)
    case: dict[str, Any] = {
        "prompt_len": 100, "num_sequences": 256, "num_updates": updates, "num_ranks": ranks, "pack_tokens": tokens
    }  # fmt: skip
    batches, (num, most) = packed(answers, **case), packed_one_by_one(answers, **case)
    assert batches.num_micro_batches == pytest.approx(num, rel=0.25)
    assert batches.num_sequences * batches.seq == pytest.approx(most, rel=0.10)


@settings(deadline=None, max_examples=30)
@given(
    cv=st.floats(0.2, 2.0), times=st.floats(1.0, 2.0), ranks=st.sampled_from([1, 2, 8, 16]),
    updates=st.sampled_from([1, 2, 4]),
)  # fmt: skip
def test_a_longer_tail_never_has_less_to_do(cv: float, times: float, ranks: int, updates: int) -> None:
    """No tokens are lost, micro-batches hold as many sequences, and attention reaches no less."""
    answers = LogNormalLength(num_mean=1000.0, cv=cv, num_max=4000.0)
    case: dict[str, Any] = {
        "prompt_len": 100, "num_sequences": 512, "num_updates": updates, "num_ranks": ranks, "pack_tokens": 4100
    }  # fmt: skip
    before = packed(answers, **case)
    assert before.num_sequences * before.seq >= 512 * 1100 / updates / ranks * (1.0 - 1e-9)
    assert 1.0 <= before.num_tokens / before.seq <= 4100 / 1100
    for longer in (replace(answers, cv=cv * times), replace(answers, num_max=4000.0 * times)):
        after = packed(longer, **case)
        assert after.num_sequences >= before.num_sequences * (1.0 - 1e-9)
        assert after.attended_frac >= before.attended_frac * (1.0 - 1e-9)
        assert (after.num_together, after.seq) == (before.num_together, before.seq)


def test_one_long_answer_holds_up_its_rank() -> None:
    tail = LogNormalLength(num_mean=1000.0, cv=2.0, num_max=28000.0)
    few, many = (
        packed(tail, prompt_len=100, num_sequences=4096, num_updates=16, num_ranks=n, pack_tokens=60000)
        for n in (4, 64)
    )
    assert few.num_micro_batches * few.num_tokens < 1.5 * 256 * 1100 / 4
    assert many.num_micro_batches * many.num_tokens > 1.5 * 256 * 1100 / 64


def test_padding_fills_every_sequence_up_to_the_longest() -> None:
    batches = padded(longest_len=4096, num_sequences=512, num_updates=1, num_ranks=16, micro_batch=2)
    assert (batches.num_micro_batches, batches.num_tokens) == (16, 8192.0)


def test_packing_never_takes_more_than_padding() -> None:
    answers = LogNormalLength(num_mean=1000.0, cv=0.8, num_max=3985.0)
    tight = packed(answers, prompt_len=115, num_sequences=512, num_updates=1, num_ranks=8, pack_tokens=4100)
    loose = padded(longest_len=4100, num_sequences=512, num_updates=1, num_ranks=8, micro_batch=1)
    assert tight.num_micro_batches < 0.5 * loose.num_micro_batches
    assert tight.num_tokens <= 4100
