"""Intervals of shares, and pass@k."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalewright.workload.reasoning.accuracy import (
    paired_rise,
    pass_at_k_frac,
    pass_rate,
    rise_of_marks,
    wilson_rate,
)


def test_wilson_intervals_are_those_of_tables() -> None:
    rate = wilson_rate(num_hits=45, num=100)
    assert (rate.low_frac, rate.high_frac) == pytest.approx((0.3561, 0.5476), abs=1e-4)
    assert wilson_rate(num_hits=0, num=10).high_frac == pytest.approx(0.2775, abs=1e-4)
    assert wilson_rate(num_hits=0, num=10).low_frac == pytest.approx(0.0, abs=1e-12)


def test_pass_at_k_counts_subsets() -> None:
    answers = [True, True, False, False, False]
    for k in (1, 2, 3, 5):
        subsets = list(itertools.combinations(answers, k))
        share = sum(map(any, subsets)) / len(subsets)
        assert pass_at_k_frac(num_right=2, num_answers=5, k=k) == pytest.approx(share)


def test_the_rate_of_several_problems_is_inside_its_interval() -> None:
    rate = pass_rate([0, 1, 2, 4], num_answers=4, k=1)
    assert rate.value_frac == pytest.approx(7 / 16)
    assert rate.low_frac < rate.value_frac < rate.high_frac


@pytest.mark.parametrize("k", [1, 2, 4])
def test_a_rate_of_0_or_1_has_the_interval_of_wilson(k: int) -> None:
    """Ten problems that no answer solves do not show that none can be solved."""
    nothing, everything = (pass_rate([right] * 10, num_answers=4, k=k) for right in (0, 4))
    assert nothing == wilson_rate(num_hits=0, num=10)
    assert everything == wilson_rate(num_hits=10, num=10)
    assert (nothing.value_frac, everything.value_frac) == (0.0, 1.0)
    assert nothing.high_frac == pytest.approx(0.2775, abs=1e-4)
    assert everything.low_frac == pytest.approx(1.0 - nothing.high_frac)


def test_problems_that_do_not_differ_have_an_interval() -> None:
    rate = pass_rate([2] * 20, num_answers=4, k=1)
    assert rate.low_frac < 0.5 == rate.value_frac < rate.high_frac


@pytest.mark.parametrize(
    ("table", "interval"),
    [((36, 12, 2, 0), (0.0569, 0.3404)), ((14, 5, 0, 22), (0.011, 0.226))],
    ids=["50 pairs", "41 pairs"],
)
def test_paired_rises_are_those_of_published_examples(
    table: tuple[int, int, int, int], interval: tuple[float, float]
) -> None:
    both, gained, lost, neither = table
    rate = paired_rise(num_both=both, num_gained=gained, num_lost=lost, num_neither=neither)
    digits = 4 if interval[0] > 0.05 else 3
    assert (round(rate.low_frac, digits), round(rate.high_frac, digits)) == interval
    assert rate.value_frac == pytest.approx((gained - lost) / sum(table))


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=300))
def test_a_paired_rise_holds_its_value_changes_sign_with_its_sides_and_stays_in_range(
    marks: list[tuple[bool, bool]],
) -> None:
    after, before = ("".join("01"[pair[side]] for pair in marks) for side in (0, 1))
    there, turned = rise_of_marks(after, before), rise_of_marks(before, after)
    assert -1.0 <= there.low_frac <= there.value_frac + 1e-12
    assert there.value_frac - 1e-12 <= there.high_frac <= 1.0
    assert (turned.low_frac, turned.high_frac) == pytest.approx((-there.high_frac, -there.low_frac))


def test_models_that_solve_the_same_problems_are_told_apart_more_sharply() -> None:
    """The same two shares: answers that go together give a narrower interval than answers that do not."""
    alike = paired_rise(num_both=150, num_gained=40, num_lost=0, num_neither=210)
    apart = paired_rise(num_both=71, num_gained=119, num_lost=79, num_neither=131)
    assert alike.value_frac == apart.value_frac == pytest.approx(0.1)
    assert alike.high_frac - alike.low_frac < 0.6 * (apart.high_frac - apart.low_frac)
    assert alike.low_frac > 0.06
    assert apart.low_frac < 0.04
