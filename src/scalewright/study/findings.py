"""Findings of a study in one sentence each: doubts, agreement of predictions, the best points, what limits them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from statistics import median

from scalewright import units
from scalewright.costs.interval import SHARED_NETWORK
from scalewright.records.study_report import FindingShown, GapShown, Number
from scalewright.study.expressions import shown
from scalewright.study.file import Quantity
from scalewright.study.gaps import gap_findings
from scalewright.study.kinds.base import Outcome
from scalewright.study.metrics import METRICS, Metric
from scalewright.study.order import agreement, is_search
from scalewright.study.points import Study
from scalewright.study.results import NOT_YET, Results
from scalewright.study.scaling import RATES, SAME_WORK, Curve, curves, work_per_device
from scalewright.study.statements import checked_statements

MAX_COMPARED = 3
MAX_QUOTED = 2
"""Figures that are quoted one by one; a median of two says nothing."""
UNIT_WORDS = {"x": "times"}
DOUBTS = {
    "busy": "other work used the machine",
    "unsteady": "steps were not steady",
    "throttled": "clocks were lowered",
    "fewer": "steps or repeats are missing",
}
"""Doubts about a measurement, in a few words."""


def findings_of(results: Results, gaps: Sequence[GapShown] = ()) -> Iterator[FindingShown]:
    """The answer to the question, how well predictions agree with other figures, and what limits the points.

    Doubts about the measurements behind these sentences come first. A study whose file words no answer is answered by
    what compares its points: gaps, ratios, the best of them.
    """
    answers = list(_answers(results))
    comparisons = [*gap_findings(gaps), *_order(results), *_compared(results)]
    if not answers:
        answers, comparisons = [replace(one, is_answer=True) for one in (*comparisons, *_best(results))], []
    headlines = [*answers, *comparisons, *_agreement(results), *_statements(results)]
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
    unit = f" {UNIT_WORDS.get(metric.unit, metric.unit)}" if metric.dimension is units.COUNT and metric.unit else ""
    low, high = (None if end is None else _value_words(end, metric) for end in (number.low, number.high))
    value = _value_words(number.value, metric)
    if low and not high:
        value = f"above {low}"
    elif high and not low:
        value = f"below {high}"
    return f"{value}{unit}"


def _value_words(value: float, metric: Metric) -> str:
    """A value in the unit of its readers: devices are whole, and time of devices is counted in GPU-hours."""
    if metric.name == "num_gpus":
        return f"{value:,.0f}"
    if metric.name == "gpu_time_s":
        return f"{value / units.HOUR_S:,.0f} GPU-hours"
    return units.format(value, metric.dimension)


def _where(results: Results, index: int) -> str:
    return ", ".join(f"{name} {label}" for name, label in results.study.points[index].labels.items() if label)


def _statements(results: Results) -> Iterator[FindingShown]:
    """With how many statements of the sources the predictions agree, and how many they contradict."""
    checks = checked_statements(results)
    if checks:
        verdicts = Counter(check.verdict for check in checks)
        rest = "" if verdicts["agrees"] == len(checks) else "; the notes name the others"
        yield FindingShown(
            text=f"of {len(checks)} statements of the sources, predictions agree with {verdicts['agrees']} and "
            f"contradict {verdicts['contradicts']}; {verdicts['cannot say']} cannot be decided{rest}",
            evidence=tuple(dict.fromkeys(point for check in checks for point in check.points(results))),
        )


def compared_axis(study: Study) -> str:
    """The axis whose values the study compares with one of them; empty if it names none."""
    relative = study.file.relative
    return next(iter(relative.to)) if relative is not None and len(relative.to) == 1 else study.file.gaps


def _answers(results: Results) -> Iterator[FindingShown]:
    """The sentences of the file that answer its question, with the figures of this set of points."""
    outcomes = results.measured or results.predicted
    word = "measured" if results.measured else "predicted"
    for answer in results.study.file.answers:
        figures, evidence = dict[str, str](), dict[str, None]()
        for name, quantity in answer.figures.items():
            indices = _quantity_values(results, outcomes, quantity)
            if not indices:
                break
            figures[name] = _quantity_words(results, outcomes, indices, quantity)
            evidence.update(dict.fromkeys(results.study.points[index].id for index in indices))
        else:
            yield FindingShown(
                text=f"{answer.text.format_map(figures)} ({word})", evidence=tuple(evidence), is_answer=True
            )


def _quantity_values(results: Results, outcomes: Sequence[Outcome], quantity: Quantity) -> list[int]:
    """Points behind a figure of an answer."""
    usable = [index for index in results.study.matching(quantity.where) if not outcomes[index].problem]
    usable = [
        i
        for i in usable
        if (quantity.word in outcomes[i].words if quantity.word else quantity.metric in outcomes[i].numbers)
    ]
    if quantity.at == "largest scale":
        by_curve = [[i for i in curve.indices if i in set(usable)] for curve in curves(results.study)]
        usable = sorted(own[-1] for own in by_curve if len(own) > 1)
    return usable


def _quantity_words(results: Results, outcomes: Sequence[Outcome], indices: Sequence[int], quantity: Quantity) -> str:
    """Words of a column, a range, or every value with what its point differs in."""
    named = _differing(results, indices, without_scale=quantity.at == "largest scale")
    if quantity.word:
        texts = {i: outcomes[i].words[quantity.word] for i in indices}
        return "; ".join(f"{texts[i]}{f' for {named[i]}' if named[i] else ''}" for i in indices)
    metric = METRICS[quantity.metric]
    words = {i: _words(Number(value=outcomes[i].numbers[metric.name].value), metric) for i in indices}
    if quantity.show == "each":
        return ", ".join(f"{words[i]}{f' ({named[i]})' if named[i] else ''}" for i in indices)
    ends = [pick(indices, key=lambda i: outcomes[i].numbers[metric.name].value) for pick in (min, max)]
    if words[ends[0]] == words[ends[1]]:
        return words[ends[0]]
    where = [f" ({named[i]})" if quantity.show == "ends" and named[i] else "" for i in ends]
    return f"{words[ends[0]]}{where[0]} to {words[ends[1]]}{where[1]}"


def _differing(results: Results, indices: Sequence[int], *, without_scale: bool) -> dict[int, str]:
    """The values in which some points differ, in words. A number stands behind the name of its axis."""
    labels = [results.study.points[index].labels for index in indices]
    scaling = results.study.file.scaling
    hidden = {scaling.over} if without_scale and scaling is not None else set()
    if hidden:  # the axis that grows need not be the one that the curve counts
        hidden |= {name for name in labels[0] if scaling is not None and name not in scaling.groups}
    names = [name for name in labels[0] if name not in hidden and len({one.get(name) for one in labels}) > 1]
    return {
        index: ", ".join(
            f"{name} {one[name]}" if _is_number(one[name]) else one[name] for name in names if one.get(name)
        )
        for index, one in zip(indices, labels, strict=True)
    }


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()


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
