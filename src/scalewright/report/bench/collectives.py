"""Tables of the collectives benchmark: the columns of nccl-tests, one table per operation, and the fits below."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape

from scalewright import units
from scalewright.records.measurements import Measurements
from scalewright.report.console import plain_table

COLUMNS = ("size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong")
UNITS = ("(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "")
TYPE_NAMES = {"fp32": "float", "fp64": "double", "fp16": "half", "bf16": "bfloat16"}
"""As nccl-tests spells them; others are spelled alike."""


def print_collectives(console: Console, measurements: Measurements) -> None:
    console.print(
        f"over {escape(measurements.versions.get('backend', 'an unknown library'))} "
        f"by {escape(measurements.versions.get('interface', 'an unknown interface'))}"
    )
    for op in dict.fromkeys(row["op"] for row in measurements.rows):
        table = plain_table(*COLUMNS, title=f"\n{op}", right=COLUMNS, gap=1)
        table.add_row(*UNITS)
        for row in measurements.rows:
            if row["op"] == op:
                table.add_row(*columns(row))
        console.print(table)
    if measurements.rows:
        wrong = int(measurements.summary["num_wrong"])
        console.print(f"\nOut of bounds values : {wrong} {'OK' if not wrong else 'FAILED'}")
        console.print(f"Avg bus bandwidth    : {measurements.summary['mean_bus_bytes_per_s'] / units.GIGA:.4f} GB/s")
    _print_fits(console, measurements.fits)


def columns(row: dict[str, Any]) -> tuple[str, ...]:
    """One row in the words and digits of nccl-tests; times are medians, not means."""
    return (
        str(row["size_bytes"]),
        str(row["count"]),
        TYPE_NAMES.get(row["dtype"], row["dtype"]),
        row["redop"],
        str(row["root"]),
        microseconds(row["time_s"]),
        gigabytes_per_s(row["alg_bytes_per_s"]),
        gigabytes_per_s(row["bus_bytes_per_s"]),
        str(row["num_wrong"]),
    )


def microseconds(time_s: float) -> str:
    """Five digits, as nccl-tests has them."""
    value = time_s / units.MICRO
    digits = 0 if value >= 10_000 else 1 if value >= 1_000 else 2
    return f"{value:.{digits}f}"


def gigabytes_per_s(rate_bytes_per_s: float) -> str:
    return f"{rate_bytes_per_s / units.GIGA:.2f}"


def _print_fits(console: Console, fits: list[dict[str, Any]]) -> None:
    if not fits:
        return
    console.print("\nt = alpha + size x (busbw / algbw) / bandwidth, with intervals of 95 %")
    table = plain_table(
        "operation", "from", "alpha (us)", "bandwidth (GB/s)", "error",
        right=("from", "alpha (us)", "error"),
    )  # fmt: skip
    for fit in fits:
        margin_s = 0.5 * (fit["alpha_high_s"] - fit["alpha_low_s"])
        high = fit["bytes_per_s_high"]
        upper = "any" if high is None else f"{high / units.GIGA:.3g}"
        table.add_row(
            fit["op"],
            units.format(fit["from_bytes"], units.BYTES),
            f"{fit['alpha_s'] / units.MICRO:.1f} ± {margin_s / units.MICRO:.1f}",
            f"{fit['bytes_per_s'] / units.GIGA:.4g} ({fit['bytes_per_s_low'] / units.GIGA:.3g} to {upper})",
            f"{fit['error_frac']:.1%}",
        )
    console.print(table)
