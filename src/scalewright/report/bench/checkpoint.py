"""Table of the checkpoint benchmark: how long training stops, how long a save takes, and how long a restore takes."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from scalewright import units
from scalewright.records.measurements import Measurements
from scalewright.report.console import plain_table


def print_checkpoint(console: Console, measurements: Measurements) -> None:
    device = measurements.device
    console.print(f"{escape(str(device.get('path', '')))} ({escape(str(device.get('file_system') or 'unknown'))})")
    right = ("size", "stall", "total", "write", "restore", "read", "saves")
    table = plain_table("mode", *right, right=right)
    for row in measurements.rows:
        table.add_row(
            row["mode"],
            units.format(row["size_bytes"], units.BYTES),
            units.format(row["stall_s"], units.SECONDS),
            units.format(row["total_s"], units.SECONDS),
            units.format(row["bytes_per_s"], units.BYTES_PER_S),
            units.format(row["restore_s"], units.SECONDS) + ("" if row["restore_cache"] == "cold" else "*"),
            units.format(row["restore_bytes_per_s"], units.BYTES_PER_S),
            str(row["repeats"]),
        )
    console.print(table)
    if any(row["restore_cache"] == "warm" for row in measurements.rows):
        console.print("* read from the page cache, which cannot be emptied on this file system")
    for fit in measurements.fits:
        rate = units.format(fit["bytes_per_s"], units.BYTES_PER_S)
        console.print(f"{fit['mode']}: total = {units.format(fit['latency_s'], units.SECONDS)} + size / {rate}")
    gain = measurements.summary.get("sync_over_async_stall")
    if gain is not None:
        size = units.format(measurements.summary["size_bytes"], units.BYTES)
        console.print(f"at {size}, async stops training for a {gain:.1f} times shorter time than sync")
    console.print("stall: of the slowest rank; for async, the copy to host memory, without a step to overlap with")
