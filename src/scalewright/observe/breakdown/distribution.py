"""How times are spread: their cumulative distribution with its elbow, and variation between ranks and between steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scalewright.records.study_report import Elbow

MIN_VALUES = 3
LEAST_TIMES = 20
"""Fewer times have no shape."""
LEAST_BEND_FRAC = 0.5
"""How far the curve must rise above the line between its ends. Normal noise stays below 0.25, exponential below 0.5."""
LEAST_TAIL_FRAC = 0.1
"""The slowest time must be this much above the median: a bend in noise is no tail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowTail:
    """Times above an elbow that noise does not have."""

    elbow: Elbow
    bend_frac: float
    num_above: int
    lost_frac: float
    """Share of all time that is above the elbow's: what an even run would save."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Times in order; the share of times up to each is its place."""

    times_s: tuple[float, ...]
    median_s: float
    p95_s: float
    elbow: Elbow | None
    tail: SlowTail | None

    def points(self, num: int = 200) -> list[tuple[float, float]]:
        """Time and share of times up to it, at most `num` of them, for a plot."""
        size = len(self.times_s)
        places = np.unique(np.linspace(0, size - 1, min(num, size)).round().astype(np.int64))
        return [(self.times_s[place], (int(place) + 1) / size) for place in places]


def distribution(times_s: Sequence[float]) -> Distribution:
    """Of at least one time. Leave out the first and the last step of an epoch: the one warms up, the other is short."""
    ordered = np.sort(np.asarray(times_s, dtype=np.float64))
    return Distribution(
        times_s=tuple(ordered.tolist()), median_s=float(np.median(ordered)), p95_s=float(np.quantile(ordered, 0.95)),
        elbow=elbow_of(times_s), tail=slow_tail(times_s),
    )  # fmt: skip


def slow_tail(times_s: Sequence[float]) -> SlowTail | None:
    """The tail of some times, if their curve bends more than noise does; None with few times, or if they are even."""
    ordered = np.sort(np.asarray(times_s, dtype=np.float64))
    num = len(ordered)
    if num < LEAST_TIMES or ordered[-1] < (1.0 + LEAST_TAIL_FRAC) * float(np.median(ordered)):
        return None
    place = elbow(ordered)
    width = float(ordered[-1] - ordered[0])
    bend = place / (num - 1) - float(ordered[place] - ordered[0]) / width if width > 0.0 else 0.0
    if bend < LEAST_BEND_FRAC:
        return None
    above = np.maximum(ordered - ordered[place], 0.0)
    return SlowTail(
        elbow=Elbow(time_s=float(ordered[place]), share_frac=float(np.mean(ordered <= ordered[place]))),
        bend_frac=bend, num_above=int(np.count_nonzero(above)), lost_frac=float(np.sum(above) / np.sum(ordered)),
    )  # fmt: skip


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
    Checked   tests/observe/test_distribution.py: a body and a tail of known sizes
    """
    n = len(sorted_values)
    width = float(sorted_values[-1] - sorted_values[0])
    if n < MIN_VALUES or width <= 0:
        return n - 1
    share = np.arange(n) / (n - 1)
    along = (sorted_values - sorted_values[0]) / width
    return int(np.argmax(share - along))


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeVariation:
    """How much a time differs between ranks, between steps, and otherwise, each as a share of its mean."""

    mean_s: float
    between_ranks_frac: float
    between_steps_frac: float
    rest_frac: float
    num_ranks: int
    num_steps: int


def variation(times_s: Mapping[tuple[int, int], float]) -> TimeVariation | None:
    """Standard deviations of the means of ranks and of steps, and of what both leave. Keys are rank and step.

    Only steps that every rank has are compared; None where fewer than two times are left.
    """
    ranks = sorted({rank for rank, _ in times_s})
    steps = sorted({step for _, step in times_s})
    steps = [step for step in steps if all((rank, step) in times_s for rank in ranks)]
    if len(ranks) * len(steps) < 2:
        return None
    table = np.array([[times_s[rank, step] for step in steps] for rank in ranks])
    mean = float(np.mean(table))
    if mean <= 0.0:
        return None
    of_ranks, of_steps = np.mean(table, axis=1), np.mean(table, axis=0)
    rest = table - of_ranks[:, None] - of_steps[None, :] + mean
    return TimeVariation(
        mean_s=mean, between_ranks_frac=float(np.std(of_ranks)) / mean,
        between_steps_frac=float(np.std(of_steps)) / mean,
        rest_frac=float(np.std(rest)) / mean, num_ranks=len(ranks), num_steps=len(steps),
    )  # fmt: skip
