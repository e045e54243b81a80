"""Tables of the convolution benchmark: a row per shape with time and rate of each pass, the sum, and the norms."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from scalewright import units
from scalewright.records.measurements import Measurements
from scalewright.report.bench.lines import print_conditions
from scalewright.report.console import plain_table, rate_words

DIRECTIONS = ("forward", "input", "weight")
NORM_COLUMNS = (
    ("norm forward", "norm", "forward"),
    ("norm backward", "norm", "backward"),
    ("ReLU forward", "activation", "forward"),
    ("ReLU backward", "activation", "backward"),
)
OTHERS = {"norms": "norm_s", "activations": "activation_s", "pooling": "pool_s"}


def print_convolutions(console: Console, measurements: Measurements) -> None:
    for total in measurements.summary["network"]:
        mine = [row for row in measurements.rows if all(row[name] == total[name] for name in ("precision", "layout"))]
        _print_cases(console, [row for row in mine if row["op"] == "convolution"], total)
        _print_total(console, total)
        _print_norms(console, [row for row in mine if row["op"] != "convolution"])
    print_conditions(console, measurements)


def _print_cases(console: Console, rows: list[dict[str, Any]], total: dict[str, Any]) -> None:
    is_fast = max((row["flop_per_s"] for row in rows), default=0.0) >= 1e12
    scale, unit = (1e-12, "TFLOP/s") if is_fast else (1e-9, "GFLOP/s")
    title = f"{total['precision']}, channels {total['layout']}, batch {total['batch']}: us and {unit}"
    table = plain_table(
        "kernel", "channels", "pixels", "count", *(name for way in DIRECTIONS for name in (way, "rate")),
        right=("count", *DIRECTIONS, "rate"), title=title, gap=1,
    )  # fmt: skip
    by_case: dict[tuple[int, ...], dict[str, dict[str, Any]]] = {}
    for row in rows:
        key = tuple(
            int(row[name]) for name in ("kernel", "channels_in", "channels_out", "in_size", "out_size", "count")
        )
        by_case.setdefault(key, {})[row["direction"]] = row
    for (kernel, channels_in, channels_out, in_size, out_size, count), rows_by_direction in by_case.items():
        mark = "*" if any(row["way"] == "product" for row in rows_by_direction.values()) else ""
        cells = []
        for way in DIRECTIONS:
            timed = rows_by_direction.get(way)
            cells += ["-", "-"] if timed is None else [_us(timed["time_s"]), _digits(timed["flop_per_s"] * scale)]
        pixels = str(in_size) if in_size == out_size else f"{in_size}>{out_size}"
        table.add_row(f"{kernel}x{kernel}{mark}", f"{channels_in}>{channels_out}", pixels, str(count), *cells)
    console.print(table)
    if any(row["way"] == "product" for row in rows):
        console.print("* computed as a matrix product, as training does here")


def _print_total(console: Console, total: dict[str, Any]) -> None:
    """The sum over the network; if some operators are missing, the share of the work that was measured."""
    parts = [total[f"{way}_s"] for way in DIRECTIONS]
    if None in parts:
        console.print(f"{total['measured_frac']:.0%} of the convolutions' work was measured: the sum is not known")
        return
    console.print("a batch: " + ", ".join(f"{way} {_seconds(total[f'{way}_s'])}" for way in DIRECTIONS))
    alone = rate_words(total["convolution_images_per_s"], "images/s")
    others = {name: total[key] for name, key in OTHERS.items()}
    if None in others.values():
        console.print(f"{alone} by convolutions alone")
        return
    whole_s = sum(parts) + sum(others.values())
    console.print(", ".join(f"{name} {_seconds(value_s)}" for name, value_s in others.items() if value_s > 0))
    together = rate_words(total["batch"] / whole_s, "images/s")
    console.print(f"{alone} by convolutions alone, {together} with these ({sum(parts) / whole_s:.0%} of the time)")


def _print_norms(console: Console, rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    pool = {
        row["direction"]: units.format(row["bytes_per_s"], units.BYTES_PER_S) for row in rows if row["op"] == "pool"
    }
    names = tuple(name for name, _, _ in NORM_COLUMNS)
    table = plain_table("channels", "pixels", *names, right=("channels", "pixels", *names), title="norms, activations")
    by_size: dict[tuple[int, int], dict[tuple[str, str], float]] = {}
    for row in rows:
        if row["op"] == "pool":
            continue
        rates = by_size.setdefault((int(row["channels_out"]), int(row["out_size"])), {})
        rates[row["op"], row["direction"]] = row["bytes_per_s"]
    for (channels, pixels), rates in by_size.items():
        cells = [
            units.format(rates[op, way], units.BYTES_PER_S) if (op, way) in rates else "-"
            for _, op, way in NORM_COLUMNS
        ]
        table.add_row(str(channels), str(pixels), *cells)
    console.print(table)
    if pool:
        console.print("pooling " + ", ".join(f"{direction} {rate}" for direction, rate in pool.items()))


def _seconds(value_s: float) -> str:
    return units.format(value_s, units.SECONDS)


def _us(time_s: float) -> str:
    return f"{time_s / units.MICRO:.0f}" if time_s >= 1e-4 else f"{time_s / units.MICRO:.1f}"


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
