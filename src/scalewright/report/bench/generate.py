"""Tables of the generation benchmark: rates, latencies, what is predicted beside what was measured, and the engine."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape

from scalewright import units
from scalewright.records.measurements import Measurements
from scalewright.report.bench.lines import print_conditions
from scalewright.report.console import plain_table

RATES = ("answers", "time", "tokens/s", "each", "running", "busy", "cache", "put aside")
LATENCIES = ("median", "p95", "p99")
TITLES = {"tokens_per_s": "tokens/s", "ttft_s": "first token", "itl_s": "between tokens"}
NONE = "-"


def print_generate(console: Console, measurements: Measurements) -> None:
    rows = measurements.rows
    _print_rates(console, rows)
    _print_latencies(console, rows)
    _print_comparisons(console, measurements.summary.get("comparisons", []), measurements.summary.get("basis", ""))
    for row in rows:
        for line in _engine_lines(row):
            console.print(f"{row['load']}: {line}" if len(rows) > 1 else line, highlight=False)
    print_conditions(console, measurements)


def _print_rates(console: Console, rows: list[dict[str, Any]]) -> None:
    table = plain_table("load", *RATES, right=RATES)
    for row in rows:
        each, mean, most = row["tokens_per_s_each"], row.get("cache_mean_frac"), row.get("cache_most_frac")
        table.add_row(
            row["load"],
            f"{row['num_answers']:,}",
            units.format(row["time_s"], units.SECONDS),
            number(row["tokens_per_s"]),
            NONE if each is None else number(each),
            number(row["mean_running"]),
            NONE if row.get("busy_frac") is None else f"{row['busy_frac']:.0%}",
            NONE if mean is None else f"{mean:.0%}/{most:.0%}",
            NONE if row.get("num_preemptions") is None else f"{row['num_preemptions']:,}",
        )
    console.print(table)
    if any(row.get("cache_mean_frac") is not None for row in rows):
        console.print("cache: mean and largest share in use", highlight=False)


def _print_latencies(console: Console, rows: list[dict[str, Any]]) -> None:
    console.print()
    table = plain_table("load", *(f"{part} {name}" for part in ("first", "next") for name in LATENCIES),
                        right=tuple(f"{part} {name}" for part in ("first", "next") for name in LATENCIES))  # fmt: skip
    for row in rows:
        table.add_row(row["load"], *(_time(row[f"{part}_{name}_s"]) for part in ("ttft", "itl") for name in LATENCIES))
    console.print(table)
    console.print("first: from due to the first token; next: between two tokens of an answer")
    for row in rows:
        if row.get("queued_ttft_median_s") not in (None, row["ttft_median_s"]):
            times = ", ".join(f"{name} {_time(row[f'queued_ttft_{name}_s'])}" for name in LATENCIES)
            console.print(
                f"{row['load']}: due when a place is free; with the time in the queue before, first token {times}",
                highlight=False,
            )


def _print_comparisons(console: Console, comparisons: list[dict[str, Any]], basis: str) -> None:
    if not comparisons:
        return
    console.print()
    numbers = ("measured", "predicted", "90 % interval", "ratio")
    table = plain_table("load", "", *numbers, right=numbers)
    for one in comparisons:
        ends = one["interval"]
        interval = NONE if ends is None else f"{_figure(one['name'], ends[0])} - {_figure(one['name'], ends[1])}"
        outside = " outside" if one["inside"] is False else ""
        table.add_row(
            one["load"], TITLES[one["name"]], _figure(one["name"], one["measured"]),
            _figure(one["name"], one["predicted"]), interval, f"{one['ratio_frac']:.2f}{outside}",
        )  # fmt: skip
    console.print(table)
    source = f"; predicted from: {escape(basis)}" if basis else ""
    console.print(f"ratio: measured over predicted{source}")


def _engine_lines(row: dict[str, Any]) -> list[str]:
    """What is known of the engine and its machine beyond times, a sentence each."""
    lines = []
    rate, roof = row.get("decode_bytes_per_s"), row.get("memory_roof_frac")
    if rate is not None:
        each = units.format(row["decode_bytes_per_token"], units.BYTES)
        share = "" if roof is None else f", {roof:.0%} of what memory reaches"
        lines.append(f"decode reads {each} a token, {units.format(rate, units.BYTES_PER_S)}{share}")
    if row.get("prefill_tokens_per_s") is not None:
        lines.append(f"prompts are read at {number(row['prefill_tokens_per_s'])} tokens/s")
    if row.get("energy_j_per_million_tokens") is not None:
        energy = units.format(row["energy_j_per_million_tokens"], units.JOULES)
        lines.append(f"a million tokens take {energy} ({row['energy_of']})")
    if row.get("usd_per_million_tokens") is not None:
        lines.append(f"a million tokens cost {units.format(row['usd_per_million_tokens'], units.USD)}")
    if row.get("rank_gap_frac") is not None:
        lines.append(f"the rank that works least works {row['rank_gap_frac']:.1%} less than the one that works most")
    return lines


def _figure(name: str, value: float) -> str:
    return _time(value) if name.endswith("_s") and not name.endswith("per_s") else number(value)


def _time(seconds: float | None) -> str:
    return NONE if seconds is None else units.format(seconds, units.SECONDS)


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
