"""Lines of the micro benchmarks' tables: units that fit the device, spreads that can be read."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console

from scalewright.records.measurements import Measurements
from scalewright.report.bench.gemm import print_gemm
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


def product(flop_per_s: float, *, sides: tuple[int, int, int], series: str) -> dict[str, Any]:
    m, n, k = sides
    time_s = 2.0 * m * n * k / flop_per_s
    return {"precision": "fp32", "m": m, "n": n, "k": k, "name": "search" if series == "best" else "", "series": series,
            "layout": "tn", "time_s": time_s, "time_low_s": time_s, "time_high_s": time_s, "repeats": 9,
            "flop_per_s": flop_per_s}  # fmt: skip


@pytest.mark.parametrize(("searched", "configured"), [(90e9, 40e9), (40e9, 90e9)])
def test_the_best_product_has_the_same_rate_in_the_table_and_in_the_line(searched: float, configured: float) -> None:
    """Under load one shape has two rates, and the table used to show the other one."""
    square, large = (256, 256, 256), (512, 512, 512)
    rows = [product(configured, sides=square, series="shapes"), product(30e9, sides=large, series="shapes"),
            product(searched, sides=square, series="best"), product(20e9, sides=(64, 64, 64), series="best"),
            product(95e9, sides=square, series="sustained")]  # fmt: skip
    summary = {
        "best": {"fp32": {"m": 256, "n": 256, "k": 256, "flop_per_s": 90e9, "num_tried": 3}},
        "sustained": {"fp32": {"m": 256, "n": 256, "k": 256, "flop_per_s": 95e9}},
    }
    console = Console(width=80, file=io.StringIO())
    device = {"type": "cpu", "name": "Made-up CPU", "num_ranks": 1}
    print_gemm(console, Measurements(kind="gemm", device=device, versions={}, rows=rows, summary=summary))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert re.search(r"256 +256 +256 +90\.0", text), text
    assert re.search(r"512 +512 +512 +30\.0", text), text
    assert "64    64" not in text, "a finalist that lost is not in the table"
    assert "90.0 GFLOP/s" in text
    assert "fp32: sustained is above the best rate: the search was too short or disturbed" in text
