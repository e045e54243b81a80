"""What a micro benchmark found, for people: each benchmark has a printer of its own, in the form its field knows."""

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
    "collectives": "scalewright.report.bench.collectives:print_collectives",
    "storage": "scalewright.report.bench.storage:print_storage",
    "checkpoint": "scalewright.report.bench.checkpoint:print_checkpoint",
}
"""Function that prints a benchmark's rows, imported when it is needed."""


def print_measurements(console: Console, found: Measurements) -> None:
    """Where it was measured, the benchmark's own table, and what a reader must know."""
    console.print(f"[bold]{escape(found.kind)}[/] on {escape(_device(found))}")
    module, _, function = PRINTERS[found.kind].partition(":")
    printer: Printer = getattr(importlib.import_module(module), function)
    printer(console, found)
    for reason in found.conditions.get("throttled") or []:
        console.print(f"[yellow]throttled[/]: {escape(str(reason))}")
    for note in found.notes:
        console.print(f"note: {escape(note)}")


def _device(found: Measurements) -> str:
    ranks = int(found.device.get("num_ranks", 1))
    where = f"{found.device.get('name', 'this machine')}" + (f", {ranks} ranks" if ranks > 1 else "")
    versions = ", ".join(f"{name} {version}" for name, version in found.versions.items() if name in ("torch", "cuda"))
    return f"{where} ({versions})" if versions else where
