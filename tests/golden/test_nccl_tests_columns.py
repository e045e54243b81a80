"""Sizes, counts and bandwidths are those of nccl-tests: the guide's worked example, and the definitions by hand."""

from __future__ import annotations

import io
import tomllib
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from scalewright.observe.alpha_beta import fit_collectives
from scalewright.records.measurements import Measurements
from scalewright.report.bench.collectives import print_collectives
from scalewright.workload.collective import OPS, bandwidths_bytes_per_s, bus_share, num_elements, total_bytes
from scalewright.workload.collectives_run import CollectivesRun

TABLE = tomllib.loads((Path(__file__).parent / "nccl_tests_h100.toml").read_text(encoding="utf-8"))
LAST_DIGIT_GB_PER_S = 0.005 + 0.0051
"""Half of the last digit printed, and as much again because the time was rounded as well."""


def measured_rows() -> list[dict[str, Any]]:
    """The guide's sizes and times as our benchmark writes them."""
    rows = []
    for size, count, time_us, _, _ in TABLE["rows"]:
        algorithm, bus = bandwidths_bytes_per_s("all-reduce", size_bytes=size, time_s=time_us * 1e-6, num_ranks=8)
        rows.append(
            {
                "op": "all-reduce", "dtype": "fp32", "redop": "sum", "root": -1, "num_ranks": 8, "num_nodes": 2,
                "size_bytes": size, "count": count, "time_s": time_us * 1e-6, "alg_bytes_per_s": algorithm,
                "bus_bytes_per_s": bus, "num_wrong": 0, "backend": "nccl",
            }
        )  # fmt: skip
    return rows


def test_sizes_by_factor_are_those_of_the_example() -> None:
    run = CollectivesRun(min_bytes=TABLE["min_bytes"], max_bytes=TABLE["max_bytes"], factor=TABLE["factor"])
    assert run.sizes_bytes() == [row[0] for row in TABLE["rows"]]
    counts = [num_elements("all-reduce", size_bytes=s, element_bytes=4, num_ranks=8) for s in run.sizes_bytes()]
    assert counts == [row[1] for row in TABLE["rows"]]


@pytest.mark.parametrize("row", TABLE["rows"], ids=lambda row: str(row[0]))
def test_bandwidths_of_each_row(row: list[float]) -> None:
    size, _, time_us, algorithm, bus = row
    bandwidths = bandwidths_bytes_per_s(
        "all-reduce", size_bytes=size, time_s=time_us * 1e-6, num_ranks=TABLE["num_ranks"]
    )
    assert bandwidths[0] * 1e-9 == pytest.approx(algorithm, abs=LAST_DIGIT_GB_PER_S)
    assert bandwidths[1] * 1e-9 == pytest.approx(bus, abs=LAST_DIGIT_GB_PER_S)


def test_the_worked_example_of_the_text() -> None:
    algorithm, bus = bandwidths_bytes_per_s("all-reduce", size_bytes=32768, time_s=24.57e-6, num_ranks=8)
    assert f"{algorithm * 1e-9:.2f} {bus * 1e-9:.2f}" == "1.33 2.33"


def test_the_printed_table_has_the_columns_and_digits_of_nccl_tests() -> None:
    rows = measured_rows()
    mean = sum(row["bus_bytes_per_s"] for row in rows) / len(rows)
    measurements = Measurements(
        kind="collectives", device={}, versions={}, rows=rows,
        summary={"num_wrong": 0, "mean_bus_bytes_per_s": mean, "best_bus_bytes_per_s": {}},
        fits=[fit.document() for fit in fit_collectives(rows)],
    )  # fmt: skip
    out = io.StringIO()
    print_collectives(Console(file=out, width=80), measurements)
    lines = out.getvalue().splitlines()
    assert max(len(line) for line in lines) <= 80
    words = [line.split() for line in lines]
    assert ["size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong"] in words
    assert ["32768", "8192", "float", "sum", "-1", "24.57", "1.33", "2.33", "0"] in words
    assert ["8388608", "2097152", "float", "sum", "-1", "191.09", "43.90", "76.82", "0"] in words
    # The guide shows one of the two placements that nccl-tests averages over, hence 1 %.
    assert mean * 1e-9 == pytest.approx(TABLE["avg_bus_gb_per_s"], rel=0.01)


def test_bus_shares_are_those_of_the_definitions() -> None:
    expected = {
        "all-reduce": 1.5, "all-gather": 0.75, "reduce-scatter": 0.75, "all-to-all": 0.75, "broadcast": 1.0,
        "send-recv": 1.0,
    }  # fmt: skip
    assert {op: bus_share(op, 4) for op in OPS} == expected


@pytest.mark.parametrize("op", ["all-gather", "reduce-scatter", "all-to-all"])
def test_the_size_of_a_split_operation_is_the_whole_buffer(op: Any) -> None:
    """1 MiB of fp32 on 4 ranks: 64 Ki elements each, 1 MiB in all; parts are whole lines of 16 bytes."""
    count = num_elements(op, size_bytes=2**20, element_bytes=4, num_ranks=4)
    assert (count, total_bytes(op, num_elements=count, element_bytes=4, num_ranks=4)) == (2**16, 2**20)
    assert num_elements(op, size_bytes=1000, element_bytes=4, num_ranks=3) == 80
    assert num_elements(op, size_bytes=8, element_bytes=4, num_ranks=4) == 0
