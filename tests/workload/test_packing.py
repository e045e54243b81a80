"""Sequences of uneven length as micro-batches."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalewright.workload.lengths import LogNormalLength, fixed
from scalewright.workload.packing import packed, padded


def test_equal_sequences_fill_whole_micro_batches() -> None:
    batches = packed(fixed(900), prompt_len=100, num_sequences=64, num_updates=2, num_ranks=4, pack_tokens=4000)
    assert (batches.num_micro_batches, batches.num_tokens, batches.num_together, batches.seq) == (2, 4000.0, 4, 1000)


@settings(deadline=None, max_examples=30)
@given(cv=st.floats(0.2, 2.0), ranks=st.sampled_from([1, 2, 8, 16]), updates=st.sampled_from([1, 2, 4]))
def test_no_tokens_are_lost(cv: float, ranks: int, updates: int) -> None:
    answers = LogNormalLength(num_mean=1000.0, cv=cv, num_max=4000.0)
    batches = packed(answers, prompt_len=100, num_sequences=512, num_updates=updates, num_ranks=ranks, pack_tokens=4100)
    here = batches.num_micro_batches * batches.num_tokens
    share = 512 * 1100 / updates / ranks
    assert here >= 0.99 * share  # the busiest rank has at least its share
    assert batches.num_tokens <= 4100 + 1e-6
    assert batches.num_together >= 1


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
    assert tight.num_tokens == pytest.approx(4100, rel=0.15)
