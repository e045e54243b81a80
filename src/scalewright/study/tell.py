"""Results told as a report: rows, and curves with where to stop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from scalewright import __version__
from scalewright.records.study_report import (
    CurveShown,
    MetricShown,
    Origin,
    PointRow,
    PublishedFigure,
    StudyReport,
)
from scalewright.study.distribution import elbow_of
from scalewright.study.findings import findings_of
from scalewright.study.kinds.base import Outcome
from scalewright.study.metrics import METRICS, Metric
from scalewright.study.results import Results
from scalewright.study.scaling import Curve, curves, too_few, where_to_stop

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
        scale_name=_scale_name(results),
        units={name: METRICS[name].unit for name in sorted(_names(results))},
        findings=tuple(findings_of(results)),
        notes=(*study.file.notes, *results.notes),
        measure_note=study.file.measure.note if study.file.measure and results.measured else "",
    )


def _scale_name(results: Results) -> str:
    """What the scaling counts, for people."""
    file = results.study.file
    if file.scaling is None:
        return ""
    here = file.measure.scale if file.measure is not None and results.study.is_measured else ""
    return here or file.scaling.name


def _metrics(results: Results) -> list[str]:
    """Those the study asks for, as far as any point has them, and the efficiency that follows."""
    has = _names(results)
    wanted = [*results.study.metrics, *(told.figure.metric for told in results.published), "efficiency_frac"]
    return [name for name in dict.fromkeys(wanted) if name in has]


def _names(results: Results) -> set[str]:
    return {name for outcome in (*results.predicted, *results.measured) for name in outcome.numbers}


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
        elbows={name: bend for name, values in seen.series.items() if (bend := elbow_of(values)) is not None},
        doubts=seen.doubts,
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
            work_s = _work_s(curve, outcomes)
            stop = where_to_stop(curve, work_s)
            yield CurveShown(
                group=curve.group,
                points=curve.indices,
                origin=origin,
                serial_frac=None if stop is None else stop.serial_frac,
                serial_interval_frac=None if stop is None else stop.serial_interval_frac,
                recommended=None if stop is None else stop.scale,
                sentence=too_few(len(work_s)) if stop is None else stop.sentence,
            )


def _work_s(curve: Curve, outcomes: Sequence[Outcome]) -> dict[int, float]:
    """Time of the same work at each scale: one over efficiency and scale, which holds for weak and strong alike."""
    found = {}
    for scale, index in zip(curve.scales, curve.indices, strict=True):
        number = outcomes[index].numbers.get("efficiency_frac")
        if number is not None and number.value > 0 and not outcomes[index].problem:
            found[index] = 1.0 / (number.value * scale)
    return found
