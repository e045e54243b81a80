"""Lines that several benchmarks print below their tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console

from scalewright import units
from scalewright.records.measurements import Measurements


def spread_text(row: dict[str, Any]) -> str:
    """Half the interval of the median, relative to it; a single repeat has none."""
    if int(row.get("repeats", 0)) < 2:
        return "-"
    spread = (row["time_high_s"] - row["time_low_s"]) / (2.0 * row["time_s"])
    return f"{spread:.1%}" if spread < 1.0 else ">100%"


def rate_unit(rates_flop_per_s: Iterable[float]) -> tuple[str, float]:
    """Unit of a table of rates, and its value: chosen by the fastest rate."""
    prefix = "T" if max(rates_flop_per_s, default=0.0) >= units.DECIMAL["T"] else "G"
    return f"{prefix}FLOP/s", units.DECIMAL[prefix]


def print_conditions(console: Console, measurements: Measurements) -> None:
    """Power, clocks and temperature in one line, as far as they are known."""
    seen = measurements.conditions
    parts = []
    if seen.get("power_w") is not None:
        cap = f" of {seen['power_limit_w']:.0f} W" if seen.get("power_limit_w") is not None else " W"
        parts.append(f"mean power {seen['power_w']:.0f}{cap}")
    if seen.get("clock_low_hz") is not None:
        parts.append(f"clock {seen['clock_low_hz'] / units.MEGA:.0f} to {seen['clock_high_hz'] / units.MEGA:.0f} MHz")
    if seen.get("temperature_c") is not None:
        parts.append(f"up to {seen['temperature_c']:.0f} C")
    if parts:
        console.print(", ".join(parts), highlight=False)
