"""The report of a study, built from its results: rows of points, curves with where to stop, and findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from scalewright import __version__
from scalewright.catalog.library import Catalog
from scalewright.observe.breakdown.distribution import elbow_of
from scalewright.records.run_directory import RunDirectory
from scalewright.records.study_report import (
    CurveShown,
    FindingShown,
    MetricShown,
    Origin,
    PointRow,
    PublishedFigure,
    StudyReport,
)
from scalewright.study.file import axes_of
from scalewright.study.findings import compared_axis, findings_of
from scalewright.study.gaps import gaps_of
from scalewright.study.kinds.base import Outcome
from scalewright.study.metrics import METRICS, Metric
from scalewright.study.observations.table import observation_findings, observation_table
from scalewright.study.pipeline.findings import pipeline_findings
from scalewright.study.pipeline.shown import pipeline_shown
from scalewright.study.points import Study, open_study
from scalewright.study.results import Results, measured_study, predict_study
from scalewright.study.scaling import Curve, curves, too_few_points, where_to_stop
from scalewright.study.statements import checked_statements, disagreements
from scalewright.study.store import Store

NO_OUTCOME = Outcome()
WHEN_RUN = (
    "A stage is predicted when it starts, because what it starts from is known then: study run shows the prediction "
    "beside what was measured. A stage that starts from nothing is predicted here if its options name a system."
)


def predicted_report(catalog: Catalog, study: Study) -> StudyReport:
    report = with_observations(catalog, study, report_of(predict_study(catalog, study)))
    if study.pipeline is not None and not report.metrics:
        unanswered = FindingShown(
            text=f"nothing is predicted of these {len(report.points)} stages: scalewright study run {study.file.id} "
            "measures them and answers the question",
            is_answer=True,
        )
        findings = answers_first(unanswered, *report.findings)
        report = replace(report, findings=findings, notes=(*report.notes, WHEN_RUN))
    return report


def measured_report(catalog: Catalog, name: str, store: Store) -> StudyReport:
    """The measured points beside their predictions, then the points for other systems, if the study has any."""
    planned = store.read_pipeline()
    study = open_study(catalog, name, is_measured=True, setting=None if planned is None else planned.setting)
    store.check(study)
    report = report_of(measured_study(catalog, study, store), machine=_machine(study, store))
    report = with_observations(catalog, study, report, [store.run(point, 0) for point in study.points])
    if study.pipeline is not None:
        shown = pipeline_shown(study, store)
        report = replace(report, pipeline=shown, findings=answers_first(*pipeline_findings(shown), *report.findings))
    has_own = study.pipeline is not None or (study.file.measure is not None and bool(axes_of(study.file.measure)))
    if not has_own or not axes_of(study.file):
        return report
    return replace(report, parts=(report_of(predict_study(catalog, open_study(catalog, name))),))


def with_observations(
    catalog: Catalog, study: Study, report: StudyReport, runs: Sequence[RunDirectory] = ()
) -> StudyReport:
    """The report with the observations that its study names, measured by the stages among `runs`."""
    if not study.file.observations:
        return report
    table = observation_table(catalog, study.file.observations, runs)
    findings = answers_first(*observation_findings(table), *report.findings)
    return replace(report, observations=table, findings=findings, notes=(*report.notes, *table.notes))


def answers_first(*findings: FindingShown) -> tuple[FindingShown, ...]:
    """A reader came with a question: its answer stands before everything else that was found."""
    return tuple(sorted(findings, key=lambda finding: not finding.is_answer))


def _machine(study: Study, store: Store) -> str:
    """The machine of the first run that has written one down."""
    runs = (store.run(point, 0) for point in study.points)
    return next(filter(None, map(_machine_of_run, runs)), "")


def _machine_of_run(run: RunDirectory) -> str:
    if not run.machine.exists():
        return ""
    machine = run.read_machine()
    return f"measured on {machine.get('accelerator', '')} ({machine.get('basis', '')})"


def report_of(results: Results, *, machine: str = "", now: datetime | None = None) -> StudyReport:
    study = results.study
    study_curves, gaps = list(curves(study)), gaps_of(results)
    return StudyReport(
        study=study.file.id,
        title=study.file.title,
        question=" ".join(study.file.question.split()),
        created=(now or datetime.now(UTC)).isoformat(timespec="seconds"),
        version=__version__,
        machine=machine,
        axes=tuple(study.points[0].labels),
        metrics=tuple(_shown(METRICS[name]) for name in _metrics(results)),
        points=tuple(_row(results, index, study_curves) for index in range(len(study.points))),
        curves=tuple(_curves(results, study_curves)),
        scale_name=_scale_name(results),
        compared_axis=compared_axis(study),
        units={name: METRICS[name].unit for name in sorted(_names(results))},
        findings=answers_first(*findings_of(results, gaps)),
        gaps=gaps,
        statements=tuple(check.shown(results) for check in checked_statements(results)),
        notes=(*study.file.notes, *disagreements(results), *results.notes),
        measure_note=study.file.measure.note if study.file.measure and results.measured else "",
    )


def _scale_name(results: Results) -> str:
    """What the scaling counts: nodes, ranks."""
    file = results.study.file
    if file.scaling is None:
        return ""
    measured_scale = file.measure.scale if file.measure is not None and results.study.is_measured else ""
    return measured_scale or file.scaling.name


def _metrics(results: Results) -> list[str]:
    """The study's metrics, those of published figures and the efficiency, as far as any point has them."""
    measured_names = _names(results)
    published_names = (published.figure.metric for published in results.published)
    names = dict.fromkeys((*results.study.metrics, *published_names, "efficiency_frac"))
    return [name for name in names if name in measured_names]


