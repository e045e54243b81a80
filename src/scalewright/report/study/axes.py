"""Axes of a study's plots: the unit, linear or logarithmic, and where they end.

The page's script (`report/page/study.js`) follows the same rules.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from scalewright import units
from scalewright.records.study_report import MetricShown, Number
from scalewright.report.study.numbers import shown

CLIP = 2.0
"""An axis ends at this times the largest value. Bars that reach further are cut and carry an arrow with their end."""
LOG_SPAN = 50.0
"""Largest over smallest value from which an axis is logarithmic."""
BINARY = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
TIMES = ((86400.0, "d", 172800.0), (3600.0, "h", 7200.0), (60.0, "min", 120.0), (1.0, "s", 1.0), (1e-3, "ms", 1e-3))
DECIMAL = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"))
WORDS = {"k": "thousand", "M": "million", "G": "billion", "T": "trillion"}
"""Prefixes of what is counted: 10 thousand images/s, not 10 kimages/s."""
TONNE_KG = 1e3
COUNTED = (units.COUNT.name, units.USD.name)


def axis_unit(metric: MetricShown, highest: float) -> tuple[float, str]:
    """Divisor of the values on an axis, and the unit of the quotient."""
    if metric.quantity == units.FRACTION.name:
        return 0.01, "%"
    if metric.unit == "s":
        return next(((size, name) for size, name, start in TIMES if highest >= start), (1e-6, "µs"))
    if metric.unit == "B":
        return next(((float(size), name) for size, name in BINARY if highest >= size), (1.0, "B"))
    if metric.quantity == units.KGCO2E.name and highest >= TONNE_KG:
        return TONNE_KG, metric.unit.replace("kg", "t", 1)
    if metric.quantity in (*COUNTED, units.KGCO2E.name) and highest < 1e4:
        return 1.0, metric.unit
    whole = units.BYTES_PER_BIT if metric.quantity == units.LINK_BYTES_PER_S.name else 1.0
    size, prefix = next(((size, name) for size, name in DECIMAL if highest >= size * whole), (1.0, ""))
    if metric.quantity in COUNTED:
        return (size, f"{WORDS[prefix]} {metric.unit}".strip()) if prefix in WORDS else (1.0, metric.unit)
    return size * whole, f"{prefix}{metric.unit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueAxis:
    """The axis of one metric's values."""

    metric: MetricShown
    size: float
    """What values are divided by."""
    unit: str
    is_log: bool
    low: float
    high: float
    """Ends, in the axis's unit."""

    @property
    def title(self) -> str:
        return f"{self.metric.title} ({self.unit})" if self.unit else self.metric.title

    def end(self, value: float) -> float:
        """The end of a bar on the axis, cut where the axis ends."""
        return min(max(value / self.size, self.low), self.high)

    def cuts(self, value: float | None) -> bool:
        return value is not None and value / self.size > self.high * (1 + 1e-9)

    def words(self, value: float) -> str:
        return shown(Number(value=value), self.metric)


def value_axis(metric: MetricShown, numbers: Iterable[Number]) -> ValueAxis:
    """From the values; ends of intervals count as far as they do not flatten them."""
    drawn_numbers = list(numbers)
    values = [number.value for number in drawn_numbers] or [1.0]
    ends = [end for n in drawn_numbers for end in (n.low, n.high) if end is not None]
    highest, least = max(values), min(values)
    size, unit = axis_unit(metric, highest)
    is_log = least > 0 and highest / least >= LOG_SPAN and metric.quantity != units.FRACTION.name
    top = min(max([*ends, highest]), CLIP * highest) if highest > 0 else 1.0
    bottom = max(min([*ends, least]), least / CLIP) / 1.3 if is_log else min(0.0, least)
    room = 1.3 if is_log else 1.05
    return ValueAxis(metric=metric, size=size, unit=unit, is_log=is_log, low=bottom / size, high=top * room / size)
