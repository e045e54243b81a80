"""What choosing costs: the layout that a search picks by its predicted time takes longer than predicted, on average."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from scalewright.costs.breakdown import FloatLike

NUM_DRAWS = 4096
"""Draws of the errors: the mean is known to a fiftieth of the resolution."""
SEED = 2006
"""One fixed sequence of draws: the same search gives the same number on every machine."""


def selection_frac(
    *, log_time: NDArray[np.float64], family: NDArray[np.int64], safety: NDArray[np.int64], resolution_frac: float,
    tolerance_frac: float,
) -> float:  # fmt: skip
    """Part by which the chosen layout takes longer than predicted, on average, because its prediction got it chosen.

    Equation  e^b - 1,  b = E[d_c],  c = the safest i with x_i - d_f(i) <= min_j (x_j - d_f(j)) + ln(1 + tolerance),
              x = ln(predicted time), d_f ~ N(0, ln(1 + resolution)^2), one draw for each family f of layouts
    Source    smith2006 (Management Science 52(3)), section 2: the disappointment to expect of the best of several
              estimates; efron2011 (JASA 106), section 1
    Assumes   errors that differ between layouts of one job are normal; layouts whose devices run the same kernels
              (a family) share theirs, other errors are independent; true times differ as predicted ones do
    Checked   tests/benchmarks/test_layout_resolution.py: on 55 published jobs the layout predicted fastest took 2.8 %
              (standard error 1.3 %) longer than the job's mean error says, where this gives 2.6 %
    """
    x, num_families = np.asarray(log_time, dtype=np.float64), int(np.max(family)) + 1
    spread, tolerance = np.log1p(resolution_frac), np.log1p(tolerance_frac)
    draws = np.random.default_rng(SEED).normal(0.0, spread, (NUM_DRAWS, num_families))[:, family]
    seen = x - draws
    near = seen <= seen.min(axis=1, keepdims=True) + tolerance
    chosen = np.where(near, safety, np.iinfo(np.int64).max).argmin(axis=1)
    return float(np.expm1(draws[np.arange(NUM_DRAWS), chosen].mean()))


def num_equal_layouts(*, selection_frac: float, resolution_frac: float) -> float:
    """How many equally fast layouts would make the fastest look as much too fast.

    Equation  n = (p/4 + 3/8) / (1 - p),  p = Phi(ln(1 + selection) / ln(1 + resolution))
    Source    blom1958, the expected largest of n normal draws is about Phi^-1((n - 3/8) / (n + 1/4))
    Assumes   normal errors
    Checked   tests/costs/test_selection.py: 1, 2, 10 and 100 equal layouts within 5 %
    """
    share = NormalDist().cdf(float(np.log1p(selection_frac) / np.log1p(resolution_frac)))
    return max((share / 4.0 + 3.0 / 8.0) / (1.0 - share), 1.0)


def expected_largest(num_draws: FloatLike) -> FloatLike:
    """Expected largest of so many standard normal draws.

    Equation  z = a - (ln ln n + ln 4 pi) / (2 a),  a = sqrt(2 ln n); 0 for one
    Source    cramer1946 (Mathematical Methods of Statistics), section 28.6
    Assumes   many draws; 0.3 to 0.2 low for two to eight
    Checked   tests/costs/test_compute.py: 3.24 for a thousand within 5 %
    """
    n = np.maximum(np.asarray(num_draws, dtype=np.float64), 2.0)
    a = np.sqrt(2.0 * np.log(n))
    z = np.maximum(a - (np.log(np.log(n)) + np.log(4.0 * np.pi)) / (2.0 * a), 0.0)
    return np.where(np.asarray(num_draws) > 1, z, 0.0)[()]
