"""A scaling study in the terminal: measured points, efficiencies with throughput, and where to stop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.markup import escape

from scalewright.records.study_report import CurveShown, MetricShown, PointRow, StudyReport
from scalewright.report.console import plain_table
from scalewright.report.study.marks import TITLE as MARK
from scalewright.report.study.marks import is_marked, marks
from scalewright.report.study.numbers import heading, ratio_text, shown

MAX_ROWS = 60
"""Further rows are only in the page and the files."""
EFFICIENCY = "efficiency_frac"
THROUGHPUTS = ("tokens_per_s", "images_per_s")


def print_scaling(console: Console, report: StudyReport) -> None:
    """The measured points, then one row for each curve: where to stop, or why that is not known."""
    if any(row.measured for row in report.points):
        _print_measured(console, report)
        _print_efficiencies(console, report)
    for origin in ("predicted", "measured"):
        chosen = [curve for curve in report.curves if curve.origin == origin]
        if any(curve.recommended is not None for curve in chosen):
            _print_curves(console, report, chosen, title=f"{origin} scaling")
        elif origin == "measured" or not any(row.measured for row in report.points):
            for sentence in dict.fromkeys(curve.sentence for curve in chosen if curve.sentence):
                console.print(f"where to stop: {escape(sentence)}")


def _varying(report: StudyReport) -> list[str]:
    """Axes with more than one value, which distinguish the points."""
    axes = [axis for axis in report.axes if len({row.labels[axis] for row in report.points}) > 1]
    return axes or list(report.axes)


def _print_measured(console: Console, report: StudyReport) -> None:
    labels, first, marked = _varying(report), report.metrics[0], is_marked(report)
    figures = [heading(f"{first.title}, predicted"), "measured", "ratio"]
    titles = [*labels, *figures, *([MARK] if marked else [])]
    table = plain_table(*titles, title="predicted and measured", right=tuple(figures), gap=1)
    for row in report.points[:MAX_ROWS]:
        predicted, measured = row.predicted.get(first.name), row.measured.get(first.name)
        numbers = [shown(predicted, first), shown(measured, first), ratio_text(predicted, measured)]
        cells = [*(row.labels[name] for name in labels), *numbers]
        table.add_row(*map(escape, cells), *([marks(row)] if marked else []))
    console.print()
    console.print(table)


def _print_efficiencies(console: Console, report: StudyReport) -> None:
    """Every measured efficiency, with the throughput of all devices: an efficiency alone does not show speed."""
    measured = {name for row in report.points for name in row.measured}
    ratios = [metric for metric in report.metrics if metric.name.endswith(EFFICIENCY) and metric.name in measured]
    speed = next((metric for metric in report.metrics if metric.name in THROUGHPUTS and metric.name in measured), None)
    if not ratios:
        return
    labels, columns = _varying(report), [*([speed] if speed else []), *ratios]
    figures = [heading(metric.title) for metric in columns]
    table = plain_table(*labels, *figures, title="measured efficiency", right=tuple(figures), gap=1)
    for row in report.points[:MAX_ROWS]:
        cells = [row.labels[name] for name in labels]
        table.add_row(*map(escape, [*cells, *(shown(row.measured.get(metric.name), metric) for metric in columns)]))
    console.print()
    console.print(table)


def _print_curves(console: Console, report: StudyReport, chosen: Sequence[CurveShown], *, title: str) -> None:
    """One row for each curve: its smallest and largest scale, the numbers of the largest, and where to stop."""
    first = report.metrics[0]
    efficiency = next((metric for metric in report.metrics if metric.name == EFFICIENCY), None)
    rows = [cells for curve in chosen if (cells := _curve_cells(report, curve, first, efficiency)) is not None]
    if not rows:
        return
    groups = list(chosen[0].group)
    titles = [*groups, report.scale_name, heading(first.title), "efficiency", "stop at"]
    table = plain_table(*titles, title=title, right=tuple(titles[len(groups) :]), gap=1)
    for cells in rows[:MAX_ROWS]:
        table.add_row(*map(escape, cells))
    console.print()
    console.print(table)


def _usable(report: StudyReport, curve: CurveShown) -> Iterator[PointRow]:
    for index in curve.points:
        row = report.points[index]
        if not row.problem and (row.predicted if curve.origin == "predicted" else row.measured):
            yield row


def _curve_cells(
    report: StudyReport, curve: CurveShown, first: MetricShown, efficiency: MetricShown | None
) -> list[str] | None:
    rows = list(_usable(report, curve))
    if not rows:
        return None
    last = rows[-1]
    numbers = last.predicted if curve.origin == "predicted" else last.measured
    scales = [row.scale or 0.0 for row in (rows[0], last)]
    return [
        *curve.group.values(),
        f"{scales[0]:,.0f}-{scales[1]:,.0f}",
        shown(numbers.get(first.name), first),
        "-" if efficiency is None else shown(numbers.get(efficiency.name), efficiency),
        "-" if curve.recommended is None else f"{curve.recommended:,.0f}",
    ]
