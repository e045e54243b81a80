"""Parse and format quantities. The only place that knows prefixes.

Inside the code every number is a float in SI base units, and its name says which (`_bytes`, `_s`,
`_flop_per_s`). Files and flags use the datasheet's own words (`"3.35 TB/s"`, `"400 Gbit/s"`, `"80 GiB"`).
Decimal prefixes mean 1000; binary ones are spelled out (`KiB`, `MiB`, `GiB`, `TiB`, `PiB`).
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from scalewright.errors import QuantityError, nearest

DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18, "Z": 1e21, "Y": 1e24}
SMALL = {"m": 1e-3, "u": 1e-6, "µ": 1e-6, "μ": 1e-6, "n": 1e-9, "p": 1e-12}
BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
KILO, MEGA, GIGA, TERA = (DECIMAL[prefix] for prefix in "kMGT")
MILLI, MICRO, NANO = (SMALL[prefix] for prefix in "mun")
KIB, MIB, GIB = 2**10, 2**20, 2**30
"""In bytes, for sizes that are whole numbers."""
MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86400.0
JOULE_PER_WH = HOUR_S
BYTES_PER_BIT = 0.125

_CLOCK = re.compile(r"^(?:(?P<days>\d+)-)?(?P<hours>\d+):(?P<minutes>\d\d)(?::\d\d)?$")
_EXAMPLE_NUMBER = re.compile(r"\b[\d.]+(?= )")
_NUMBER = re.compile(r"^\s*([+-]?(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*$")


@dataclass(frozen=True, slots=True)
class Dimension:
    """What a quantity measures: its SI name and every spelling accepted, with its factor to SI."""

    name: str
    si: str
    spellings: dict[str, float]
    example: str
    suffix: str = ""
    """The end of a name in the code or of a key in JSON."""


def _prefixed(base: str, factor: float, *prefix_tables: dict[str, float], suffix: str = "") -> dict[str, float]:
    return {f"{p}{base}{suffix}": scale * factor for table in prefix_tables for p, scale in table.items()}


def _sizes(suffix: str = "") -> dict[str, float]:
    upper_kilo = {f"KB{suffix}": 1e3}
    whole_bytes = {f"bytes{suffix}": 1.0, f"byte{suffix}": 1.0}
    return (
        _prefixed("B", 1.0, DECIMAL, BINARY, suffix=suffix)
        | _prefixed("bit", BYTES_PER_BIT, DECIMAL, BINARY, suffix=suffix)
        | upper_kilo
        | whole_bytes
    )


BYTES = Dimension("size", "bytes", _sizes(), "80 GiB", suffix="bytes")
BYTES_PER_S = Dimension("bandwidth", "bytes/s", _sizes("/s"), "3.35 TB/s or 400 Gbit/s", suffix="bytes_per_s")
LINK_BYTES_PER_S = Dimension("link rate", "bytes/s", _sizes("/s"), "400 Gbit/s", suffix="bytes_per_s")
"""A bandwidth of networks, which people give in bits."""
FLOP = Dimension("work", "FLOP", _prefixed("FLOP", 1.0, DECIMAL), "1.2 YFLOP", suffix="flop")
FLOP_PER_S = Dimension(
    "rate of work",
    "FLOP/s",
    _prefixed("FLOP/s", 1.0, DECIMAL) | _prefixed("OP/s", 1.0, DECIMAL),
    "989 TFLOP/s",
    suffix="flop_per_s",
)
SECONDS = Dimension(
    "time",
    "s",
    _prefixed("s", 1.0, SMALL) | {"s": 1.0, "min": MINUTE_S, "h": HOUR_S, "d": DAY_S, "a": 31557600.0},
    "60 s, 10 min, 24 h or 1.5 us",
    suffix="s",
)
HERTZ = Dimension("frequency", "Hz", _prefixed("Hz", 1.0, DECIMAL), "1.41 GHz", suffix="hz")
TRANSFERS_PER_S = Dimension(
    "signalling rate", "T/s", _prefixed("T/s", 1.0, DECIMAL), "32 GT/s", suffix="transfers_per_s"
)
WATTS = Dimension("power", "W", _prefixed("W", 1.0, DECIMAL), "700 W", suffix="w")
JOULES = Dimension(
    "energy", "J", _prefixed("J", 1.0, DECIMAL) | _prefixed("Wh", JOULE_PER_WH, DECIMAL), "1.3 GWh", suffix="j"
)
COUNT = Dimension(
    "count", "", {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12} | {p: BINARY[p] for p in ("Ki", "Mi")},
    "128, 4Ki, 20k or 175 B",
)  # fmt: skip
"""Samples, tokens, devices, hours: `k` is 1000 and `Ki` 1024."""
FRACTION = Dimension("fraction", "", {"": 1.0, "%": 0.01}, "0.92 or 92 %", suffix="frac")
USD = Dimension(
    "money", "USD", _prefixed("USD", 1.0, {"": 1.0, "k": 1e3, "M": 1e6}), "500 USD or 30 kUSD", suffix="usd"
)
USD_PER_S = Dimension("price", "USD/s", {"USD/s": 1.0, "USD/h": 1 / HOUR_S}, "2.49 USD/h", suffix="usd_per_s")
EUR = Dimension(
    "euros", "EUR", _prefixed("EUR", 1.0, {"": 1.0, "k": 1e3, "M": 1e6}), "500 EUR or 30 kEUR", suffix="eur"
)
EUR_PER_S = Dimension("price in euros", "EUR/s", {"EUR/s": 1.0, "EUR/h": 1 / HOUR_S}, "2.30 EUR/h", suffix="eur_per_s")
USD_PER_EUR = Dimension("exchange rate", "USD/EUR", {"USD/EUR": 1.0}, "1.08 USD/EUR", suffix="usd_per_eur")
KGCO2E_PER_J = Dimension(
    "carbon intensity",
    "kgCO2e/J",
    {"kgCO2e/kWh": 1 / (1e3 * JOULE_PER_WH), "gCO2e/kWh": 1 / (1e6 * JOULE_PER_WH)},
    "230 gCO2e/kWh",
    suffix="kgco2e_per_j",
)
KGCO2E = Dimension("carbon", "kgCO2e", {"kgCO2e": 1.0, "tCO2e": 1e3, "gCO2e": 1e-3}, "25 tCO2e", suffix="kgco2e")

DIMENSIONS = {
    d.name: d
    for d in (
        BYTES,
        BYTES_PER_S,
        LINK_BYTES_PER_S,
        FLOP,
        FLOP_PER_S,
        SECONDS,
        HERTZ,
        TRANSFERS_PER_S,
        WATTS,
        JOULES,
        COUNT,
        FRACTION,
        USD,
        USD_PER_S,
        EUR,
        EUR_PER_S,
        USD_PER_EUR,
        KGCO2E_PER_J,
        KGCO2E,
    )
}


def parse(text: str, dimension: Dimension) -> float:
    """The SI value of a quantity as people write it; a bare number is refused unless the dimension is a count."""
    match = _NUMBER.match(text)
    if match is None:
        form = "a number" if "" in dimension.spellings else "a number and a unit"
        raise QuantityError(f"{text!r} is not a {dimension.name}: write {form}, such as {dimension.example}")
    number, unit = match.groups()
    value = float(number)
    if unit not in dimension.spellings:
        raise QuantityError(_unit_message(text, unit, dimension))
    if value < 0:
        raise QuantityError(
            f"{text!r} is negative: a {dimension.name} must be zero or more, such as {dimension.example}"
        )
    scaled = value * dimension.spellings[unit]
    if not math.isfinite(scaled):
        raise QuantityError(f"{text!r} is not finite: write a {dimension.name} such as {dimension.example}")
    return scaled


def decimal_size_as_binary(text: str) -> float | None:
    """Bytes of a size such as `96 GB` read as 96 GiB, as makers of memory count; None: it is not in decimal bytes."""
    match = _NUMBER.match(text)
    prefix = match[2].removesuffix("B") if match is not None and match[2].endswith("B") else ""
    binary = BINARY.get("Ki" if prefix == "k" else f"{prefix}i")
    return None if match is None or not prefix or binary is None else float(match[1]) * binary


def whole(value: str | float) -> int:
    """A whole number as people write it: 4096, 4Ki or 20k; a number of Python is taken if it is whole."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return int(value)
        number = parse(value, COUNT)
    else:
        number = float(value)
    nearest_whole = round(number) if math.isfinite(number) else None
    if nearest_whole is None or not math.isclose(number, nearest_whole, rel_tol=1e-12):
        raise QuantityError(f"{value} is not a whole number: write one such as 128, 4Ki or 20k")
    return nearest_whole


