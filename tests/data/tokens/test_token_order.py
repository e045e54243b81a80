"""The order of training samples: a bijection in every epoch, the same on any number of ranks and after any stop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalewright.data.tokens.files import MappedTokens
from scalewright.data.tokens.mixture import BLOCK, Mixture
from scalewright.data.tokens.order import EpochOrder
from scalewright.data.tokens.permutation import Permutation
from scalewright.data.tokens.reader import TokenReader, samples_of_rank
from scalewright.data.tokens.samples import TokenSamples
from scalewright.data.tokens.token_set import TokenSet
from scalewright.errors import ConfigError

SEQ = 3


@given(size=st.integers(1, 3000), key=st.integers(0, 2**63 - 1))
def test_a_permutation_takes_every_number_once(size: int, key: int) -> None:
    taken = Permutation(size, key)(np.arange(size))
    assert np.array_equal(np.sort(taken), np.arange(size))


def test_a_permutation_of_a_range_larger_than_memory_starts_anywhere() -> None:
    shuffle = Permutation(10**15, 7)
    places = np.array([0, 1, 10**15 - 1, 123456789012345])
    assert [int(shuffle(places[i : i + 1])[0]) for i in range(4)] == shuffle(places).tolist()
    assert len(set(shuffle(np.arange(10_000)).tolist())) == 10_000


def scrambled(word: int) -> int:
    """SplitMix64's finaliser, in whole numbers of any size."""
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
    return word ^ (word >> 31)


def test_a_permutation_does_not_depend_on_the_library() -> None:
    golden, key = 0x9E3779B97F4A7C15, 3
    state = scrambled((golden + key) % 2**64)
    keys = [scrambled((state + golden * (number + 1)) % 2**64) for number in range(8)]
    left, right = 0, 2  # of a 4 x 3 grid of 10 numbers, place 2
    for number, one in enumerate(keys):
        if number % 2:
            right = (right + scrambled((left + one) % 2**64)) % 3
        else:
            left = (left + scrambled((right + one) % 2**64)) % 4
    assert int(Permutation(10, key)(np.array([2]))[0]) == left * 3 + right


@pytest.mark.parametrize("size", [2, 5, 16, 40])
def test_keys_put_each_number_everywhere_equally_often(size: int) -> None:
    keys = 1500
    table = np.zeros((size, size))
    for key in range(keys):
        table[np.arange(size), Permutation(size, key)(np.arange(size))] += 1
    expected = keys / size
    chi_square = float(((table - expected) ** 2 / expected).sum())
    freedom = (size - 1) ** 2
    assert chi_square < freedom + 5 * np.sqrt(2 * freedom) + 5


@given(
    runs=st.lists(st.integers(0, 20), min_size=1, max_size=40).filter(any),
    seed=st.integers(0, 99),
    epoch=st.integers(0, 3),
)
def test_an_epoch_takes_every_window_once_and_few_runs_at_a_time(runs: list[int], seed: int, epoch: int) -> None:
    num = sum(runs)
    windows = EpochOrder(runs, seed=seed, epoch=epoch)(np.arange(num))
    assert np.array_equal(np.sort(windows), np.arange(num))
    run_of = np.repeat(np.arange(len(runs)), runs)[windows]
    lasts = {int(run): int(np.flatnonzero(run_of == run)[-1]) for run in np.unique(run_of)}
    begun: set[int] = set()
    for place, run in enumerate(run_of.tolist()):
        begun = {other for other in begun if lasts[other] >= place} | {run}
        assert len(begun) <= 8


@settings(max_examples=25, deadline=None)
@given(weights=st.lists(st.floats(0.1, 40.0), min_size=1, max_size=8), start=st.integers(0, 3 * BLOCK))
def test_weights_hold_within_a_sample_from_the_start_of_every_block(weights: list[float], start: int) -> None:
    mixture = Mixture(weights)
    shares = np.asarray(weights) / sum(weights)
    sets, numbers = mixture(np.arange(BLOCK))
    counts = np.stack([np.cumsum(sets == one) for one in range(len(weights))])
    whole = counts[:, -1] / BLOCK
    assert np.all(np.abs(counts[:, -1] - shares * BLOCK) < 1.0)
    assert np.all(np.abs(counts - np.outer(whole, np.arange(1, BLOCK + 1))) < 1.0)
    for one in range(len(weights)):
        assert np.array_equal(numbers[sets == one], np.arange(counts[one, -1]))
    later, later_numbers = mixture(np.arange(start, start + 50))
    for one in range(len(weights)):
        before = mixture.taken(start)[one]
        assert later_numbers[later == one].tolist() == list(range(before, before + int((later == one).sum())))


