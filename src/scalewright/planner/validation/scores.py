"""Scores of predictions against measurements. Plain arithmetic over arrays; nothing here knows where rows come from."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
DIFFERENT_FRAC = 0.02
"""Two measured times closer than this are a tie, and no pair to judge an order by."""


def error_frac(predicted: Array, measured: Array) -> Array:
    return predicted / measured - 1.0


def mape_frac(predicted: Array, measured: Array) -> float:
    return float(np.mean(np.abs(error_frac(predicted, measured))))


def median_ape_frac(predicted: Array, measured: Array) -> float:
    return float(np.median(np.abs(error_frac(predicted, measured))))


def bias_frac(predicted: Array, measured: Array) -> float:
    """Mean signed error: negative means predicted too fast."""
    return float(np.mean(error_frac(predicted, measured)))


def ranks(values: Array) -> Array:
    """Average ranks, ties shared."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts).astype(np.float64)
    return np.asarray((last - (counts - 1) / 2.0)[inverse], dtype=np.float64)


def spearman(predicted: Array, measured: Array) -> float | None:
    """Rank correlation; None where either side is constant."""
    a, b = ranks(predicted), ranks(measured)
    a, b = a - a.mean(), b - b.mean()
    norm = float(np.sqrt(np.sum(a * a) * np.sum(b * b)))
    return None if norm == 0.0 else float(np.sum(a * b) / norm)


def regret_frac(predicted: Array, measured: Array) -> float:
    """How much slower the layout we would choose ran than the best one."""
    return float(measured[np.argmin(predicted)] / measured.min() - 1.0)


def pairwise_accuracy_frac(predicted: Array, measured: Array) -> float | None:
    """Share of pairs, measured more than 2 % apart, that we order as measured; a predicted tie counts half."""
    i, j = np.triu_indices(len(measured), k=1)
    slower, faster = np.maximum(measured[i], measured[j]), np.minimum(measured[i], measured[j])
    keep = slower / faster - 1.0 > DIFFERENT_FRAC
    if not keep.any():
        return None
    truth = np.sign(measured[i] - measured[j])[keep]
    guess = np.sign(predicted[i] - predicted[j])[keep]
    return float(np.mean(np.where(guess == 0, 0.5, guess == truth)))


def mean_of(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known else None


def weighted_quantile(values: Array, weights: Array, quantile: float) -> float:
    """Quantile of a weighted sample: the value at which the cumulated weight passes `quantile`."""
    order = np.argsort(values)
    cumulated = np.cumsum(weights[order]) - 0.5 * weights[order]
    return float(np.interp(quantile, cumulated / weights.sum(), values[order]))


def winkler(low: Array, high: Array, measured: Array, coverage_frac: float) -> Array:
    """Interval score: lower is better, for intervals that are narrow and still hold what was measured.

    Equation  (high - low) + 2 / (1 - c) x how far the measured value lies outside
    Source    Winkler 1972; Gneiting and Raftery 2007, Strictly proper scoring rules, section 6.2
    Checked   tests/planner/test_scores.py: least for the true quantiles of drawn values
    """
    outside = np.maximum(low - measured, 0.0) + np.maximum(measured - high, 0.0)
    score: Array = (high - low) + 2.0 / (1.0 - coverage_frac) * outside
    return score
