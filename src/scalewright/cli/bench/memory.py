"""`scalewright bench memory`: bandwidth of memory and of the link between host and device."""

from __future__ import annotations

from typing import Annotated

import typer

from scalewright.cli.bench.options import MeasuringTime
from scalewright.cli.bench.start import run_benchmark
from scalewright.cli.options import AsJson, DeviceName, RunFolder

SizesText = Annotated[str | None, typer.Option(metavar="SIZE,...", help="Of a buffer; default: 64 KiB to 1 GiB.")]


def run(
    sizes: SizesText = None,
    device: DeviceName = "auto",
    budget: MeasuringTime = "20 s",
    run_dir: RunFolder = None,
    as_json: AsJson = False,
) -> None:
    """Time copy, add, read and write in device and host memory, and copies between them. Exit 3: throttled twice."""
    run_benchmark("memory", run_dir=run_dir, as_json=as_json, sizes=sizes, device=device, budget=budget)