@pytest.mark.parametrize("weights", [[], [0.0], [1.0, -1.0], [1.0, float("inf")], [1.0, 1e-9]])
def test_weights_that_no_block_can_hold_are_refused(weights: list[float]) -> None:
    with pytest.raises(ConfigError):
        Mixture(weights)


def numbered(*sizes: int, weights: list[float] | None = None, seed: int = 0) -> TokenSamples:
    """Sets whose windows tell their set and place: set k has tokens k * 10000, k * 10000 + 1, ..."""
    sets = [
        TokenSet(f"set{k}", [MappedTokens(Path(f"set{k}"), np.arange(size * SEQ + 1, dtype=np.int32) + k * 10_000)])
        for k, size in enumerate(sizes)
    ]
    return TokenSamples(sets, seq_len=SEQ, seed=seed, weights=weights)


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=3),
    seed=st.integers(0, 50),
    attempts=st.lists(
        st.tuples(st.sampled_from([1, 2, 3, 4]), st.integers(1, 3), st.integers(0, 4)), min_size=1, max_size=4
    ),
)
def test_any_ranks_stops_and_changes_of_ranks_give_one_global_sequence(
    sizes: list[int], seed: int, attempts: list[tuple[int, int, int]]
) -> None:
    samples = numbered(*sizes, seed=seed)
    seen: list[int] = []
    state = None
    for num_ranks, per_rank, num_batches in attempts:
        readers = [
            TokenReader(samples, batch=num_ranks * per_rank, rank=rank, num_ranks=num_ranks, state=state)
            for rank in range(num_ranks)
        ]
        for _ in range(num_batches):
            seen += [int(row[0]) for reader in readers for row in next(reader)]
        states = [reader.state() for reader in readers]
        assert all(one == states[0] for one in states)
        state = states[0]
        for reader in readers:
            reader.close()
    assert state is not None
    assert state["num_samples"] == len(seen)
    if seen:
        assert seen == samples.read(range(len(seen)))[:, 0].tolist()


@settings(max_examples=40, deadline=None)
@given(size=st.integers(1, 200), other=st.integers(1, 50), seed=st.integers(0, 99))
def test_no_sample_comes_twice_in_an_epoch_and_the_next_has_another_order(size: int, other: int, seed: int) -> None:
    samples = numbered(size, other, weights=[2.0, 1.0], seed=seed)
    sets, windows = samples.places(range(4 * (size + other)))
    for one, num in enumerate((size, other)):
        own = windows[sets == one]
        for first in range(0, len(own) - num + 1, num):
            assert sorted(own[first : first + num].tolist()) == list(range(num))
    if size > 20:
        own = windows[sets == 0]
        assert own[:size].tolist() != own[size : 2 * size].tolist() or len(own) < 2 * size


@pytest.mark.parametrize(("dp", "mbs"), [(1, 1), (1, 4), (2, 2), (4, 1), (8, 1)])
def test_layouts_divide_a_batch_without_gap_or_overlap(dp: int, mbs: int) -> None:
    taken = [index for rank in range(dp) for index in samples_of_rank(gbs=8, dp=dp, mbs=mbs, dp_rank=rank)]
    assert sorted(taken) == list(range(8))


def test_a_state_of_other_data_is_refused() -> None:
    reader = TokenReader(numbered(10), batch=2)
    next(reader)
    state = reader.state()
    reader.close()
    with pytest.raises(ConfigError, match=r"had \[31\] tokens and has \[34\]"):
        TokenReader(numbered(11), batch=2, state=state)
    for broken in ({"num_samples": 3}, {"num_samples": "x", "set_tokens": [31]}):
        with pytest.raises(ConfigError, match="not whole"):
            TokenReader(numbered(10), batch=2, state=broken)


@pytest.mark.parametrize(("batch", "rank", "num_ranks"), [(3, 0, 2), (1, 0, 2), (2, 2, 2), (2, -1, 2)])
def test_batches_that_ranks_cannot_share_are_refused(batch: int, rank: int, num_ranks: int) -> None:
    with pytest.raises(ConfigError):
        TokenReader(numbered(10), batch=batch, rank=rank, num_ranks=num_ranks)
