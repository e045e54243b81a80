"""Measurements of a micro benchmark in the terminal. Each benchmark has a printer in the usual form of its field."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from rich.console import Console
from rich.markup import escape

from scalewright.records.measurements import Measurements

Printer = Callable[[Console, Measurements], None]
PRINTERS: dict[str, str] = {
    "gemm": "scalewright.report.bench.gemm:print_gemm",
    "memory": "scalewright.report.bench.memory:print_memory",
    "attention": "scalewright.report.bench.attention:print_attention",
    "convolution": "scalewright.report.bench.convolution:print_convolutions",
    "dispatch": "scalewright.report.bench.dispatch:print_dispatch",
    "decode": "scalewright.report.bench.decode:print_decode",
    "collectives": "scalewright.report.bench.collectives:print_collectives",
    "sync": "scalewright.report.bench.sync:print_sync",
    "storage": "scalewright.report.bench.storage:print_storage",
    "checkpoint": "scalewright.report.bench.checkpoint:print_checkpoint",
    "generate": "scalewright.report.bench.generate:print_generate",
}
"""Function that prints a benchmark's rows, imported when it is needed."""


def print_measurements(console: Console, measurements: Measurements) -> None:
    """Print the device, the benchmark's own tables, and the notes."""
    console.print(f"[bold]{escape(measurements.kind)}[/] on {escape(_device(measurements))}")
    module, _, function = PRINTERS[measurements.kind].partition(":")
    printer: Printer = getattr(importlib.import_module(module), function)
    printer(console, measurements)
    for reason in measurements.conditions.get("throttled") or []:
        console.print(f"[yellow]throttled[/]: {escape(str(reason))}")
    for note in measurements.notes:
        console.print(f"note: {escape(note)}")


def _device(measurements: Measurements) -> str:
    ranks = int(measurements.device.get("num_ranks", 1))
    where = f"{measurements.device.get('name', 'this machine')}" + (f", {ranks} ranks" if ranks > 1 else "")
    versions = ", ".join(
        f"{name} {version}" for name, version in measurements.versions.items() if name in ("torch", "cuda")
    )
    return f"{where} ({versions})" if versions else where
