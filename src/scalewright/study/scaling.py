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
"""Device-hours of the largest scale over those of the smallest. Below it a curve scales better than linearly."""
RATES = ("flop_per_s_per_gpu", "images_per_s_per_gpu")
"""Rates per device that compare points of different work."""
SAME_WORK = 1.05
"""Largest over smallest work of a step that counts as the same; a measured rate and a median time differ a little."""
MIN_POINTS = 3
"""Points needed to fit Amdahl's law."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The points of one group, by scale."""

    group: dict[str, str]
    indices: tuple[int, ...]
    scales: tuple[float, ...]
    most: float = math.inf
    """The largest scale that the system has."""

    @property
    def title(self) -> str:
        return ", ".join(self.group.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The scale beyond which more devices do not pay."""

    fit: Amdahl
    serial_frac: float
    """Share of the time at the smallest scale. The interval comes from leaving out each point in turn."""
    serial_interval_frac: tuple[float, float]
    scale: float
    """The largest scale of the curve whose last doubling saved a larger part of the time than it cost in GPU-hours."""
    sentence: str


def efficiency(
    of: Metric, *, scale: float, value: float, least_scale: float, least_value: float, work_ratio: float = 1.0
) -> float:
    """Scaling efficiency of one point over the smallest of its curve.

    Equation  w(n)/w(m) t(m)/t(n) for a step, where w is its work per device: 1 under weak scaling, m/n under strong;
              r(n)/r(m) for a rate per device; m t(m)/(n t(n)) for an epoch or a whole training
    Source    EPICURE Best Practice Guide on AI on EuroHPC Systems 1.0, whose e(n) = t(n)/t(1) is inverted as printed
    Assumes   the smallest point of a curve is efficient
    Checked   tests/study/test_study_scaling.py: 1 for perfect scaling in each of the three
    """
    if of.efficiency == "as rate":
        return value / least_value
    if of.efficiency == "as total":
        return least_scale * least_value / (scale * value)
    return work_ratio * least_value / value


def work_per_device(outcome: Outcome) -> float | None:
    """Work of a step on one device, in FLOP or images; None if the point does not tell."""
    step = outcome.numbers.get("step_time_s")
    rate = next((outcome.numbers[name].value for name in RATES if name in outcome.numbers), None)
    return None if step is None or rate is None else rate * step.value


def _work_ratio(outcome: Outcome, least: Outcome) -> float:
    """Work per device of a step over that of the smallest point: 1 if both are alike or one does not tell."""
    work, least_work = work_per_device(outcome), work_per_device(least)
    if not work or not least_work:
        return 1.0
    ratio = work / least_work
    return 1.0 if 1.0 / SAME_WORK <= ratio <= SAME_WORK else ratio


def curves(study: Study) -> list[Curve]:
    """Groups of points that differ in scale, each sorted by scale; none if the study has no scaling table."""
    scaling = study.file.scaling
    if scaling is None:
        return []
    groups: dict[tuple[str, ...], list[tuple[float, int]]] = {}
    for index, combination in enumerate(study.combinations):
        if scaling.over not in combination.values:
            continue  # a point of another kind, which has no scale
        key = tuple(str(combination.values.get(name, "")) for name in scaling.groups)
        groups.setdefault(key, []).append((float(combination.values[scaling.over]), index))
    return [
        Curve(
            group=dict(zip(scaling.groups, key, strict=True)),
            indices=tuple(index for _, index in sorted(members)),
            scales=tuple(scale for scale, _ in sorted(members)),
            most=min((_most(study, index) for _, index in members), default=math.inf),
        )
        for key, members in groups.items()
    ]


def _most(study: Study, index: int) -> float:
    """Nodes of a point's system, where that is its scale and they are known."""
    scaling, nodes = study.file.scaling, study.combinations[index].values.get("system_nodes")
    is_nodes = scaling is not None and scaling.over == "nodes"
    return float(nodes) if is_nodes and isinstance(nodes, int) and nodes > 0 else math.inf


def efficiencies(study: Study, outcomes: Sequence[Outcome], *, of: str) -> dict[int, Number]:
    """Efficiency of every point that has the metric, by index. The smallest point of each curve has 1."""
    chosen = metric(of)
    by_index: dict[int, Number] = {}
    for curve in curves(study):
        usable = [
            (scale, index, outcomes[index].numbers[chosen.name])
            for scale, index in zip(curve.scales, curve.indices, strict=True)
            if chosen.name in outcomes[index].numbers and not outcomes[index].problem
        ]
        if not usable:
            continue
        least_scale, least_index, least = usable[0]
        for scale, index, number in usable:
            value = efficiency(
                chosen, scale=scale, value=number.value, least_scale=least_scale, least_value=least.value,
                work_ratio=_work_ratio(outcomes[index], outcomes[least_index]),
            )  # fmt: skip
            by_index[index] = Number(value=value)
    return by_index


def losses_per_doubling(study: Study, efficiency_by_index: Mapping[int, Number]) -> dict[int, Number]:
    """Efficiency that each doubling of the scale costs, at every point but the smallest of its curve."""
    losses: dict[int, Number] = {}
    for curve in curves(study):
        points = [p for p in zip(curve.scales, curve.indices, strict=True) if p[1] in efficiency_by_index]
        for (scale, index), (more, other) in itertools.pairwise(points):
            lost = efficiency_by_index[index].value - efficiency_by_index[other].value
            losses[other] = Number(value=lost / math.log2(more / scale))
    return losses


def where_to_stop(curve: Curve, work_s: Mapping[int, float]) -> Stop | None:
    """Fit Amdahl's law to the time of a fixed amount of work at each scale; None with fewer than three points."""
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
        sentence=_why_there(seen, best, knee=fit.num_nodes_at_knee, most=curve.most),
    )


def _why_there(seen: Sequence[tuple[float, float]], best: float, *, knee: float, most: float) -> str:
    """Where to stop and why, with the numbers of the deciding step."""
    if best != seen[-1][0]:
        (n, t), (more, less) = next(pair for pair in itertools.pairwise(seen) if pair[0][0] == best)
        if less >= t:
            return f"stop at {best:,.0f}: {more:,.0f} is no faster"
        saves, costs = 1.0 - less / t, more / n * less / t - 1.0
        return (
            f"stop at {best:,.0f}: {more:,.0f} would save {saves:.0%} of the time and cost {costs:.0%} more "
            "device-hours"
        )
    (least, slow), (most, fast) = seen[0], seen[-1]
    if most * fast < NO_LOSS * least * slow:
        return (
            f"pays up to the last point, {best:,.0f}, with better than linear scaling: the smallest scale lacks "
            "something that larger ones have more of, such as memory or cache"
        )
    if max(knee, best) >= most:
        limit = f"the system has {most:,.0f}"
    else:
        limit = "the fit shows no limit" if math.isinf(knee) else f"the fit says up to about {max(knee, best):,.0f}"
    return f"pays up to the last point, {best:,.0f}; {limit}"


def too_few_points(num_points: int) -> str:
    """Why a curve has no fit; empty if it has no points at all."""
    return f"not enough points to fit Amdahl's law ({num_points}, need {MIN_POINTS})" if num_points else ""


def _serial_frac(fit: Amdahl, scale: float) -> float:
    total = fit.time_s(scale)
    return fit.serial_s / total if total > 0 else 0.0
