"""Findings of a study in one sentence each: doubts, agreement of predictions, the best points, what limits them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from statistics import median

from scalewright import units
from scalewright.costs.interval import SHARED_NETWORK
from scalewright.records.study_report import FindingShown, GapShown, Number
from scalewright.study.expressions import shown
from scalewright.study.gaps import gap_findings
from scalewright.study.kinds.base import Outcome
from scalewright.study.metrics import METRICS, Metric
from scalewright.study.order import agreement, is_search
from scalewright.study.results import NOT_YET, Results
from scalewright.study.scaling import RATES, SAME_WORK, Curve, curves, work_per_device
from scalewright.study.statements import checked_statements

MAX_COMPARED = 3
MAX_QUOTED = 2
"""Figures that are quoted one by one; a median of two says nothing."""
DOUBTS = {
    "busy": "other work used the machine",
    "unsteady": "steps were not steady",
    "throttled": "clocks were lowered",
    "fewer": "steps or repeats are missing",
}
"""Doubts about a measurement, in a few words."""


def findings_of(results: Results, gaps: Sequence[GapShown] = ()) -> Iterator[FindingShown]:
    """How well predictions agree with measured and published figures, the best points, and what limits them.

    Doubts about the measurements behind these sentences come first.
    """
    headlines = [
        *gap_findings(gaps),
        *_agreement(results),
        *_statements(results),
        *_order(results),
        *_best(results),
        *_compared(results),
    ]
    yield from _doubted(results, {point for finding in headlines for point in finding.evidence})
    yield from headlines
    yield from _limits(results)
    yield from _shared(results)


def _doubted(results: Results, headline: Set[str]) -> Iterator[FindingShown]:
    """How many measured points are in doubt, if one of the headlines rests on such a point."""
    points = results.study.points
    measured = [index for index, outcome in enumerate(results.measured) if outcome.numbers]
    sorts: dict[str, list[int]] = {}
    for index in measured:
        for doubt in results.measured[index].doubts:
            sorts.setdefault(doubt.sort, []).append(index)
    outside = sorts.pop("outside", [])
    doubtful = sorted({index for indices in sorts.values() for index in indices})
    if headline & {points[index].id for index in doubtful}:
        why = ", ".join(f"{DOUBTS[name]} ({len(indices)})" for name, indices in sorts.items())
        yield FindingShown(
            text=f"{_of_measured(doubtful, measured)} in doubt: {why}",
            evidence=tuple(points[index].id for index in doubtful),
        )
    if headline & {points[index].id for index in outside}:
        yield FindingShown(
            text=f"{_of_measured(outside, measured)} outside the predicted interval",
            evidence=tuple(points[index].id for index in outside),
        )


def _of_measured(some: Sequence[int], measured: Sequence[int]) -> str:
    points = f"{len(measured)} measured point{'s' if len(measured) != 1 else ''}"
    return f"{len(some)} of {points} {'is' if len(some) == 1 else 'are'}"


def _agreement(results: Results) -> Iterator[FindingShown]:
    """One sentence for each metric: every figure if there are few, else the middle, the worst and where that is."""
    for origin, pairs in (("measured", _measured_pairs(results)), ("published", _published_pairs(results))):
        for (name, where), compared in pairs.items():
            metric = METRICS[name]
            if len(compared) <= MAX_QUOTED:
                text = _quoted(results, metric, compared, origin)
            else:
                text = _summed_up(results, metric, compared, origin, where=where)
            yield FindingShown(text=text, evidence=tuple(results.study.points[index].id for index, _, _ in compared))


def _quoted(results: Results, metric: Metric, compared: Sequence[Pair], origin: str) -> str:
    figures = [
        f"predicted {_words(ours, metric)}, {origin} {_words(theirs, metric)} ({_where(results, index)})"
        for index, ours, theirs in compared
    ]
    return f"{metric.title}: {'; '.join(figures)}"


def _summed_up(results: Results, metric: Metric, compared: Sequence[Pair], origin: str, *, where: str = "") -> str:
    is_share = metric.dimension is units.FRACTION
    off = [(_off(ours, theirs, is_share=is_share), index) for index, ours, theirs in compared]
    worst, index = max(off)
    inside, known = _covered(compared)
    cover = f"; {inside} of {known} lie in the 90 % interval" if known else ""
    if worst == 0:
        return f"{metric.title}{where}: all {len(compared)} {origin} figures are predicted exactly{cover}"
    middle = median(error for error, _ in off)
    amounts = [f"{float(f'{100 * error:.2g}'):g} {'points' if is_share else '%'}" for error in (middle, worst)]
    return (
        f"predicted {metric.title}{where} is {amounts[0]} off in the median of {len(compared)} {origin} figures, "
        f"{amounts[1]} at worst ({_where(results, index)}){cover}"
    )


def _off(ours: Number, theirs: Number, *, is_share: bool) -> float:
    """Shares differ by points, other figures by a share of the figure they are compared with."""
    nearest = theirs.nearest(ours.value)
    return abs(ours.value - nearest) if is_share else abs(ours.value / nearest - 1.0)


def _covered(compared: Sequence[Pair]) -> tuple[int, int]:
    """How many figures lie in the predicted interval, of those with one."""
    known = [(ours.low, ours.high, theirs.nearest(ours.value)) for _, ours, theirs in compared]
    inside = [low <= value <= high for low, high, value in known if low is not None and high is not None]
    return sum(inside), len(inside)


def _words(number: Number, metric: Metric) -> str:
    """A figure as it was printed: a range, a bound or a value."""
    unit = f" {metric.unit}" if metric.dimension is units.COUNT and metric.unit else ""
    low, high = (None if end is None else units.format(end, metric.dimension) for end in (number.low, number.high))
    value = units.format(number.value, metric.dimension)
    if low and not high:
        value = f"above {low}"
    elif high and not low:
        value = f"below {high}"
    return f"{value}{unit}"


def _where(results: Results, index: int) -> str:
    return ", ".join(f"{name} {label}" for name, label in results.study.points[index].labels.items() if label)


def _statements(results: Results) -> Iterator[FindingShown]:
    """How many statements of the sources the predictions agree with."""
    checks = checked_statements(results)
    if checks:
        held = sum(check.holds for check in checks)
        rest = "" if held == len(checks) else "; the notes name the others"
        yield FindingShown(
            text=f"predictions agree with {held} of {len(checks)} statements of the sources{rest}",
            evidence=tuple(dict.fromkeys(point for check in checks for point in check.points)),
        )


def _order(results: Results) -> Iterator[FindingShown]:
    """Of a search: how the predicted order agrees with the measured one, and which points could not run."""
    points = results.study.points
    orders = agreement(results.study, results.predicted, results.measured)
    if orders is not None:
        rank = "" if orders.spearman is None else f" (Spearman's rank correlation {orders.spearman:.2f})"
        first = (
            "was the fastest" if orders.regret_frac == 0 else f"ran {orders.regret_frac:.0%} slower than the fastest"
        )
        yield FindingShown(
            text=f"of {len(orders.points)} points that ran, the one predicted to be fastest {first}{rank}",
            evidence=tuple(points[index].id for index in orders.points),
        )
    failed = [index for index, one in enumerate(results.measured) if one.problem and one.problem != NOT_YET]
    if failed and is_search(results.study):
        why = results.measured[failed[0]].problem
        yield FindingShown(
            text=f"{len(failed)} of {len(results.measured)} points could not run, the first because: {why}",
            evidence=tuple(points[index].id for index in failed),
        )


Pair = tuple[int, Number, Number]
"""A point, what is predicted of it, and what was measured or published."""
Pairs = Mapping[tuple[str, str], list[Pair]]
"""By metric, and by the value of an axis that the source leaves open, in words."""


def _measured_pairs(results: Results) -> Pairs:
    """The study's first metric that is both predicted and measured."""
    if not results.predicted:
        return {}
    both = list(zip(results.predicted, results.measured, strict=False))
    for name in results.study.metrics:
        pairs = [
            (index, predicted.numbers[name], Number(value=measured.numbers[name].value))
            for index, (predicted, measured) in enumerate(both)
            if name in predicted.numbers and name in measured.numbers and not predicted.problem
        ]
        if pairs:
            return {(name, ""): pairs}
    return {}


