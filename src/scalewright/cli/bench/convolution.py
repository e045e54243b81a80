"""`scalewright bench convolution`: the operators of a residual network's training step, one by one."""

from __future__ import annotations

from typing import Annotated

import typer

from scalewright.cli.bench.options import ImageSize, MeasuringTime
from scalewright.cli.bench.start import run_benchmark
from scalewright.cli.options import AsJson, CatalogFolder, DeviceName, RunFolder

PrecisionText = Annotated[str, typer.Option(help="Some of fp32,tf32,fp16,bf16; auto: bf16,fp32 on GPUs, fp32 on CPUs.")]


def run(
    model: Annotated[str, typer.Option(help="Residual network whose operators are measured.")] = "resnet-50",
    precision: PrecisionText = "auto",
    layout: Annotated[str, typer.Option(help="Where channels lie in memory: last, first, or both.")] = "last",
    batch: Annotated[int, typer.Option(help="Images of a call; 0: 128 on GPUs, 8 on CPUs.")] = 0,
    size: ImageSize = 0,
    device: DeviceName = "auto",
    budget: MeasuringTime = "60 s",
    run_dir: RunFolder = None,
    as_json: AsJson = False,
    catalog: CatalogFolder = None,
) -> None:
    """Time a network's convolutions, norms and activations, forward and backward. Exit 3: throttled twice."""
    run_benchmark(
        "convolution", run_dir=run_dir, as_json=as_json, catalog=catalog,
        model=model, precision=precision, layout=layout, batch=batch, size=size, device=device, budget=budget,
    )  # fmt: skip
