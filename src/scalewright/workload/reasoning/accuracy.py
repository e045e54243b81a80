"""Shares of solved problems with their intervals: Wilson's for one answer each, a bootstrap for pass@k."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from scalewright.records.reasoning import Rate

COVERAGE_FRAC = 0.95
NUM_RESAMPLES = 2000


def wilson_rate(*, num_hits: int, num: int) -> Rate:
    """A share and the interval of the true one.

    Equation  (p + z^2/2n +- z sqrt(p (1 - p)/n + z^2/4n^2)) / (1 + z^2/n)
    Source    wilson1927 (JASA 22(158)), 95 %
    Assumes   independent problems
    Checked   tests/workload/test_accuracy.py: 45 of 100 is 0.356 to 0.548; 0 of 10 ends at 0.278
    """
    p, n, z = num_hits / num, float(num), NormalDist().inv_cdf(0.5 + COVERAGE_FRAC / 2)
    middle, spread = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return Rate(
        value_frac=p, low_frac=max((middle - spread) / scale, 0.0), high_frac=min((middle + spread) / scale, 1.0)
    )


def pass_at_k_frac(*, num_right: int, num_answers: int, k: int) -> float:
    """Probability that k of the answers to a problem, drawn without replacement, hold a right one.

    Equation  1 - C(n - c, k) / C(n, k)
    Source    chen2021 (arXiv:2107.03374), equation 1
    Assumes   answers that were drawn independently
    Checked   tests/workload/test_accuracy.py: k = 1 gives c / n; k = n gives 1 with any right answer
    """
    n, c = num_answers, num_right
    return 1.0 if n - c < k else 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))


def pass_rate(num_right: Sequence[int], *, num_answers: int, k: int) -> Rate:
    """Mean of `pass_at_k_frac` over problems; the interval is that of means over resampled problems."""
    shares = np.array([pass_at_k_frac(num_right=right, num_answers=num_answers, k=k) for right in num_right])
    rng = np.random.default_rng(0)
    means = shares[rng.integers(len(shares), size=(NUM_RESAMPLES, len(shares)))].mean(axis=1)
    low, high = np.quantile(means, [(1 - COVERAGE_FRAC) / 2, (1 + COVERAGE_FRAC) / 2])
    return Rate(value_frac=float(shares.mean()), low_frac=float(low), high_frac=float(high))
