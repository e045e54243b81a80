"""The points of a study as a LaTeX table: units in the head, plain numbers in the cells."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from scalewright.records.study_report import Number, PointRow, StudyReport
from scalewright.report.study.axes import axis_unit
from scalewright.report.study.columns import Column, columns, number_of
from scalewright.report.study.marks import TITLE as MARK
from scalewright.report.study.marks import is_marked, mark_notes, marks

MAX_ROWS_OF_A_PAGE = 45
"""Longer tables are a longtable, which breaks across pages."""
DIGITS = 3
CANNOT_RUN = r"$^{\dagger}$"
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "µ": r"$\mu$", "<": r"$<$", ">": r"$>$",
}  # fmt: skip


def latex(report: StudyReport) -> str:
    """A booktabs table of every metric, one row a point; a dagger marks points that cannot run."""
    shown_columns, marked = columns(report), is_marked(report)
    sizes = [_unit(report, column) for column in shown_columns]
    layout = "l" * len(report.axes) + "r" * len(shown_columns) + ("l" if marked else "")
    body = [_row(row, shown_columns, sizes, marked=marked) for row in report.points]
    kind = "longtable" if len(report.points) > MAX_ROWS_OF_A_PAGE else "tabular"
    packages = "booktabs" if kind == "tabular" else "booktabs and longtable"
    head = [*_head(report, shown_columns, sizes, marked=marked), r"\midrule"]
    return "\n".join(
        [
            f"% {' '.join(report.title.split())}",
            f"% made by scalewright {report.version} on {report.created}; needs {packages}",
            rf"\begin{{{kind}}}{{{layout}}}",
            r"\toprule",
            *head,
            *([r"\endhead"] if kind == "longtable" else []),
            *body,
            r"\bottomrule",
            rf"\end{{{kind}}}",
            *[rf"\par\footnotesize {note}" for note in _notes(report)],
            "",
        ]
    )


def _unit(report: StudyReport, column: Column) -> tuple[float, str]:
    """What a column's numbers are divided by, and the unit of the quotient: one for all origins of a metric."""
    metric, _ = column
    numbers = [n.value for row in report.points for n in (*_own(row, metric.name), *_told(row, metric.name))]
    return axis_unit(metric, max(map(abs, numbers), default=1.0))


def _own(row: PointRow, name: str) -> list[Number]:
    return [numbers[name] for numbers in (row.predicted, row.measured) if name in numbers]


def _told(row: PointRow, name: str) -> list[Number]:
    return [figure.number for figure in row.published if figure.metric == name]


def _head(
    report: StudyReport, shown_columns: Sequence[Column], sizes: Sequence[tuple[float, str]], *, marked: bool
) -> list[str]:
    """Metrics with their units above, predicted, measured and published below."""
    above, rules, at = [r"\multicolumn{1}{l}{}"] * len(report.axes), [], len(report.axes) + 1
    pairs = list(zip(shown_columns, sizes, strict=True))
    for metric, group in groupby(pairs, key=lambda pair: pair[0][0]):
        members = list(group)
        unit = members[0][1][1]
        title = _tex(f"{metric.title} ({unit})" if unit else metric.title)
        above.append(rf"\multicolumn{{{len(members)}}}{{c}}{{{title}}}")
        rules.append(rf"\cmidrule(lr){{{at}-{at + len(members) - 1}}}")
        at += len(members)
    below = [*map(_tex, report.axes), *(origin for _, origin in shown_columns), *([MARK] if marked else [])]
    tail = [""] if marked else []
    return [" & ".join([*above, *tail]) + r" \\", "".join(rules), " & ".join(below) + r" \\"]


def _row(row: PointRow, shown_columns: Sequence[Column], sizes: Sequence[tuple[float, str]], *, marked: bool) -> str:
    labels = list(map(_tex, row.labels.values()))
    if row.problem and labels:
        labels[0] += CANNOT_RUN
    cells = [_cell(row, column, size) for column, (size, _) in zip(shown_columns, sizes, strict=True)]
    return " & ".join([*labels, *cells, *([_tex(marks(row))] if marked else [])]) + r" \\"


def _cell(row: PointRow, column: Column, size: float) -> str:
    metric, origin = column
    if origin == "published":
        return ", ".join(_range(number, size) for number in _told(row, metric.name)) or "--"
    number = number_of(row, metric, origin)
    return "--" if number is None else plain(number.value / size)


def _range(number: Number, size: float) -> str:
    low, high = (None if end is None else plain(end / size) for end in (number.low, number.high))
    if low and high:
        return f"{low}--{high}"
    return f"$>${low}" if low else f"$<${high}" if high else plain(number.value / size)


def plain(value: float) -> str:
    """Three digits, without an exponent where a reader does not need one."""
    rounded = float(f"{value:.{DIGITS}g}")
    if rounded != 0 and not 1e-4 <= abs(rounded) < 1e7:
        mantissa, power = f"{rounded:.{DIGITS - 1}e}".split("e")
        return rf"${mantissa}\times10^{{{int(power)}}}$"
    if float(f"{value:.9g}").is_integer() or abs(rounded) >= 100:
        return f"{rounded:,.0f}".replace(",", r"\,")
    return f"{rounded:.{max(0, DIGITS - 1 - _power(rounded))}f}"


def _power(value: float) -> int:
    return int(f"{value:e}".split("e")[1])


def _notes(report: StudyReport) -> list[str]:
    """Why points cannot run, the most common reason first, then the marks."""
    reasons: dict[str, int] = {}
    for row in report.points:
        if row.problem:
            reasons[row.problem] = reasons.get(row.problem, 0) + 1
    ordered = sorted(reasons.items(), key=lambda item: -item[1])
    daggers = [f"{CANNOT_RUN} cannot run ({count} points): {_tex(reason)}" for reason, count in ordered]
    return [*daggers, *map(_tex, mark_notes(report))]


def _tex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in " ".join(text.split()))