def _published_pairs(results: Results) -> Pairs:
    pairs: dict[tuple[str, str], list[Pair]] = {}
    for published in results.published:
        numbers = results.predicted[published.point].numbers if results.predicted else {}
        metric, axis = published.figure.metric, published.figure.either
        where = f" with {axis} {results.study.points[published.point].labels[axis]}" if axis else ""
        if metric in numbers:
            pairs.setdefault((metric, where), []).append((published.point, numbers[metric], published.number))
    return pairs


def _best(results: Results) -> Iterator[FindingShown]:
    outcomes = results.measured or results.predicted
    word = "measured" if results.measured else "predicted"
    metric = _metric_of_the_best(results, outcomes)
    if metric is None or results.study.pipeline is not None:  # stages of a pipeline do different work
        return
    usable = [
        (o.numbers[metric.name].value, i) for i, o in enumerate(outcomes) if metric.name in o.numbers and not o.problem
    ]
    if len(usable) < 2:
        return
    value, index = (max if metric.better == "higher" else min)(usable)
    curve = next((c for c in curves(results.study) if index in c.indices), None)
    if curve is not None and metric.efficiency == "as time":
        yield from _sped_up(results, curve, {i: v for v, i in usable}, metric)
        return
    point = results.study.points[index]
    where = ", ".join(f"{name} {label}" for name, label in point.labels.items())
    text = f"best {metric.title}, {word}: {units.format(value, metric.dimension)} {_named_unit(metric)}({where})"
    yield FindingShown(text=text, evidence=(point.id,))


