"""`scalewright bench attention`: scaled-dot-product attention by kernel, length and head size."""

from __future__ import annotations

from typing import Annotated

import typer

from scalewright.cli.bench.options import MeasuringTime
from scalewright.cli.bench.start import run_benchmark
from scalewright.cli.options import AsJson, CatalogFolder, DeviceName, RunFolder

PrecisionText = Annotated[str, typer.Option(help="Some of fp32,fp16,bf16; auto: bf16 on GPUs, fp32 on CPUs.")]
SeqText = Annotated[str | None, typer.Option(metavar="N,...", help="Sequence lengths.")]
ModelText = Annotated[str | None, typer.Option(help="Model whose heads are measured, instead of the next three.")]


def run(
    seq: SeqText = None,
    precision: PrecisionText = "auto",
    model: ModelText = None,
    heads: Annotated[int, typer.Option(help="0: 32 on GPUs, 8 on CPUs.")] = 0,
    kv_heads: Annotated[int, typer.Option(help="Fewer than the heads: grouped queries. 0: as many.")] = 0,
    head_dim: Annotated[str, typer.Option(metavar="N,...", help="Sizes of a head.")] = "64,128",
    batch: Annotated[int, typer.Option(help="0: as many as make 16,384 tokens (1,024 on CPUs).")] = 0,
    full: Annotated[bool, typer.Option("--full", help="Without the causal mask.")] = False,
    device: DeviceName = "auto",
    budget: MeasuringTime = "30 s",
    run_dir: RunFolder = None,
    as_json: AsJson = False,
    catalog: CatalogFolder = None,
) -> None:
    """Time attention forward and backward with every kernel the device has. Exit 3: throttled twice."""
    run_benchmark(
        "attention", run_dir=run_dir, as_json=as_json, catalog=catalog,
        seq=seq, precision=precision, model=model, heads=heads, kv_heads=kv_heads, head_dim=head_dim, batch=batch,
        full=full, device=device, budget=budget,
    )  # fmt: skip
