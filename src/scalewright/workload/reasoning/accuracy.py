"""Shares of solved problems with their intervals, pass@k, and what one model solves more than another."""

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
    return _wilson(num_hits / num, float(num))


def _wilson(p: float, n: float) -> Rate:
    z = NormalDist().inv_cdf(0.5 + COVERAGE_FRAC / 2)
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
    """Mean of `pass_at_k_frac` over problems; the interval is that of means over resampled problems.

    Where all problems have the same share, above all 0 or 1, resampling says nothing: then the interval is Wilson's for
    so many problems, as if each were solved or not. No share of problems varies more than that.
    """
    shares = np.array([pass_at_k_frac(num_right=right, num_answers=num_answers, k=k) for right in num_right])
    if np.ptp(shares) == 0.0:
        return _wilson(float(shares[0]), float(len(shares)))
    rng = np.random.default_rng(0)
    means = shares[rng.integers(len(shares), size=(NUM_RESAMPLES, len(shares)))].mean(axis=1)
    low, high = np.quantile(means, [(1 - COVERAGE_FRAC) / 2, (1 + COVERAGE_FRAC) / 2])
    return Rate(value_frac=float(shares.mean()), low_frac=float(low), high_frac=float(high))


def paired_rise(*, num_both: int, num_gained: int, num_lost: int, num_neither: int) -> Rate:
    """How much larger a second share is than a first one on the same problems, with its 95 % interval.

    Equation  d = p - q;  low = d - sqrt(a^2 - 2 c a b + b^2) with a = p - l, b = v - q
              high = d + sqrt(a^2 - 2 c a b + b^2) with a = u - p, b = q - m
              l, u and m, v: Wilson's intervals of p and q;  c = C / sqrt((e + f)(g + h)(e + g)(f + h))
              C = e h - f g, less n/2 but not below 0 where it is above 0;  e, f, g, h: both, gained, lost, neither
    Source    newcombepaired1998 (Statistics in Medicine 17, 2635-2650), method 10
    Assumes   independent problems
    Checked   tests/workload/test_accuracy.py: 36, 12, 2, 0 gives 0.0569 to 0.3404; 14, 5, 0, 22 gives 0.011 to 0.226
    """
    e, f, g, h = num_both, num_gained, num_lost, num_neither
    n = e + f + g + h
    after, before = wilson_rate(num_hits=e + f, num=n), wilson_rate(num_hits=e + g, num=n)
    p, q = after.value_frac, before.value_frac
    excess = float(e * h - f * g)
    spread = math.sqrt(float((e + f) * (g + h) * (e + g) * (f + h)))
    c = (max(excess - n / 2, 0.0) if excess > 0 else excess) / spread if spread else 0.0
    low = _joined(p - after.low_frac, before.high_frac - q, c)
    high = _joined(after.high_frac - p, q - before.low_frac, c)
    return Rate(value_frac=p - q, low_frac=p - q - low, high_frac=p - q + high)


def _joined(a: float, b: float, c: float) -> float:
    return math.sqrt(max(a * a - 2.0 * c * a * b + b * b, 0.0))


def rise_of_marks(after: str, before: str) -> Rate:
    """The same for the marks of two models: one character a problem, 1 where it is solved."""
    pairs = list(zip(after, before, strict=True))
    return paired_rise(
        num_both=pairs.count(("1", "1")), num_gained=pairs.count(("1", "0")), num_lost=pairs.count(("0", "1")),
        num_neither=pairs.count(("0", "0")),
    )  # fmt: skip
