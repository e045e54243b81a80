"""Scores of predictions, against values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalewright.planner.validation import scores


def column(*values: float) -> scores.Array:
    return np.array(values, dtype=np.float64)


TIMES = st.lists(st.floats(0.01, 1000.0), min_size=2, max_size=12)


def test_errors_are_relative_to_the_measured_time() -> None:
    predicted, measured = column(110.0, 50.0, 100.0), column(100.0, 100.0, 100.0)
    assert scores.mape_frac(predicted, measured) == pytest.approx(0.2)
    assert scores.median_ape_frac(predicted, measured) == pytest.approx(0.1)
    assert scores.bias_frac(predicted, measured) == pytest.approx((0.1 - 0.5) / 3)


def test_ties_share_their_ranks() -> None:
    assert scores.ranks(column(5.0, 1.0, 5.0, 9.0)).tolist() == [2.5, 1.0, 2.5, 4.0]


def test_spearman_with_ties() -> None:
    # ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: 4.5 / sqrt(4.5 x 5)
    assert scores.spearman(column(1, 2, 2, 3), column(1, 2, 3, 4)) == pytest.approx(4.5 / 22.5**0.5)


def test_spearman_of_a_reversed_order_and_of_a_constant() -> None:
    assert scores.spearman(column(3, 2, 1), column(1, 2, 3)) == pytest.approx(-1.0)
    assert scores.spearman(column(2, 2, 2), column(1, 2, 3)) is None


@given(values=TIMES)
@settings(deadline=None, max_examples=60)
def test_rank_scores_see_only_the_order(values: list[float]) -> None:
    measured = column(*values)
    warped = measured * 3.0 + 1.0
    assert scores.regret_frac(warped, measured) == pytest.approx(0.0)
    share = scores.pairwise_accuracy_frac(warped, measured)
    assert share is None or share == pytest.approx(1.0)


def test_regret_is_what_our_choice_loses_to_the_best() -> None:
    assert scores.regret_frac(column(3, 1, 2), column(10, 12, 11)) == pytest.approx(0.2)


def test_pairs_within_two_percent_are_not_judged_and_predicted_ties_count_half() -> None:
    # 1.00 and 1.01 are a tie; (1.00, 2.00) is predicted the wrong way round; (1.01, 2.00) is predicted equal.
    assert scores.pairwise_accuracy_frac(column(5, 4, 4), column(1.0, 1.01, 2.0)) == pytest.approx(0.25)


def test_no_pair_to_judge_gives_no_score() -> None:
    assert scores.pairwise_accuracy_frac(column(1, 2), column(1.0, 1.019)) is None
    assert scores.pairwise_accuracy_frac(column(1, 2), column(1.0, 1.021)) == 1.0


def test_mean_of_passes_over_what_is_unknown() -> None:
    assert scores.mean_of([1.0, None, 3.0]) == 2.0
    assert scores.mean_of([None]) is None


def test_weighted_quantile() -> None:
    # Middles of the weights at 0.125, 0.375 and 0.75 of the total: 0.5 lies a third of the way from 2 to 3.
    assert scores.weighted_quantile(column(1, 2, 3), column(1, 1, 2), 0.5) == pytest.approx(2 + 1 / 3)
    assert scores.weighted_quantile(column(3, 1, 2), column(1, 1, 1), 0.5) == pytest.approx(2.0)


@given(values=TIMES, quantile=st.floats(0.0, 1.0))
@settings(deadline=None, max_examples=60)
def test_weighted_quantile_stays_inside_the_sample_and_ignores_the_scale_of_weights(
    values: list[float], quantile: float
) -> None:
    sample, weights = column(*values), column(*range(1, len(values) + 1))
    value = scores.weighted_quantile(sample, weights, quantile)
    assert min(values) <= value <= max(values)
    assert scores.weighted_quantile(sample, weights * 7.0, quantile) == pytest.approx(value)


def test_winkler_score_is_least_for_the_quantiles_of_what_was_drawn() -> None:
    drawn = np.random.default_rng(1).normal(10.0, 1.0, 20_000)

    def mean_score(half_width: float) -> float:
        low, high = np.full_like(drawn, 10.0 - half_width), np.full_like(drawn, 10.0 + half_width)
        return float(np.mean(scores.winkler(low, high, drawn, 0.9)))

    assert mean_score(1.645) < min(mean_score(1.3), mean_score(2.0))
    assert scores.winkler(column(1.0), column(2.0), column(1.5), 0.9) == pytest.approx(1.0)
    assert scores.winkler(column(1.0), column(2.0), column(2.1), 0.9) == pytest.approx(1.0 + 2.0 / 0.1 * 0.1)
