"""The sentences that a study's figures allow: what is in doubt, how predictions held, what is best, what limits it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from statistics import median

from scalewright import units
from scalewright.records.study_report import FindingShown, Number
from scalewright.study.expressions import shown
from scalewright.study.metrics import METRICS, Metric
from scalewright.study.order import agreement, is_search
from scalewright.study.results import NOT_YET, Results

MAX_COMPARED = 3
DOUBTS = {
    "busy": "other work used the machine",
    "unsteady": "steps were not steady",
    "throttled": "clocks were held back",
    "fewer": "fewer steps or repeats than asked for",
}
"""What speaks against a measurement, in the fewest words."""


def findings_of(results: Results) -> Iterator[FindingShown]:
    """What a reader wants first: how well prediction meets measurement and print, the best points, what limits them.

    Where the measurements behind that are in doubt, this comes before all of it.
    """
    headlines = [*_agreement(results), *_order(results), *_best(results), *_compared(results)]
    yield from _doubted(results, {point for finding in headlines for point in finding.evidence})
    yield from headlines
    yield from _limits(results)


def _doubted(results: Results, headline: Set[str]) -> Iterator[FindingShown]:
    """How many points were measured under conditions that speak against them, where a headline rests on one of them."""
    points = results.study.points
    seen = [index for index, one in enumerate(results.measured) if one.numbers]
    sorts: dict[str, list[int]] = {}
    for index in seen:
        for doubt in results.measured[index].doubts:
            sorts.setdefault(doubt.sort, []).append(index)
    beside = sorts.pop("outside", [])
    shaky = sorted({index for indices in sorts.values() for index in indices})
    if headline & {points[index].id for index in shaky}:
        why = ", ".join(f"{DOUBTS[name]} ({len(indices)})" for name, indices in sorts.items())
        yield FindingShown(
            text=f"{_of_measured(shaky, seen)} in doubt: {why}", evidence=tuple(points[index].id for index in shaky)
        )
    if headline & {points[index].id for index in beside}:
        yield FindingShown(
            text=f"{_of_measured(beside, seen)} outside the interval that was predicted",
            evidence=tuple(points[index].id for index in beside),
        )


def _of_measured(some: Sequence[int], every: Sequence[int]) -> str:
    points = f"{len(every)} measured point{'s' if len(every) != 1 else ''}"
    return f"{len(some)} of {points} {'is' if len(some) == 1 else 'are'}"


def _agreement(results: Results) -> Iterator[FindingShown]:
    for origin, pairs in (("measured", _measured_pairs(results)), ("published", _published_pairs(results))):
        for name, found in pairs.items():
            metric = METRICS[name]
            ids = tuple(results.study.points[index].id for index, _, _ in found)
            if metric.dimension is units.FRACTION:
                worst = max(abs(a.value - _nearest(b, a.value)) for _, a, b in found)
                text = (
                    f"predicted {metric.title} is within {100 * worst:.0f} points of all {len(found)} {origin} figures"
                )
            else:
                errors = sorted(abs(a.value / _nearest(b, a.value) - 1.0) for _, a, b in found)
                middle = median(errors)
                text = (
                    f"predicted {metric.title} is {middle:.0%} off the {origin} one (median of {len(found)}, "
                    f"worst {errors[-1]:.0%})"
                )
            yield FindingShown(text=text, evidence=ids)


def _order(results: Results) -> Iterator[FindingShown]:
    """Of a search: whether the planner's order held, and what could not run at all."""
    points = results.study.points
    found = agreement(results.study, results.predicted, results.measured)
    if found is not None:
        rank = "" if found.spearman is None else f" (Spearman's rank correlation {found.spearman:.2f})"
        first = "was the best" if found.regret_frac == 0 else f"ran {found.regret_frac:.0%} slower than the best"
        yield FindingShown(
            text=f"of {len(found.points)} points that ran, the one predicted to be fastest {first}{rank}",
            evidence=tuple(points[index].id for index in found.points),
        )
    lost = [index for index, seen in enumerate(results.measured) if seen.problem and seen.problem != NOT_YET]
    if lost and is_search(results.study):
        why = results.measured[lost[0]].problem
        yield FindingShown(
            text=f"{len(lost)} of {len(results.measured)} points could not run, the first because: {why}",
            evidence=tuple(points[index].id for index in lost),
        )


def _nearest(number: Number, value: float) -> float:
    """The value, or the end of a range that is nearest to ours: inside a range nothing is wrong."""
    low = number.low if number.low is not None else (number.value if number.high is None else value)
    high = number.high if number.high is not None else (number.value if number.low is None else value)
    return min(max(value, low), high)


