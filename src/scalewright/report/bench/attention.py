"""Table of the attention benchmark: rates of both passes by length, a pair of columns per kernel."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from scalewright.records.measurements import Measurements
from scalewright.report.bench.lines import print_conditions, rate_unit
from scalewright.report.console import plain_table

DIRECTIONS = ("forward", "backward")


def print_attention(console: Console, measurements: Measurements) -> None:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in measurements.rows:
        key = tuple(row[name] for name in ("precision", "heads", "kv_heads", "head_dim", "causal"))
        groups.setdefault(key, []).append(row)
    unit, one = rate_unit(row["flop_per_s"] for row in measurements.rows)
    for (precision, heads, kv_heads, head_dim, causal), rows in groups.items():
        mask = "causal" if causal else "no mask"
        grouped = "" if heads == kv_heads else f" over {kv_heads}"
        console.print(f"[bold]{precision}, {heads} heads{grouped} of {head_dim}, {mask}[/]")
        _print_group(console, rows, one=one)
    console.print(f"{unit} forward / backward")
    print_conditions(console, measurements)


def _print_group(console: Console, rows: list[dict[str, Any]], *, one: float) -> None:
    kernels = list(dict.fromkeys(str(row["kernel"]) for row in rows))
    table = plain_table("length", "batch", *kernels, right=("length", "batch", *kernels))
    by_case: dict[tuple[int, int], dict[tuple[str, str], float]] = {}
    for row in rows:
        by_case.setdefault((row["seq"], row["batch"]), {})[row["kernel"], row["direction"]] = row["flop_per_s"]
    for (seq, batch), rates in by_case.items():
        cells = [" / ".join(_digits(rates.get((kernel, way)), one) for way in DIRECTIONS) for kernel in kernels]
        table.add_row(str(seq), str(batch), *cells)
    console.print(table)


def _digits(flop_per_s: float | None, one: float) -> str:
    if flop_per_s is None:
        return "-"
    rate = flop_per_s / one
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.3g}"
