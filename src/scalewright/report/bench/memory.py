"""Tables of the memory benchmark: rates by size as STREAM prints them, and both directions of the host link."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from scalewright import units
from scalewright.records.measurements import Measurements
from scalewright.report.bench.lines import print_conditions
from scalewright.report.console import plain_table

TITLES = {"device": "device memory", "host": "host memory"}
LINK_COLUMNS = (
    ("to device, pinned", "h2d", True),
    ("from, pinned", "d2h", True),
    ("to, pageable", "h2d", False),
    ("from, pageable", "d2h", False),
)


def print_memory(console: Console, measurements: Measurements) -> None:
    for place, title in TITLES.items():
        rows = [row for row in measurements.rows if row["place"] == place]
        if rows:
            _print_stream(console, rows, title)
    link = [row for row in measurements.rows if row["place"] == "link"]
    if link:
        _print_link(console, link)
    share = measurements.summary.get("datasheet_frac")
    if share is not None:
        sheet = units.format(measurements.summary["datasheet_bytes_per_s"], units.BYTES_PER_S)
        console.print(f"the faster of copy and add reaches {share:.1%} of the datasheet's {sheet}", highlight=False)
    print_conditions(console, measurements)


def _print_stream(console: Console, rows: list[dict[str, Any]], title: str) -> None:
    ops = ("copy", "add", "read", "write")
    table = plain_table("buffer", *ops, right=("buffer", *ops), title=title)
    for size, by_op in _by_size(rows, lambda row: str(row["op"])).items():
        table.add_row(units.format(float(size), units.BYTES), *(_rate(by_op.get(op)) for op in ops))
    console.print(table)


def _print_link(console: Console, rows: list[dict[str, Any]]) -> None:
    names = [name for name, _, _ in LINK_COLUMNS]
    table = plain_table("buffer", *names, right=("buffer", *names), title="host and device")
    for size, by_way in _by_size(rows, lambda row: f"{row['op']} {row['is_pinned']}").items():
        rates = (_rate(by_way.get(f"{op} {is_pinned}")) for _, op, is_pinned in LINK_COLUMNS)
        table.add_row(units.format(float(size), units.BYTES), *rates)
    console.print(table)


def _by_size(rows: list[dict[str, Any]], key: Any) -> dict[int, dict[str, dict[str, Any]]]:
    by_size: dict[int, dict[str, dict[str, Any]]] = {}
    for row in rows:
        by_size.setdefault(int(row["size_bytes"]), {})[key(row)] = row
    return by_size


def _rate(row: dict[str, Any] | None) -> str:
    return "-" if row is None else units.format(row["bytes_per_s"], units.BYTES_PER_S)
