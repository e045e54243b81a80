"""Tables of the storage benchmark: read rate by format and number of processes, and metadata in the terms of mdtest."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape

from scalewright import units
from scalewright.data.shards import READ_BYTES
from scalewright.records.measurements import Measurements
from scalewright.report.bench.lines import spread_text
from scalewright.report.console import plain_table

MDTEST_NAMES = {"create": "creation", "stat": "stat", "open": "read", "unlink": "removal"}


def print_storage(console: Console, measurements: Measurements) -> None:
    device = measurements.device
    console.print(f"{escape(str(device.get('path', '')))} ({escape(str(device.get('file_system') or 'unknown'))})")
    usual = [row for row in measurements.rows if row["io_bytes"] == READ_BYTES]
    table = plain_table(
        "format", "cache", "order", "workers", "samples/s", "bandwidth", "of 1 worker", "spread",
        right=("workers", "samples/s", "bandwidth", "of 1 worker", "spread"),
    )  # fmt: skip
    for row in usual:
        table.add_row(
            row["format"],
            row["cache"],
            row["order"],
            str(row["num_workers"]),
            f"{row['samples_per_s']:,.0f}",
            units.format(row["bytes_per_s"], units.BYTES_PER_S),
            _against_one(row, usual),
            spread_text(row),
        )
    console.print(table)
    _print_read_sizes(console, measurements.rows)
    _print_metadata(console, measurements.summary.get("metadata", []))


def _against_one(row: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    same = ("format", "cache", "order")
    alone = [r for r in rows if r["num_workers"] == 1 and all(r[key] == row[key] for key in same)]
    if not alone or row["num_workers"] == 1:
        return ""
    return f"{row['samples_per_s'] / alone[0]['samples_per_s']:.2f}x"


def _print_read_sizes(console: Console, rows: list[dict[str, Any]]) -> None:
    one = [r for r in rows if r["format"] == "shards" and r["order"] == "sequential" and r["num_workers"] == 1]
    if len({row["io_bytes"] for row in one}) < 2:
        return
    console.print("\n[bold]shards in sequence by read size, 1 worker[/]")
    table = plain_table("read size", "cache", "bandwidth", right=("read size", "bandwidth"))
    for row in sorted(one, key=lambda r: (r["cache"], r["io_bytes"])):
        size, rate = units.format(row["io_bytes"], units.BYTES), units.format(row["bytes_per_s"], units.BYTES_PER_S)
        table.add_row(size, row["cache"], rate)
    console.print(table)


def _print_metadata(console: Console, rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    names = tuple(f"file {name}" for name in MDTEST_NAMES.values())
    console.print("\n[bold]metadata, operations per second, as mdtest names them[/]")
    table = plain_table("workers", "files", *names, right=("workers", "files", *names))
    for row in rows:
        rates = (f"{row[op]:,.0f}" for op in MDTEST_NAMES)
        table.add_row(str(row["num_workers"]), str(row["num_files"]), *rates)
    console.print(table)
