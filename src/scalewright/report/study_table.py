"""A study in the terminal: findings first, then its points in tables of 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from scalewright import units
from scalewright.records.study_report import PLACE, CurveShown, MetricShown, Number, PointRow, StudyReport
from scalewright.report.console import plain_table

MAX_METRICS = 3
"""Columns of figures beside the labels that 80 columns hold."""
MAX_ROWS = 60
"""More rows are cut: the page and the files have them all."""
MAX_PLAIN = 1e6
"""Whole numbers up to here are written out."""


def shown(number: Number | None, metric: MetricShown) -> str:
    """A value as people write it, with its unit."""
    if number is None:
        return "-"
    if metric.quantity == units.COUNT.name and number.value.is_integer() and abs(number.value) < MAX_PLAIN:
        return f"{number.value:,.0f} {metric.unit}".strip()
    text = units.format(number.value, units.DIMENSIONS[metric.quantity])
    named = metric.unit if metric.quantity == units.COUNT.name else ""
    return f"{text} {named}".strip()


def published_words(row: PointRow, metric: MetricShown) -> str:
    """What is published of a point; a dash with the reason elsewhere where nothing is."""
    words = []
    for figure in row.published:
        if figure.metric != metric.name:
            continue
        number = figure.number
        low, high = (None if end is None else shown(Number(value=end), metric) for end in (number.low, number.high))
        if low and high:
            words.append(f"{low} to {high}")
        elif low or high:
            words.append(f"> {low}" if low else f"< {high}")
        else:
            words.append(shown(number, metric))
    return ", ".join(words) or "-"


def print_study(console: Console, report: StudyReport) -> None:
    console.print(f"[bold]{escape(report.title)}[/] ({escape(report.study)}, {len(report.points)} points)")
    console.print(escape(report.question))
    console.print()
    for finding in report.findings:
        console.print(Padding(f"- {escape(finding.text)}", (0, 0, 0, 0)))
    if not report.metrics:
        _print_problems(console, report)
    elif report.curves:
        _print_curves(console, report)
    else:
        _print_points(console, report)
    for note in (*report.notes, *((report.measure_note,) if report.measure_note else ())):
        console.print(f"note: {escape(note)}")
    for part in report.parts:
        console.print()
        console.rule(style="dim")
        print_study(console, replace(part, notes=tuple(note for note in part.notes if note not in report.notes)))


def _print_curves(console: Console, report: StudyReport) -> None:
    """One row for each curve: its smallest and largest point, and where to stop."""
    metrics = {metric.name: metric for metric in report.metrics}
    first = report.metrics[0]
    efficiency = metrics.get("efficiency_frac")
    for origin in ("predicted", "measured"):
        chosen = [curve for curve in report.curves if curve.origin == origin]
        rows = [row for curve in chosen if (row := _curve_cells(report, curve, first, efficiency)) is not None]
        if not rows:
            continue
        groups = list(chosen[0].group)
        titles = [*groups, report.scale_name, first.title, "efficiency", "stop at"]
        table = plain_table(*titles, title=f"{origin} scaling", right=tuple(titles[len(groups) :]), gap=1)
        for cells in rows[:MAX_ROWS]:
            table.add_row(*(escape(cell) for cell in cells))
        console.print()
        console.print(table)
    _print_published(console, report)
    _print_problems(console, report)


def _print_problems(console: Console, report: StudyReport) -> None:
    """Why some points have no figure: the first reason, and how many others there are."""
    problems = {row.problem for row in report.points if row.problem}
    if problems:
        blocked = sum(bool(row.problem) for row in report.points)
        more = "" if len(problems) == 1 else f" (and {len(problems) - 1} other reasons: see --json)"
        console.print(f"{blocked} of {len(report.points)} cannot run: {escape(sorted(problems)[0])}{more}")


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
    stop = "-" if curve.recommended is None else f"{curve.recommended:,.0f}"
    scales = [row.scale or 0.0 for row in (rows[0], last)]
    return [
        *curve.group.values(),
        f"{scales[0]:,.0f}-{scales[1]:,.0f}",
        shown(numbers.get(first.name), first),
        "-" if efficiency is None else shown(numbers.get(efficiency.name), efficiency),
        stop,
    ]


def _print_published(console: Console, report: StudyReport) -> None:
    """Every published figure beside ours of the same point."""
    metrics = {metric.name: metric for metric in report.metrics}
    titles = [*report.axes, "figure", "published", "predicted", "measured"]
    table = plain_table(*titles, title="beside what was published", right=tuple(titles[-3:]), gap=1)
    for row in report.points:
        for name in dict.fromkeys(figure.metric for figure in row.published if figure.metric in metrics):
            metric = metrics[name]
            ours = [shown(numbers.get(name), metric) for numbers in (row.predicted, row.measured)]
            cells = [*row.labels.values(), metric.title, published_words(row, metric), *ours]
            table.add_row(*(escape(cell) for cell in cells))
    if table.row_count:
        console.print()
        console.print(table)


def _print_points(console: Console, report: StudyReport) -> None:
    metrics = report.metrics[:MAX_METRICS]
    both = any(row.measured for row in report.points) and any(row.predicted for row in report.points)
    told = any(figure.metric == metrics[0].name for row in report.points for figure in row.published)
    ranked = both and any(PLACE in row.measured for row in report.points)
    titles = [*report.axes, *_titles(metrics, both=both), *(["published"] if told else [])]
    titles += ["place\ntold", "place\nfound"] if ranked else []
    table = plain_table(*titles, right=tuple(titles[len(report.axes) :]), gap=1)
    for row in report.points[:MAX_ROWS]:
        cells = [*row.labels.values(), *_cells(row, metrics, both=both)]
        cells += [published_words(row, metrics[0])] if told else []
        cells += [_place(row.predicted), _place(row.measured)] if ranked else []
        table.add_row(*map(escape, cells))
    console.print()
    console.print(table)
    _print_problems(console, report)
    if len(report.points) > MAX_ROWS:
        console.print(f"{len(report.points) - MAX_ROWS} more points: see --json")


def _place(numbers: Mapping[str, Number]) -> str:
    """Of a point in a search; the best is the first."""
    return f"{numbers[PLACE].value:.0f}." if PLACE in numbers else "-"


def _titles(metrics: Sequence[MetricShown], *, both: bool) -> list[str]:
    first = metrics[0].title
    return [f"{first}, predicted", "measured", "ratio"] if both else [metric.title for metric in metrics]


def _cells(row: PointRow, metrics: Sequence[MetricShown], *, both: bool) -> list[str]:
    if not both:
        numbers = row.measured or row.predicted
        return [shown(numbers.get(metric.name), metric) for metric in metrics]
    first = metrics[0]
    told, seen = row.predicted.get(first.name), row.measured.get(first.name)
    ratio = "-" if told is None or seen is None or not told.value else f"{seen.value / told.value:.2f}"
    return [shown(told, first), shown(seen, first), ratio]