def _sped_up(results: Results, curve: Curve, values: Mapping[int, float], metric: Metric) -> Iterator[FindingShown]:
    """The curve of the shortest time: where more of everything is faster, the best point says nothing new."""
    ends = [(scale, i) for scale, i in zip(curve.scales, curve.indices, strict=True) if i in values]
    (least, first), (most, last) = ends[0], min(ends, key=lambda end: values[end[1]])
    scaling = results.study.file.scaling
    if first == last or scaling is None:
        return
    word, faster = "measured" if results.measured else "predicted", values[first] / values[last]
    times = (units.format(values[i], metric.dimension) for i in (first, last))
    where = "".join(f", {name} {value}" for name, value in curve.group.items())
    text = (
        f"{metric.title}, {word}, {' to '.join(times)} from {least:g} to {most:g} {scaling.name}{where}: "
        f"{faster:.2f} times as fast on {most / least:g} times as many, efficiency {faster * least / most:.0%}"
    )
    yield FindingShown(text=text, evidence=tuple(results.study.points[i].id for i in (first, last)))


def _metric_of_the_best(results: Results, outcomes: Sequence[Outcome]) -> Metric | None:
    """The study's first metric that can be compared between its points; None if there is none.

    The time of a step says nothing between steps of different work, as under weak scaling: rates per device are
    compared instead. The fewest devices of different stages are not compared at all.
    """
    has = {name for outcome in outcomes for name in outcome.numbers} - {"ratio"}  # of which the best is 1 by definition
    names = [name for name in results.study.metrics if name in has]
    if not names or names[0] == "num_gpus":
        return None
    if METRICS[names[0]].efficiency != "as time" or _is_same_work(outcomes):
        return METRICS[names[0]]
    rates = [name for name in (*names, *RATES) if name in has and METRICS[name].efficiency == "as rate"]
    return METRICS[rates[0]] if rates else None


