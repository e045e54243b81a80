"""A study in the terminal: findings first, then its points in tables of 80 columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rich.console import Console
from rich.markup import escape

from scalewright.records.study_report import PLACE, MetricShown, Number, PointRow, StudyReport
from scalewright.report.console import plain_table, print_warnings
from scalewright.report.pipeline.stages import print_pipeline
from scalewright.report.study.gaps import print_gaps
from scalewright.report.study.marks import TITLE as MARK
from scalewright.report.study.marks import is_marked, mark_notes, marks
from scalewright.report.study.numbers import heading, published_words, ratio_text, shown
from scalewright.report.study.observations import print_observations
from scalewright.report.study.scaling import MAX_ROWS, print_scaling

MAX_REASONS = 3
MAX_METRICS = 3
"""Columns of numbers that fit beside the labels in 80 columns."""


def print_study(console: Console, report: StudyReport) -> None:
    console.print(f"[bold]{escape(report.title)}[/] ({escape(report.study)}, {len(report.points)} points)")
    console.print(escape(report.question))
    console.print()
    for finding in report.findings:
        console.print(f"- {escape(finding.text)}")
    if report.pipeline is not None:
        print_pipeline(console, report.pipeline)
    elif not report.metrics:
        _print_problems(console, report)
    elif report.curves:
        print_scaling(console, report)
        _print_published(console, report)
        _print_problems(console, report)
    else:
        _print_points(console, report)
    print_gaps(console, report.gaps)
    if report.observations is not None:
        print_observations(console, report.observations)
    print_warnings(console, report.warnings)
    for note in mark_notes(report):
        console.print(escape(note))
    for note in (*report.notes, *((report.measure_note,) if report.measure_note else ())):
        console.print(f"note: {escape(note)}")
    for part in report.parts:
        console.print()
        console.rule(style="dim")
        print_study(console, replace(part, notes=tuple(note for note in part.notes if note not in report.notes)))


def _print_problems(console: Console, report: StudyReport) -> None:
    """Why some points have no number: the most common reasons, and how many others there are."""
    predicted = [row.problem for row in report.points if row.problem]
    measured = [row.measured_problem for row in report.points if row.measured_problem]
    for problems, what in ((predicted, "cannot run"), (measured, "not measured")):
        counts = Counter(problems).most_common()
        for reason, count in counts[:MAX_REASONS]:
            console.print(f"{count} of {len(report.points)} {what}: {escape(reason)}")
        if len(counts) > MAX_REASONS:
            console.print(f"and {len(counts) - MAX_REASONS} other reasons: see --json")


def _print_published(console: Console, report: StudyReport) -> None:
    """Every published figure beside the predicted one of the same point, and the measured one if there is any."""
    metrics = {metric.name: metric for metric in report.metrics}
    origins = ["published", "predicted", *(["measured"] if any(row.measured for row in report.points) else [])]
    titles = [*report.axes, "figure", *origins]
    table = plain_table(*titles, title="published figures", right=tuple(origins), gap=1)
    for row in report.points:
        for name in dict.fromkeys(figure.metric for figure in row.published if figure.metric in metrics):
            metric = metrics[name]
            ours = [shown(numbers.get(name), metric) for numbers in (row.predicted, row.measured)]
            cells = [*row.labels.values(), metric.title, published_words(row, metric), *ours][: len(titles)]
            table.add_row(*(escape(cell) for cell in cells))
    if table.row_count:
        console.print()
        console.print(table)


def _print_points(console: Console, report: StudyReport) -> None:
    metrics = report.metrics[:MAX_METRICS]
    both = any(row.measured for row in report.points) and any(row.predicted for row in report.points)
    has_published = any(figure.metric == metrics[0].name for row in report.points for figure in row.published)
    ranked = both and any(PLACE in row.measured for row in report.points)
    titles = [*report.axes, *_titles(metrics, both=both), *(["published"] if has_published else [])]
    titles += ["place\npredicted", "place\nmeasured"] if ranked else []
    titles += [MARK] if is_marked(report) else []
    right = tuple(title for title in titles[len(report.axes) :] if title != MARK)
    none_measured = not any(row.measured for row in report.points) and any(
        row.measured_problem for row in report.points
    )
    table = plain_table(*titles, title="predicted; nothing was measured" if none_measured else "", right=right, gap=1)
    for row in report.points[:MAX_ROWS]:
        cells = [*row.labels.values(), *_cells(row, metrics, both=both)]
        cells += [published_words(row, metrics[0])] if has_published else []
        cells += [_place(row.predicted), _place(row.measured)] if ranked else []
        cells += [marks(row)] if is_marked(report) else []
        table.add_row(*map(escape, cells))
    console.print()
    console.print(table)
    _print_problems(console, report)
    if len(report.points) > MAX_ROWS:
        console.print(f"{len(report.points) - MAX_ROWS} more points: see --json")


def _place(numbers: Mapping[str, Number]) -> str:
    """Place of a point in a search; the best is first."""
    return f"{numbers[PLACE].value:.0f}." if PLACE in numbers else "-"


def _titles(metrics: Sequence[MetricShown], *, both: bool) -> list[str]:
    first = metrics[0].title
    return [heading(f"{first}, predicted"), "measured", "ratio"] if both else [heading(m.title) for m in metrics]


def _cells(row: PointRow, metrics: Sequence[MetricShown], *, both: bool) -> list[str]:
    if not both:
        numbers = row.measured or row.predicted
        return [shown(numbers.get(metric.name), metric) for metric in metrics]
    first = metrics[0]
    predicted, measured = row.predicted.get(first.name), row.measured.get(first.name)
    return [shown(predicted, first), shown(measured, first), ratio_text(predicted, measured)]
