"""What a distribution of times says: where its tail begins."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def elbow(sorted_values: NDArray[np.float64]) -> int:
    """Index after which a cumulative distribution bends away into its tail.

    Equation  argmax over i of (F(i) - F(0))/(F(n) - F(0)) - (x(i) - x(0))/(x(n) - x(0)): the point farthest above the
              chord of the curve, both axes scaled to 1
    Source    satopaa2011 (Finding a "Kneedle" in a Haystack), for a concave increasing curve
    Assumes   values sorted, not all the same; the curve has one bend
    Checked   tests/study/test_distribution.py: a body and a tail of known sizes
    """
    n = len(sorted_values)
    width = float(sorted_values[-1] - sorted_values[0])
    if n < 3 or width <= 0:
        return n - 1
    share = np.arange(n) / (n - 1)
    along = (sorted_values - sorted_values[0]) / width
    return int(np.argmax(share - along))