def _is_same_work(outcomes: Sequence[Outcome]) -> bool:
    """Whether all steps do the same work; also true if no point tells."""
    work = [
        each * outcome.numbers["num_gpus"].value
        for outcome in outcomes
        if (each := work_per_device(outcome)) is not None and "num_gpus" in outcome.numbers
    ]
    return not work or max(work) <= SAME_WORK * min(work)


def _compared(results: Results) -> Iterator[FindingShown]:
    """The ratio to the reference points, for each other value of the compared axis."""
    relative = results.study.file.relative
    outcomes = results.measured or results.predicted
    if relative is None or len(relative.to) != 1:
        return
    (axis, base), word = next(iter(relative.to.items())), "measured" if results.measured else "predicted"
    ratios: dict[str, list[tuple[float, str]]] = {}
    for point, outcome in zip(results.study.points, outcomes, strict=True):
        ratio = outcome.numbers.get("ratio")
        if ratio is not None and point.labels.get(axis, shown(base)) != shown(base) and not outcome.problem:
            ratios.setdefault(point.labels[axis], []).append((ratio.value, point.id))
    for label, pairs in list(ratios.items())[:MAX_COMPARED]:
        values = sorted(value for value, _ in pairs)
        span = f"{values[0]:.2f} to {values[-1]:.2f} in {len(values)} points" if len(values) > 1 else "one point"
        yield FindingShown(
            text=f"{METRICS[relative.metric].title} of {axis} {label} is {median(values):.2f} times that of "
            f"{shown(base)}, {word} ({span})",
            evidence=tuple(dict.fromkeys((*(point for _, point in pairs), *_bases(results, axis, shown(base))))),
        )


def _bases(results: Results, axis: str, label: str) -> Iterator[str]:
    """The reference points."""
    yield from (point.id for point in results.study.points if point.labels.get(axis) == label)


def _named_unit(metric: Metric) -> str:
    return f"{metric.unit} " if metric.dimension is units.COUNT and metric.unit else ""


def _shared(results: Results) -> Iterator[FindingShown]:
    """How many predictions assume other jobs on the network, which nobody knows beforehand."""
    predicted = [index for index, outcome in enumerate(results.predicted) if outcome.numbers and not outcome.problem]
    shared = [i for i in predicted if any(note.startswith(SHARED_NETWORK) for note in results.predicted[i].notes)]
    if shared:
        yield FindingShown(
            text=f"{len(shared)} of {len(predicted)} predictions assume other jobs on the network: their intervals are "
            'wider, and network = "quiet" predicts without them',
            evidence=tuple(results.study.points[index].id for index in shared),
        )


def _limits(results: Results) -> Iterator[FindingShown]:
    """What takes most of the predicted time, and why points cannot run."""
    points = results.study.points
    counts: dict[str, list[int]] = {}
    for index, outcome in enumerate(results.predicted):
        if outcome.limit and not outcome.problem:
            counts.setdefault(outcome.limit, []).append(index)
    largest = sorted(counts.items(), key=lambda item: -len(item[1]))[:MAX_COMPARED]
    if largest:
        total = sum(map(len, counts.values()))
        yield FindingShown(
            text=f"the largest term is {_terms([(name, len(indices)) for name, indices in largest], total)}",
            evidence=tuple(points[index].id for _, indices in largest for index in indices),
        )
    blocked = [index for index, outcome in enumerate(results.predicted) if outcome.problem]
    if blocked:
        reasons = Counter(results.predicted[index].problem for index in blocked).most_common()
        such_as = "" if len(reasons) == 1 else f"for {len(reasons)} reasons, such as "
        yield FindingShown(
            text=f"{len(blocked)} of {len(results.predicted)} points cannot run: {such_as}{reasons[0][0]}",
            evidence=tuple(points[index].id for index in blocked),
        )


def _terms(largest: Sequence[tuple[str, int]], total: int) -> str:
    if len(largest) == 1:
        name, count = largest[0]
        return f"{name} in {'every' if count == total else f'{count} of {total}'} predicted point"
    names = [f"{name} in {count}" for name, count in largest]
    return f"{', '.join(names[:-1])} and {names[-1]} of {total} predicted points"
