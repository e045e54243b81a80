"""Quantities as people write them, against factors written out here from the SI and IEC tables."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scalewright import units
from scalewright.errors import QuantityError

SI_POWER = {"": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18, "Z": 21, "Y": 24}
SI_SMALL_POWER = {"m": -3, "u": -6, "\u00b5": -6, "\u03bc": -6, "n": -9, "p": -12}
IEC_POWER = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50}


def decimal(unit: str, factor: float = 1.0) -> dict[str, float]:
    return {f"{prefix}{unit}": float(f"1e{power}") * factor for prefix, power in SI_POWER.items()}


def sizes(per: str) -> dict[str, float]:
    bits = {k: v / 8 for k, v in decimal(f"bit{per}").items()}
    binary = {f"{p}B{per}": float(2**power) for p, power in IEC_POWER.items()}
    binary_bits = {f"{p}bit{per}": float(2**power) / 8 for p, power in IEC_POWER.items()}
    words = {f"KB{per}": 1000.0, f"byte{per}": 1.0, f"bytes{per}": 1.0}
    return decimal(f"B{per}") | bits | binary | binary_bits | words


EXPECTED: dict[str, dict[str, float]] = {
    "size": sizes(""),
    "bandwidth": sizes("/s"),
    "link rate": sizes("/s"),
    "work": decimal("FLOP"),
    "rate of work": decimal("FLOP/s") | decimal("OP/s"),
    "time": {f"{p}s": float(f"1e{power}") for p, power in SI_SMALL_POWER.items()}
    | {"s": 1.0, "min": 60.0, "h": 60.0 * 60, "d": 24 * 60.0 * 60, "a": 365.25 * 24 * 60 * 60},
    "frequency": decimal("Hz"),
    "signalling rate": decimal("T/s"),
    "power": decimal("W"),
    "energy": decimal("J") | decimal("Wh", 60.0 * 60),
    "count": {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12, "Ki": 1024.0, "Mi": 1024.0**2},
    "fraction": {"": 1.0, "%": 1 / 100},
    "money": {"USD": 1.0, "kUSD": 1e3, "MUSD": 1e6},
    "price": {"USD/s": 1.0, "USD/h": 1 / (60 * 60)},
    "euros": {"EUR": 1.0, "kEUR": 1e3, "MEUR": 1e6},
    "price in euros": {"EUR/s": 1.0, "EUR/h": 1 / (60 * 60)},
    "exchange rate": {"USD/EUR": 1.0},
    "carbon intensity": {"kgCO2e/kWh": 1 / 3.6e6, "gCO2e/kWh": 1 / 3.6e9},
    "carbon": {"kgCO2e": 1.0, "tCO2e": 1000.0, "gCO2e": 1 / 1000},
}
ALL_SPELLINGS = [(dimension, unit) for dimension, table in EXPECTED.items() for unit in table]
NEEDS_UNIT = [name for name, table in EXPECTED.items() if "" not in table]


@pytest.mark.parametrize(("dimension", "unit"), ALL_SPELLINGS)
def test_spelling_means_its_si_factor(dimension: str, unit: str) -> None:
    parsed = units.parse(f"2.5 {unit}", units.DIMENSIONS[dimension])
    assert parsed == pytest.approx(2.5 * EXPECTED[dimension][unit], rel=1e-14)


@pytest.mark.parametrize("dimension", EXPECTED)
def test_no_spelling_is_accepted_that_this_table_does_not_know(dimension: str) -> None:
    assert set(units.DIMENSIONS[dimension].spellings) == set(EXPECTED[dimension])


def test_the_table_covers_every_dimension() -> None:
    assert set(units.DIMENSIONS) == set(EXPECTED)


def test_decimal_and_binary_prefixes_differ() -> None:
    assert units.parse("80 GB", units.BYTES) == 80_000_000_000
    assert units.parse("80 GiB", units.BYTES) == 85_899_345_920


def test_bits_are_an_eighth_of_bytes() -> None:
    assert units.parse("400 Gbit/s", units.BYTES_PER_S) == 50e9
    assert units.parse("400 GB/s", units.BYTES_PER_S) == 400e9


@pytest.mark.parametrize(
    ("text", "value"),
    [("3.35TB/s", 3.35e12), ("  1e3  GB/s ", 1e12), (".5 GB/s", 5e8), ("+2 GB/s", 2e9), ("1_000 GB/s", 1e12)],
)
def test_ways_to_write_the_number(text: str, value: float) -> None:
    assert units.parse(text, units.BYTES_PER_S) == pytest.approx(value, rel=1e-14)


@pytest.mark.parametrize("dimension", NEEDS_UNIT)
def test_bare_number_is_refused_with_an_example(dimension: str) -> None:
    with pytest.raises(QuantityError, match=r"no unit.*such as \d"):
        units.parse("80", units.DIMENSIONS[dimension])


@pytest.mark.parametrize(("dimension", "unit"), [(name, next(iter(table))) for name, table in EXPECTED.items()])
def test_negative_is_refused(dimension: str, unit: str) -> None:
    with pytest.raises(QuantityError, match="negative"):
        units.parse(f"-1 {unit}", units.DIMENSIONS[dimension])


@pytest.mark.parametrize("number", ["nan", "NaN", "inf", "-inf", "Infinity", "1e999"])
def test_what_is_not_finite_is_refused(number: str) -> None:
    with pytest.raises(QuantityError):
        units.parse(f"{number} GB", units.BYTES)


def test_quantity_too_large_for_a_float_is_refused() -> None:
    with pytest.raises(QuantityError):
        units.parse("1e300 YB", units.BYTES)


@pytest.mark.parametrize("text", ["", "GB", "about 5 GB", "1__0 GB", "1_ GB", "5 GB 3", "1,5 GB"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(QuantityError):
        units.parse(text, units.BYTES)


@pytest.mark.parametrize(
    ("text", "dimension"),
    [
        ("80 GB", "bandwidth"),
        ("3 TB/s", "size"),
        ("5 s", "power"),
        ("700 W", "energy"),
        ("5 %", "size"),
        ("9 B", "work"),
    ],
)
def test_unit_of_another_dimension_is_refused(text: str, dimension: str) -> None:
    with pytest.raises(QuantityError, match=f"is not a {dimension}"):
        units.parse(text, units.DIMENSIONS[dimension])


@pytest.mark.parametrize(
    ("text", "dimension", "near"),
    [("80 GIB", "size", "GiB"), ("3 tb/s", "bandwidth", "TB/s"), ("989 TFLOPS", "rate of work", "TFLOP/s")],
)
def test_unknown_unit_names_the_nearest(text: str, dimension: str, near: str) -> None:
    with pytest.raises(QuantityError, match=near):
        units.parse(text, units.DIMENSIONS[dimension])


@given(text=st.text(max_size=20) | st.from_regex(r"[0-9_.eE+-]{1,8} ?[kMGTY]?i?(B|bit|s|W)?", fullmatch=True))
@settings(deadline=None, max_examples=150)
@example(text="1__0 GB")
@example(text="9e307 YB")
def test_any_text_is_a_finite_quantity_or_one_error(text: str) -> None:
    try:
        value = units.parse(text, units.BYTES)
    except QuantityError:
        return
    assert math.isfinite(value)
    assert value >= 0


@pytest.mark.parametrize("dimension", EXPECTED)
@given(value=st.floats(min_value=1e-12, max_value=1e27) | st.just(0.0))
@settings(deadline=None, max_examples=60)
@example(value=999.7)
@example(value=12345.0)
@example(value=9.996e9)
def test_format_then_parse_gives_the_value_back_within_rounding(dimension: str, value: float) -> None:
    written = units.format(value, units.DIMENSIONS[dimension])
    assert units.parse(written, units.DIMENSIONS[dimension]) == pytest.approx(value, rel=6e-3)


@pytest.mark.parametrize(
    ("value", "dimension", "text"),
    [
        (80 * 2**30, "size", "80.0 GiB"),
        (3.35e12, "bandwidth", "3.35 TB/s"),
        (989.4e12, "rate of work", "989 TFLOP/s"),
        (1.2e26, "work", "120 YFLOP"),
        (1.42, "time", "1.42 s"),
        (0.0123, "time", "12.3 ms"),
        (3 * 86400, "time", "3.00 d"),
        (700, "power", "700 W"),
        (3.6e6, "energy", "1.00 kWh"),
        (175e9, "count", "175 B"),
        (0.92, "fraction", "92.0 %"),
        (2.49 / 3600, "price", "2.49 USD/h"),
        (2.30 / 3600, "price in euros", "2.30 EUR/h"),
        (229_000, "euros", "229 kEUR"),
        (0.23 / 3.6e6, "carbon intensity", "230 gCO2e/kWh"),
        (25_000, "carbon", "25.0 tCO2e"),
    ],
)
def test_format_reads_like_a_datasheet(value: float, dimension: str, text: str) -> None:
    assert units.format(value, units.DIMENSIONS[dimension]) == text


def test_format_keeps_the_digits_asked_for() -> None:
    assert units.format(1.23456, units.SECONDS, digits=5) == "1.2346 s"


@pytest.mark.parametrize("value", [0.0, 0.25, 3.14159, 12.5, 999.94, 1000.0, 44_540.3, 1e6, 2.5e9, 1e15])
def test_numbers_that_count_have_no_exponent(value: float) -> None:
    text = units.grouped(value)
    assert "e" not in text
    assert float(text.replace(",", "")) == pytest.approx(value, rel=1e-3)
    assert units.grouped(44_540.3) == "44,540"


def test_no_message_prints_hours_with_an_exponent() -> None:
    """`{hours:.4g}` says 4.454e+04: hours are grouped."""
    root = Path(units.__file__).parent
    wrong = [
        f"{path.relative_to(root)}: {line.strip()}"
        for path in root.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"hours\w*(?:\.value)?:\.?\d*g\}", line) and "hours:.2g" not in line
    ]
    assert wrong == []
