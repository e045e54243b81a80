"""Distributions of lengths: what they say against what they draw, and what they refuse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalewright.errors import ConfigError
from scalewright.workload.lengths import CELL_ENDS, LengthDistribution, LogNormalLength, lengths_seen, parse_lengths

TEXTS = (
    "fixed:512",
    "uniform:64-512",
    "lognormal:mean=512,cv=0.8",
    "lognormal:mean=512,cv=1.5,max=2048",
    "pareto:mean=512,alpha=2.5",
    "pareto:mean=512,alpha=1.8,max=4096",
    "pareto:mean=300,alpha=0.9,max=4096",
)
NUM_DRAWN = 400_000


def drawn(lengths: LengthDistribution, num: int = NUM_DRAWN) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.asarray(lengths.sample(np.random.default_rng(1), num))


@pytest.mark.parametrize("text", TEXTS)
def test_draws_have_the_mean_and_the_quantiles(text: str) -> None:
    lengths = parse_lengths(text)
    sample = drawn(lengths)
    assert sample.min() >= 1
    assert sample.max() <= lengths.longest
    assert sample.mean() == pytest.approx(lengths.mean, rel=0.01)
    for frac in (0.1, 0.5, 0.9, 0.99):
        assert np.quantile(sample, frac) == pytest.approx(lengths.quantile(frac), rel=0.03)
        assert lengths.survival(lengths.quantile(frac) + 1) <= 1.0 - frac + 0.01
    assert lengths.mean_up_to(400.0) == pytest.approx(np.minimum(sample, 400).mean(), rel=0.01)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("num", [1, 16, 256])
def test_the_longest_of_many_is_that_of_draws(text: str, num: int) -> None:
    lengths = parse_lengths(text)
    seen = drawn(lengths, NUM_DRAWN // num * num).reshape(-1, num).max(axis=1)
    assert lengths.expected_max(num) == pytest.approx(seen.mean(), rel=0.04)


@pytest.mark.parametrize("text", TEXTS)
def test_the_mean_age_is_that_of_draws(text: str) -> None:
    sample = drawn(parse_lengths(text)).astype(np.float64)
    assert parse_lengths(text).mean_age == pytest.approx((sample**2).mean() / (2 * sample.mean()), rel=0.08)


def test_a_uniform_maximum_is_the_textbooks() -> None:
    assert parse_lengths("uniform:1-1001").expected_max(9) == pytest.approx(1 + 1000 * 9 / 10, rel=1e-3)
    assert parse_lengths("512").expected_max(100) == 512.0
    assert parse_lengths("512").mean_age == 256.0


@settings(deadline=None, max_examples=40)
@given(mean=st.floats(2, 4096), cv=st.floats(0.05, 3.0), room=st.floats(1.01, 50.0), num=st.integers(1, 512))
def test_a_limit_keeps_the_mean_and_bounds_the_longest(mean: float, cv: float, room: float, num: int) -> None:
    lengths = parse_lengths(f"lognormal:mean={mean},cv={cv},max={mean * room}")
    assert lengths.mean_up_to(lengths.longest) == pytest.approx(mean, rel=5e-3)
    assert lengths.mean * 0.99 <= lengths.expected_max(num) <= lengths.longest * 1.001


@pytest.mark.parametrize("text", TEXTS)
def test_cells_keep_the_mean_and_lie_between_their_quantiles(text: str) -> None:
    lengths = parse_lengths(text)
    means, ends = lengths.cells
    assert float(np.sum(means * np.diff(ends, prepend=0.0))) == pytest.approx(lengths.mean, rel=1e-9)
    assert np.all(np.diff(means) >= 0.0)
    assert np.all(means[:-1] <= lengths.quantiles(ends[:-1]) * (1.0 + 1e-9))


@settings(deadline=None, max_examples=40)
@given(mean=st.floats(2, 4096), cv=st.floats(0.05, 3.0), room=st.floats(1.01, 50.0), times=st.floats(1.0, 3.0))
def test_a_longer_tail_has_fewer_tokens_up_to_every_cell(mean: float, cv: float, room: float, times: float) -> None:
    before = LogNormalLength(num_mean=mean, cv=cv, num_max=mean * room)
    for longer in (replace(before, cv=cv * times), replace(before, num_max=mean * room * times)):
        assert np.all(longer.tokens_up_to(CELL_ENDS) <= before.tokens_up_to(CELL_ENDS) + 1e-9 * mean)


def test_what_was_seen_is_kept() -> None:
    lengths = lengths_seen([5, 1, 3, 3])
    assert (lengths.mean, lengths.longest, lengths.quantile(0.5), lengths.survival(3)) == (3.0, 5.0, 3.0, 0.25)
    assert set(drawn(lengths, 1000)) == {1, 3, 5}


@pytest.mark.parametrize("text", [t for t in TEXTS if t != "fixed:512"] + ["fixed:512"])
def test_the_text_says_the_same_again(text: str) -> None:
    assert parse_lengths(text).text == text
    assert parse_lengths(parse_lengths(text).text) == parse_lengths(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0", "must be 1 or more"),
        ("many", "not a whole number"),
        ("normal:mean=5", "did you mean lognormal"),
        ("uniform:512", "write uniform:64-512"),
        ("uniform:512-64", "write uniform:64-512"),
        ("lognormal:mean=512", "lacks cv"),
        ("lognormal:mean=512,cv=x", "not a number"),
        ("lognormal:mean=512,cv=-1", "above 0"),
        ("lognormal:mean=512,cv=0.8,max=512", "raise max"),
        ("pareto:mean=512,alpha=0.9", "add max="),
        ("pareto:mean=512,alhpa=2", "did you mean alpha"),
        ("fixed:99999999999", "makes sense"),
    ],
)
def test_bad_lengths_are_refused_in_a_sentence(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=r"response|lengths") as refused:
        parse_lengths(text, what="response")
    assert words in str(refused.value)


def test_no_lengths_and_empty_ones_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"prompts\.jsonl holds no lengths"):
        lengths_seen([], origin="prompts.jsonl")
    with pytest.raises(ConfigError, match="1 token or more"):
        lengths_seen([3, 0])
