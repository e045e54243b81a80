"""Lines of the micro benchmarks' tables: units that fit the device, spreads that can be read."""

from __future__ import annotations

import pytest

from scalewright.report.bench.lines import rate_unit, spread_text


@pytest.mark.parametrize(
    ("rates", "unit"), [([3e11, 2e9], "GFLOP/s"), ([7.5e14, 4e10], "TFLOP/s"), ([1e12], "TFLOP/s"), ([], "GFLOP/s")]
)
def test_rates_are_told_in_what_the_fastest_fills(rates: list[float], unit: str) -> None:
    assert rate_unit(rates)[0] == unit


def test_spread_beyond_the_median_itself_is_only_said_to_be_so() -> None:
    timed = {"time_s": 1.0, "time_low_s": 0.9, "time_high_s": 1.1, "repeats": 9}
    assert spread_text(timed) == "10.0%"
    assert spread_text(timed | {"time_high_s": 90.0}) == ">100%"
    assert spread_text(timed | {"repeats": 1}) == "-"