def _unit_message(text: str, unit: str, dimension: Dimension) -> str:
    if not unit:
        meant = _EXAMPLE_NUMBER.sub(text.strip(), dimension.example)
        return f"{text!r} has no unit: write the {dimension.name} with its unit, such as {meant}"
    if dimension is SECONDS and (clock := _CLOCK.match(text.strip())) is not None:
        days, hours, minutes = (float(clock[n] or 0) for n in ("days", "hours", "minutes"))
        return f"{text!r} is not a {dimension.name} here: write {24.0 * days + hours + minutes / 60.0:g} h"
    if "," in unit and (plain := text.replace(",", "").strip()).replace(".", "", 1).isdigit():
        return f"{text!r} has commas: write {plain}"
    near = nearest(unit, [s for s in dimension.spellings if s], limit=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"write it like {dimension.example}"
    return f"{text!r} has unit {unit!r}, which is not a {dimension.name}: {hint}"


def format(value: float, dimension: Dimension, *, digits: int = 3) -> str:
    """A quantity for people, in the prefix that reads best. The inverse of `parse` up to rounding."""
    if not math.isfinite(value):
        return f"{value} {dimension.si}".strip()
    if dimension is SECONDS and abs(value) < SHORTEST_SHOWN_S:
        value = 0.0
    for threshold, divisor, label in _LADDERS[dimension.name]:
        if abs(value) >= threshold * ROUNDS_UP:
            return f"{_rounded(value / divisor, digits)} {label}".rstrip()
    return f"{_rounded(value, digits)} {dimension.si}".rstrip()


def grouped(value: float) -> str:
    """A number that counts, such as hours or tokens, with its thousands apart and without an exponent: 44,540."""
    return f"{value:,.0f}" if abs(value) >= WHOLE_FROM else f"{value:.4g}"


WHOLE_FROM = 1000.0
"""Four digits are enough: above this, parts of one are not shown."""


def format_difference(value: float, dimension: Dimension) -> str:
    """A quantity with its sign in front, also where it is above 0."""
    return f"{'+' if value >= 0 else '-'}{format(abs(value), dimension)}"


def format_differences(values: Mapping[str, float], dimension: Dimension) -> str:
    """Named differences in one line: `compute +2 ms, tensor parallel -1 ms`."""
    return ", ".join(f"{name.replace('_', ' ')} {format_difference(v, dimension)}" for name, v in values.items())


ROUNDS_UP = 0.9995
"""With three digits, a value above this share of a rung would print as 1000 of the rung below."""
SHORTEST_SHOWN_S = 1e-13
"""A shorter time is a rounding error."""


def _rounded(value: float, digits: int) -> str:
    if value == 0:
        return "0"
    whole_digits = math.floor(math.log10(abs(value))) + 1
    return f"{value:.{max(digits - whole_digits, 0)}f}"


def _ladder(base: str, prefixes: dict[str, float], factor: float = 1.0) -> tuple[tuple[float, float, str], ...]:
    rungs = sorted(((scale * factor, f"{p}{base}") for p, scale in prefixes.items()), reverse=True)
    return tuple((scale, scale, label) for scale, label in rungs)


_KWH = 1e3 * JOULE_PER_WH
# threshold, divisor, label: the first rung whose threshold the value reaches is used
_LADDERS: dict[str, tuple[tuple[float, float, str], ...]] = {
    "size": _ladder("B", BINARY | {"": 1.0}),
    "bandwidth": _ladder("B/s", DECIMAL),
    "link rate": _ladder("bit/s", DECIMAL, BYTES_PER_BIT),
    "work": _ladder("FLOP", DECIMAL),
    "rate of work": _ladder("FLOP/s", DECIMAL),
    "time": (
        (2 * DAY_S, DAY_S, "d"),
        (2 * HOUR_S, HOUR_S, "h"),
        (10 * MINUTE_S, MINUTE_S, "min"),
        (1.0, 1.0, "s"),
        (1e-3, 1e-3, "ms"),
        (1e-6, 1e-6, "us"),
        (1e-9, 1e-9, "ns"),
    ),
    "frequency": _ladder("Hz", DECIMAL),
    "signalling rate": _ladder("T/s", DECIMAL),
    "power": _ladder("W", DECIMAL),
    "energy": (
        *_ladder("Wh", {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}, JOULE_PER_WH),
        (1e6, 1e6, "MJ"),
        (1e3, 1e3, "kJ"),
        (1.0, 1.0, "J"),
    ),
    "count": ((1e12, 1e12, "T"), (1e9, 1e9, "B"), (1e6, 1e6, "M"), (1e4, 1e3, "k")),
    "fraction": ((0.0, 0.01, "%"),),
    "money": ((1e6, 1e6, "MUSD"), (1e4, 1e3, "kUSD"), (0.0, 1.0, "USD")),
    "price": ((0.0, 1 / HOUR_S, "USD/h"),),
    "euros": ((1e6, 1e6, "MEUR"), (1e4, 1e3, "kEUR"), (0.0, 1.0, "EUR")),
    "price in euros": ((0.0, 1 / HOUR_S, "EUR/h"),),
    "exchange rate": ((0.0, 1.0, "USD/EUR"),),
    "carbon intensity": ((0.0, 1e-3 / _KWH, "gCO2e/kWh"),),
    "carbon": ((1e3, 1e3, "tCO2e"), (1.0, 1.0, "kgCO2e"), (0.0, 1e-3, "gCO2e")),
}