def _names(results: Results) -> set[str]:
    return {name for outcome in (*results.predicted, *results.measured) for name in outcome.numbers}


def _shown(metric: Metric) -> MetricShown:
    return MetricShown(
        name=metric.name, title=metric.title, unit=metric.unit, quantity=metric.dimension.name, better=metric.better
    )


def _row(results: Results, index: int, study_curves: Sequence[Curve]) -> PointRow:
    study, point = results.study, results.study.points[index]
    predicted = results.predicted[index] if results.predicted else NO_OUTCOME
    measured = results.measured[index] if results.measured else NO_OUTCOME
    scales = [curve.scales[curve.indices.index(index)] for curve in study_curves if index in curve.indices]
    remarks = [remark.text for remark in study.file.remarks if index in study.matching(remark.where)]
    return PointRow(
        id=point.id,
        labels=point.labels,
        scale=scales[0] if scales else None,
        predicted=predicted.numbers,
        measured=measured.numbers,
        published=tuple(
            PublishedFigure(
                metric=published.figure.metric, number=published.number, source=published.figure.source.text,
                url=published.figure.source.url, note=published.figure.note,
            )
            for published in results.published if published.point == index
        ),
        words=predicted.words | measured.words,
        limit=predicted.limit,
        why=predicted.why,
        parts=predicted.parts,
        measured_parts=measured.parts,
        problem=predicted.problem,
        measured_problem=measured.problem,
        remark="; ".join(remarks),
        notes=tuple(dict.fromkeys((*predicted.notes, *measured.notes))),
        series=measured.series,
        elbows={name: bend for name, values in measured.series.items() if (bend := elbow_of(values)) is not None},
        doubts=measured.doubts,
    )  # fmt: skip


def _curves(results: Results, study_curves: Sequence[Curve]) -> Iterator[CurveShown]:
    origins: tuple[tuple[Origin, tuple[Outcome, ...]], ...] = (
        ("predicted", results.predicted),
        ("measured", results.measured),
    )
    for origin, outcomes in origins:
        if not outcomes:
            continue
        for curve in study_curves:
            work_s = _work_s(curve, outcomes)
            stop = where_to_stop(curve, work_s)
            yield CurveShown(
                group=curve.group,
                points=curve.indices,
                origin=origin,
                serial_frac=None if stop is None else stop.serial_frac,
                serial_interval_frac=None if stop is None else stop.serial_interval_frac,
                recommended=None if stop is None else stop.scale,
                sentence=too_few_points(len(work_s)) if stop is None else stop.sentence,
            )


def _work_s(curve: Curve, outcomes: Sequence[Outcome]) -> dict[int, float]:
    """Relative time of the same work at each scale, by point: 1 / (efficiency x scale), for weak and strong scaling."""
    work_s = {}
    for scale, index in zip(curve.scales, curve.indices, strict=True):
        number = outcomes[index].numbers.get("efficiency_frac")
        if number is not None and number.value > 0 and not outcomes[index].problem:
            work_s[index] = 1.0 / (number.value * scale)
    return work_s