Pairs = Mapping[str, list[tuple[int, Number, Number]]]


def _measured_pairs(results: Results) -> Pairs:
    found: dict[str, list[tuple[int, Number, Number]]] = {}
    has = {name for outcome in results.measured for name in outcome.numbers}
    both = [name for name in results.study.metrics if name in has]
    if not results.predicted or not both:
        return found
    name = both[0]
    for index, (told, seen) in enumerate(zip(results.predicted, results.measured, strict=True)):
        if name in told.numbers and name in seen.numbers and not told.problem:
            plain = Number(value=seen.numbers[name].value)
            found.setdefault(name, []).append((index, told.numbers[name], plain))
    return found


def _published_pairs(results: Results) -> Pairs:
    found: dict[str, list[tuple[int, Number, Number]]] = {}
    for told in results.published:
        numbers = results.predicted[told.point].numbers if results.predicted else {}
        if told.figure.metric in numbers:
            given = Number(value=told.number.value, low=told.figure.low, high=told.figure.high)
            found.setdefault(told.figure.metric, []).append((told.point, numbers[told.figure.metric], given))
    return found


def _best(results: Results) -> Iterator[FindingShown]:
    outcomes = results.measured or results.predicted
    word = "measured" if results.measured else "predicted"
    has = {name for outcome in outcomes for name in outcome.numbers} - {"ratio"}  # of which the best is 1 by definition
    names = [name for name in results.study.metrics if name in has]
    if not names:
        return
    metric = METRICS[names[0]]
    usable = [
        (o.numbers[metric.name].value, i) for i, o in enumerate(outcomes) if metric.name in o.numbers and not o.problem
    ]
    if len(usable) < 2:
        return
    value, index = (max if metric.better == "higher" else min)(usable)
    point = results.study.points[index]
    where = ", ".join(f"{name} {label}" for name, label in point.labels.items())
    text = f"best {metric.title}, {word}: {units.format(value, metric.dimension)} {_named_unit(metric)}({where})"
    yield FindingShown(text=text, evidence=(point.id,))


def _compared(results: Results) -> Iterator[FindingShown]:
    """What the study asks to compare: of each value that differs, how its points stand to those compared with."""
    asked = results.study.file.relative
    outcomes = results.measured or results.predicted
    if asked is None or len(asked.to) != 1:
        return
    (axis, base), word = next(iter(asked.to.items())), "measured" if results.measured else "predicted"
    ratios: dict[str, list[tuple[float, str]]] = {}
    for point, outcome in zip(results.study.points, outcomes, strict=True):
        found = outcome.numbers.get("ratio")
        if found is not None and point.labels.get(axis, shown(base)) != shown(base) and not outcome.problem:
            ratios.setdefault(point.labels[axis], []).append((found.value, point.id))
    for label, pairs in list(ratios.items())[:MAX_COMPARED]:
        values = sorted(value for value, _ in pairs)
        span = f"{values[0]:.2f} to {values[-1]:.2f} in {len(values)} points" if len(values) > 1 else "one point"
        yield FindingShown(
            text=f"{METRICS[asked.metric].title} of {axis} {label} is {median(values):.2f} times that of "
            f"{shown(base)}, {word} ({span})",
            evidence=tuple(dict.fromkeys((*(point for _, point in pairs), *_bases(results, axis, shown(base))))),
        )


def _bases(results: Results, axis: str, label: str) -> Iterator[str]:
    """Points that others are compared with."""
    yield from (point.id for point in results.study.points if point.labels.get(axis) == label)


def _named_unit(metric: Metric) -> str:
    return f"{metric.unit} " if metric.dimension is units.COUNT and metric.unit else ""


def _limits(results: Results) -> Iterator[FindingShown]:
    counts: dict[str, list[int]] = {}
    for index, outcome in enumerate(results.predicted):
        if outcome.limit and not outcome.problem:
            counts.setdefault(outcome.limit, []).append(index)
    total = sum(map(len, counts.values()))
    for name, indices in sorted(counts.items(), key=lambda item: -len(item[1]))[:3]:
        ids = tuple(results.study.points[i].id for i in indices)
        yield FindingShown(
            text=f"the largest term is {name} in {len(indices)} of {total} predicted points", evidence=ids
        )
    blocked = [index for index, outcome in enumerate(results.predicted) if outcome.problem]
    if blocked:
        ids = tuple(results.study.points[i].id for i in blocked)
        yield FindingShown(text=f"{len(blocked)} of {len(results.predicted)} points cannot run as asked", evidence=ids)
