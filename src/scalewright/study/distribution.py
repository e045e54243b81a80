"""The tail of a distribution of times: where it begins."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from scalewright.records.study_report import Elbow

MIN_VALUES = 3


def elbow_of(values_s: Sequence[float]) -> Elbow | None:
    """Where the tail of some times begins; None with too few times, or if all are equal."""
    times = np.sort(np.asarray(values_s, dtype=np.float64))
    if len(times) < MIN_VALUES or times[-1] <= times[0]:
        return None
    bend = float(times[elbow(times)])
    return Elbow(time_s=bend, share_frac=float(np.mean(times <= bend)))


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
    if n < MIN_VALUES or width <= 0:
        return n - 1
    share = np.arange(n) / (n - 1)
    along = (sorted_values - sorted_values[0]) / width
    return int(np.argmax(share - along))
