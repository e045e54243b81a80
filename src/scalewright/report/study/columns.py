"""Columns of numbers in the tables of a study: which metrics, and from where."""

from __future__ import annotations

from scalewright.records.study_report import MetricShown, Number, PointRow, StudyReport

Column = tuple[MetricShown, str]
"""A metric, and whether it is predicted, measured or published."""


def columns(report: StudyReport) -> list[Column]:
    """Columns for which any point has a number."""
    return [(metric, origin) for metric in report.metrics for origin in _origins(report, metric)]


def _origins(report: StudyReport, metric: MetricShown) -> list[str]:
    origins = []
    for origin in ("predicted", "measured"):
        if any(metric.name in getattr(row, origin) for row in report.points):
            origins.append(origin)
    if any(figure.metric == metric.name for row in report.points for figure in row.published):
        origins.append("published")
    return origins


def number_of(row: PointRow, metric: MetricShown, origin: str) -> Number | None:
    """What a cell shows. Of a point that cannot run only the memory is predicted: it may be the reason."""
    if origin == "predicted" and row.problem and metric.unit != "B":
        return None
    number: Number | None = getattr(row, origin).get(metric.name)
    return number
