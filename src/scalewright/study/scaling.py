"""Scaling curves of a study: efficiency, Amdahl's law with its interval, and where to stop."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scalewright.planner.search.pareto import Amdahl, fit_amdahl
from scalewright.records.study_report import Number
from scalewright.study.kinds.base import Outcome
from scalewright.study.metrics import Metric, metric
from scalewright.study.points import Study

NO_LOSS = 0.99
"""Device-hours of the largest scale over those of the smallest, below which a curve is faster than in proportion."""
MIN_POINTS = 3
"""Fewer say nothing of how a curve goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The points of one group, by scale."""

    group: dict[str, str]
    indices: tuple[int, ...]
    scales: tuple[float, ...]

    @property
    def title(self) -> str:
        return ", ".join(self.group.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Where a curve stops paying."""

    fit: Amdahl
    serial_frac: float
    """Of the time at the smallest scale; with every point left out in turn."""
    serial_interval_frac: tuple[float, float]
    scale: float
    """The largest scale of the curve whose last doubling saved a larger part of the time than it cost in GPU-hours."""
    sentence: str


def efficiency(of: Metric, *, scale: float, value: float, least_scale: float, least_value: float) -> float:
    """Scaling efficiency of one point over the smallest of its curve.

    Equation  t(m)/t(n) for a batch whose size per device is kept; r(n)/r(m) for a rate per device;
              m t(m)/(n t(n)) for an epoch or a whole training
    Source    EPICURE Best Practice Guide on AI on EuroHPC Systems 1.0, whose e(n) = t(n)/t(1) is inverted as printed
    Assumes   the smallest point of a curve is efficient
    Checked   tests/study/test_scaling.py: 1 for perfect scaling in each of the three
    """
    if of.efficiency == "as rate":
        return value / least_value
    if of.efficiency == "as total":
        return least_scale * least_value / (scale * value)
    return least_value / value


def curves(study: Study) -> list[Curve]:
    """Groups of points that differ in scale, each sorted by it; none where the study is not about scaling."""
    asked = study.file.scaling
    if asked is None:
        return []
    found: dict[tuple[str, ...], list[tuple[float, int]]] = {}
    for index, cell in enumerate(study.cells):
        if asked.over not in cell.values:
            continue  # points of another kind of question
        key = tuple(str(cell.values.get(name, "")) for name in asked.groups)
        found.setdefault(key, []).append((float(cell.values[asked.over]), index))
    laid = []
    for key, members in found.items():
        members.sort()
        laid.append(
            Curve(
                group=dict(zip(asked.groups, key, strict=True)),
                indices=tuple(index for _, index in members),
                scales=tuple(scale for scale, _ in members),
            )
        )
    return laid


def efficiencies(study: Study, outcomes: Sequence[Outcome], *, of: str) -> dict[int, Number]:
    """Efficiency of every point that has the metric, by index; the smallest point of a curve that has one is 1."""
    chosen = metric(of)
    found: dict[int, Number] = {}
    for curve in curves(study):
        usable = [
            (scale, index, outcomes[index].numbers[chosen.name])
            for scale, index in zip(curve.scales, curve.indices, strict=True)
            if chosen.name in outcomes[index].numbers and not outcomes[index].problem
        ]
        if not usable:
            continue
        least_scale, _, least = usable[0]
        for scale, index, number in usable:
            value = efficiency(
                chosen, scale=scale, value=number.value, least_scale=least_scale, least_value=least.value
            )
            found[index] = Number(value=value)
    return found


def where_to_stop(curve: Curve, work_s: Mapping[int, float]) -> Stop | None:
    """Amdahl's law through the time that a fixed amount of work takes at each scale; None with fewer than three."""
    seen = [(n, work_s[i]) for n, i in zip(curve.scales, curve.indices, strict=True) if i in work_s]
    if len(seen) < MIN_POINTS:
        return None
    fit = fit_amdahl(*zip(*seen, strict=True))
    others = [fit_amdahl(*zip(*(seen[:i] + seen[i + 1 :]), strict=True)) for i in range(len(seen))]
    least = seen[0][0]
    shares = sorted(_serial_frac(other, least) for other in (fit, *others))
    best = seen[0][0]
    for (n, t), (more, less) in itertools.pairwise(seen):
        saved, cost = 1.0 - less / t, more / n * less / t - 1.0
        if saved <= 0 or cost > saved:
            break
        best = more
    return Stop(
        fit=fit,
        serial_frac=_serial_frac(fit, least),
        serial_interval_frac=(shares[0], shares[-1]),
        scale=best,
        sentence=_why_there(seen, best, knee=fit.num_nodes_at_knee),
    )


def _why_there(seen: Sequence[tuple[float, float]], best: float, *, knee: float) -> str:
    """Where to stop and why, with the numbers of the step that decides it."""
    if best != seen[-1][0]:
        (n, t), (more, less) = next(pair for pair in itertools.pairwise(seen) if pair[0][0] == best)
        if less >= t:
            return f"stop at {best:,.0f}: {more:,.0f} are no faster"
        saves, costs = 1.0 - less / t, more / n * less / t - 1.0
        return (
            f"stop at {best:,.0f}: going on to {more:,.0f} saves {saves:.0%} of the time for {costs:.0%} more "
            "device-hours"
        )
    (least, slow), (most, fast) = seen[0], seen[-1]
    if most * fast < NO_LOSS * least * slow:
        return (
            f"pays up to the last point, {best:,.0f}, and in more than proportion: the smallest scale is held back by "
            "something that the larger ones have more of, such as memory or cache"
        )
    far = "no end is in sight" if math.isinf(knee) else f"by the fit it pays up to about {max(knee, best):,.0f}"
    return f"pays up to the last point, {best:,.0f}; {far}"


def too_few(num_points: int) -> str:
    """Why a curve does not say where to stop; empty where it has no point at all."""
    if not num_points:
        return ""
    have = "one scale says" if num_points == 1 else "two scales say"
    return f"{have} nothing of how the curve goes on: Amdahl's law is fitted through {MIN_POINTS} or more"


def _serial_frac(fit: Amdahl, scale: float) -> float:
    total = fit.time_s(scale)
    return fit.serial_s / total if total > 0 else 0.0
