"""Intervals of shares, and pass@k."""

from __future__ import annotations

import itertools

import pytest

from scalewright.workload.reasoning.accuracy import pass_at_k_frac, pass_rate, wilson_rate


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
    assert pass_rate([4, 4], num_answers=4, k=2).low_frac == 1.0
