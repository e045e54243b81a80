"""Tables of the gemm benchmark: one row per shape, a column per precision, and the best of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape

from scalewright import units
from scalewright.records.measurements import Measurements
from scalewright.report.bench.lines import print_conditions, rate_unit, spread_text
from scalewright.report.console import plain_table

NOISE = 1.03
"""A rate above another by less than this is the same rate."""


def print_gemm(console: Console, measurements: Measurements) -> None:
    given = [row for row in measurements.rows if row["series"] == "shapes"]
    if given:
        _print_shapes(console, _fastest(measurements))
    if measurements.summary.get("best"):
        _print_best(console, measurements)
    cool = [row for row in measurements.rows if row["series"] == row["name"] == "cool"]
    if cool:
        _print_cool(console, cool)
    print_conditions(console, measurements)


def _fastest(measurements: Measurements) -> list[dict[str, Any]]:
    """The configured shapes and the best one, each with the fastest time that was measured.

    The search measures some shapes again. Under load two times of one shape differ, and the table would contradict the
    best rate below it.
    """
    best = {(p, *_sides(figure)) for p, figure in measurements.summary.get("best", {}).items()}
    fastest: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in measurements.rows:
        key = (row["precision"], *_sides(row))
        if row["series"] == "shapes" or (row["series"] == "best" and (key in best or key in fastest)):
            kept = fastest.setdefault(key, row)
            if row["flop_per_s"] > kept["flop_per_s"]:
                fastest[key] = {**row, "name": kept["name"]}
    return list(fastest.values())


def _sides(row: Mapping[str, Any]) -> tuple[int, int, int]:
    return row["m"], row["n"], row["k"]


def _print_shapes(console: Console, rows: list[dict[str, Any]]) -> None:
    precisions = list(dict.fromkeys(str(row["precision"]) for row in rows))
    right = ("M", "N", "K", *precisions, "+-")
    unit, one = rate_unit(row["flop_per_s"] for row in rows)
    table = plain_table("product", "M", "N", "K", *precisions, "+-", right=right, title=f"rate by shape ({unit})")
    by_shape: dict[tuple[str, int, int, int], dict[str, dict[str, Any]]] = {}
    for row in rows:
        by_shape.setdefault((row["name"], row["m"], row["n"], row["k"]), {})[row["precision"]] = row
    for (name, m, n, k), columns in by_shape.items():
        rates = [_digits(columns[p]["flop_per_s"], one) if p in columns else "-" for p in precisions]
        widest = max(columns.values(), key=lambda row: (row["time_high_s"] - row["time_low_s"]) / row["time_s"])
        table.add_row(escape(name) or "-", str(m), str(n), str(k), *rates, spread_text(widest))
    console.print(table)


def _digits(flop_per_s: float, one: float) -> str:
    """Three digits."""
    rate = flop_per_s / one
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.1f}" if rate >= 10 else f"{rate:.3g}"


def _print_best(console: Console, measurements: Measurements) -> None:
    columns = ("precision", "best rate", "of peak", "at M,N,K", "tried", "sustained", "of peak ")
    table = plain_table(
        *columns, right=("best rate", "of peak", "tried", "sustained", "of peak "), title="best achievable", gap=1
    )
    sustained = measurements.summary.get("sustained", {})
    for precision, best in measurements.summary["best"].items():
        held = sustained.get(precision)
        table.add_row(
            escape(precision),
            units.format(best["flop_per_s"], units.FLOP_PER_S),
            _share(best),
            f"{best['m']},{best['n']},{best['k']}",
            str(best["num_tried"]),
            units.format(held["flop_per_s"], units.FLOP_PER_S) if held else "-",
            _share(held) if held else "-",
        )
    console.print(table)
    above = [p for p, best in measurements.summary["best"].items() if p in sustained and _is_above(sustained[p], best)]
    if above:
        console.print(f"{', '.join(above)}: sustained is above the best rate: the search was too short or disturbed")


def _is_above(held: Mapping[str, Any], best: Mapping[str, Any]) -> bool:
    return float(held["flop_per_s"]) > NOISE * float(best["flop_per_s"])


LAYOUTS = {"tn": "forward", "nn": "input gradient", "nt": "weight gradient"}


def _print_cool(console: Console, rows: list[dict[str, Any]]) -> None:
    """Rates of all layers' products without the power limit, by their role in a step."""
    table = plain_table(
        "precision",
        *LAYOUTS.values(),
        right=tuple(LAYOUTS.values()),
        title="products of all layers, with pauses (a cool board)",
    )
    for precision in dict.fromkeys(str(row["precision"]) for row in rows):
        rates = []
        for layout in LAYOUTS:
            kept = [row for row in rows if (row["precision"], row["layout"]) == (precision, layout)]
            flop = sum(float(row["flop_per_s"]) * float(row["time_s"]) for row in kept)
            time_s = sum(float(row["time_s"]) for row in kept)
            rates.append(units.format(flop / time_s, units.FLOP_PER_S) if kept else "-")
        table.add_row(escape(precision), *rates)
    console.print(table)


def _share(figure: dict[str, Any]) -> str:
    share = figure.get("peak_frac")
    return "-" if share is None else f"{share:.1%}"
