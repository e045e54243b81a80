"""`scalewright bench gemm`: matrix products by shape and precision, and the best rate that any shape reaches."""

from __future__ import annotations

from typing import Annotated

import typer

from scalewright.cli.bench.options import MeasuringTime
from scalewright.cli.bench.start import run_benchmark
from scalewright.cli.options import AsJson, CatalogFolder, DeviceName, RunFolder

PrecisionText = Annotated[
    str, typer.Option(help="Some of fp32,tf32,fp16,bf16,fp8; auto: those the device has (fp32,bf16 on CPUs).")
]
ShapesText = Annotated[str | None, typer.Option(metavar="M,N,K;...", help="Products to measure.")]
SweepText = Annotated[str | None, typer.Option(help="square, or a model whose products are measured.")]


def run(
    precision: PrecisionText = "auto",
    shapes: ShapesText = None,
    sweep: SweepText = None,
    tokens: Annotated[int, typer.Option(help="Tokens of a model's micro-batch; 0: one of its sequences.")] = 0,
    best: Annotated[bool, typer.Option("--best", help="Search for the best rate; default without shapes.")] = False,
    device: DeviceName = "auto",
    budget: MeasuringTime = "60 s",
    run_dir: RunFolder = None,
    as_json: AsJson = False,
    catalog: CatalogFolder = None,
) -> None:
    """Time matrix products; find the shape with the best rate and what of it is sustained. Exit 3: throttled twice."""
    run_benchmark(
        "gemm", run_dir=run_dir, as_json=as_json, catalog=catalog,
        precision=precision, shapes=shapes, sweep=sweep, tokens=tokens, best=best, device=device, budget=budget,
    )  # fmt: skip
