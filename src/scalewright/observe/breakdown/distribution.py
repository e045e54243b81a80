"""How times are spread: their cumulative distribution with its elbow, and variation between ranks and between steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

LEAST_TIMES = 20
"""Fewer times have no shape."""
LEAST_BEND_FRAC = 0.5
"""How far the curve must rise above the line between its ends. Normal noise stays below 0.25, exponential below 0.5."""
LEAST_TAIL_FRAC = 0.1
"""The slowest time must be this much above the median: a bend in noise is no elbow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Elbow:
    """Where the curve of a cumulative distribution bends: most times are below, a long tail is above."""

    at_frac: float
    """Share of the times below it."""
    at_s: float
    bend_frac: float
    lost_frac: float
    """Share of all time that is above the elbow's: what an even run would save."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Times in order; the share of times up to each is its place."""

    times_s: tuple[float, ...]
    median_s: float
    p95_s: float
    elbow: Elbow | None

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
        elbow=_elbow(ordered),
    )  # fmt: skip


def _elbow(ordered: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Elbow | None:
    """The point of the curve that is farthest above the line between its ends.

    Equation  max over i of (i + 1)/n - (t_i - t_0)/(t_n - t_0)
    Source    satopaa2011 (the Kneedle method); epicure2026 reads elbows of per-batch times so, by eye
    Assumes   one tail: several modes give the elbow of the largest
    Checked   tests/observe/test_trace_ranks.py: planted tails, and none in even and in normal noise
    """
    num = len(ordered)
    if num < LEAST_TIMES or ordered[-1] <= ordered[0]:
        return None
    rise = np.arange(1, num + 1) / num - (ordered - ordered[0]) / (ordered[-1] - ordered[0])
    place = int(np.argmax(rise))
    median = float(np.median(ordered))
    if rise[place] < LEAST_BEND_FRAC or ordered[-1] < (1.0 + LEAST_TAIL_FRAC) * median:
        return None
    above = np.maximum(ordered - ordered[place], 0.0)
    return Elbow(
        at_frac=(place + 1) / num, at_s=float(ordered[place]), bend_frac=float(rise[place]),
        lost_frac=float(np.sum(above) / np.sum(ordered)),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """How much a time differs between ranks, between steps, and otherwise, each as a share of its mean."""

    mean_s: float
    between_ranks_frac: float
    between_steps_frac: float
    rest_frac: float
    num_ranks: int
    num_steps: int


def variation(times_s: Mapping[tuple[int, int], float]) -> Variation | None:
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
    return Variation(
        mean_s=mean, between_ranks_frac=float(np.std(of_ranks)) / mean, between_steps_frac=float(np.std(of_steps)) / mean,
        rest_frac=float(np.std(rest)) / mean, num_ranks=len(ranks), num_steps=len(steps),
    )  # fmt: skip
