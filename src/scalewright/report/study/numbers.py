"""Numbers of a study as text, the same in the terminal, the page and the files."""

from __future__ import annotations

import re

from scalewright import units
from scalewright.records.study_report import MetricShown, Number, PointRow

MAX_PLAIN = 1e6
"""Whole numbers below this are written out."""
THOUSAND = 1e3
LONG_TITLE = 12


def shown(number: Number | None, metric: MetricShown) -> str:
    """A value with its unit."""
    if number is None:
        return "-"
    if metric.quantity == units.COUNT.name and number.value.is_integer() and abs(number.value) < MAX_PLAIN:
        return f"{number.value:,.0f} {metric.unit}".strip()
    if metric.quantity == units.COUNT.name and THOUSAND <= abs(number.value) < MAX_PLAIN:
        return f"{float(f'{number.value:.3g}'):,.0f} {metric.unit}".strip()
    text = units.format(number.value, units.DIMENSIONS[metric.quantity])
    unit = metric.unit if metric.quantity == units.COUNT.name else ""
    return f"{text} {unit}".strip()


def ratio_text(predicted: Number | None, measured: Number | None) -> str:
    """Measured over predicted."""
    if predicted is None or measured is None or not predicted.value:
        return "-"
    return f"{measured.value / predicted.value:.2f}"


def published_words(row: PointRow, metric: MetricShown) -> str:
    """The published figures of a point; a dash if there are none."""
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


def elbow_words(row: PointRow) -> list[str]:
    """Where the tail of each distribution of a point begins."""
    labels = ", ".join(row.labels.values())
    return [
        f"{labels}: {bend.share_frac:.0%} of the {name.removesuffix('_s').replace('_', ' ')}s are up to "
        f"{units.format(bend.time_s, units.SECONDS)}, where the tail begins"
        for name, bend in row.elbows.items()
    ]


def heading(title: str) -> str:
    """The title of a column, broken into lines if it is wider than the numbers below it."""
    if len(title) <= LONG_TITLE:
        return title
    return re.sub(r"(,)? (?=(per|of|predicted|measured|published)\b)", r"\1\n", title)
