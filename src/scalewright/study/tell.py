"""Results told as a report: rows, curves with where to stop, and the sentences that the figures allow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from statistics import median

from scalewright import __version__, units
from scalewright.records.study_report import (
    CurveShown,
    FindingShown,
    MetricShown,
    Number,
    Origin,
    PointRow,
    PublishedFigure,
    StudyReport,
)
from scalewright.study.kinds.base import Outcome
from scalewright.study.metrics import METRICS, Metric
from scalewright.study.order import agreement, is_search
from scalewright.study.results import NOT_YET, Results
from scalewright.study.scaling import Curve, curves, where_to_stop

NOTHING = Outcome()


def report_of(results: Results, *, machine: str = "", now: datetime | None = None) -> StudyReport:
    study = results.study
    laid = list(curves(study))
    return StudyReport(
        study=study.file.id,
        title=study.file.title,
        question=" ".join(study.file.question.split()),
        created=(now or datetime.now(UTC)).isoformat(timespec="seconds"),
        version=__version__,
        machine=machine,
        axes=tuple(study.points[0].labels),
        metrics=tuple(_shown(METRICS[name]) for name in _metrics(results)),
        points=tuple(_row(results, index, laid) for index in range(len(study.points))),
        curves=tuple(_curves(results, laid)),
        scale_name="" if study.file.scaling is None else study.file.scaling.name,
        findings=tuple(_findings(results)),
        notes=(*study.file.notes, *results.notes),
        measure_note=study.file.measure.note if study.file.measure and results.measured else "",
    )


def _metrics(results: Results) -> list[str]:
    """Those the study asks for, as far as any point has them, and the efficiency that follows."""
    has = {name for outcome in (*results.predicted, *results.measured) for name in outcome.numbers}
    wanted = [*results.study.metrics, *(told.figure.metric for told in results.published), "efficiency_frac"]
    return [name for name in dict.fromkeys(wanted) if name in has]


def _shown(metric: Metric) -> MetricShown:
    return MetricShown(
        name=metric.name, title=metric.title, unit=metric.unit, quantity=metric.dimension.name, better=metric.better
    )


def _row(results: Results, index: int, laid: Sequence[Curve]) -> PointRow:
    study, point = results.study, results.study.points[index]
    told = results.predicted[index] if results.predicted else NOTHING
    seen = results.measured[index] if results.measured else NOTHING
    scales = [curve.scales[curve.indices.index(index)] for curve in laid if index in curve.indices]
    remarks = [remark.text for remark in study.file.remarks if index in study.matching(remark.where)]
    return PointRow(
        id=point.id,
        labels=point.labels,
        scale=scales[0] if scales else None,
        predicted=told.numbers,
        measured=seen.numbers,
        published=tuple(
            PublishedFigure(
                metric=found.figure.metric, number=found.number, source=found.figure.source.text,
                url=found.figure.source.url, note=found.figure.note,
            )
            for found in results.published if found.point == index
        ),
        words=told.words | seen.words,
        limit=told.limit,
        why=told.why,
        parts=told.parts,
        measured_parts=seen.parts,
        problem=told.problem,
        measured_problem=seen.problem,
        remark="; ".join(remarks),
        notes=tuple(dict.fromkeys((*told.notes, *seen.notes))),
        series=seen.series,
    )  # fmt: skip


def _curves(results: Results, laid: Sequence[Curve]) -> Iterator[CurveShown]:
    origins: tuple[tuple[Origin, tuple[Outcome, ...]], ...] = (
        ("predicted", results.predicted),
        ("measured", results.measured),
    )
    for origin, outcomes in origins:
        if not outcomes:
            continue
        for curve in laid:
            stop = where_to_stop(curve, _work_s(curve, outcomes))
            yield CurveShown(
                group=curve.group,
                points=curve.indices,
                origin=origin,
                serial_frac=None if stop is None else stop.serial_frac,
                serial_interval_frac=None if stop is None else stop.serial_interval_frac,
                recommended=None if stop is None else stop.scale,
                sentence="" if stop is None else stop.sentence,
            )


def _work_s(curve: Curve, outcomes: Sequence[Outcome]) -> dict[int, float]:
    """Time of the same work at each scale: one over efficiency and scale, which holds for weak and strong alike."""
    found = {}
    for scale, index in zip(curve.scales, curve.indices, strict=True):
        number = outcomes[index].numbers.get("efficiency_frac")
        if number is not None and number.value > 0 and not outcomes[index].problem:
            found[index] = 1.0 / (number.value * scale)
    return found


def _findings(results: Results) -> Iterator[FindingShown]:
    """What a reader wants first: how well prediction meets measurement and print, the best points, what limits them."""
    yield from _agreement(results)
    yield from _order(results)
    yield from _best(results)
    yield from _limits(results)


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
