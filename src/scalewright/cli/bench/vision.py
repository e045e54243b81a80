"""`scalewright bench vision`: train a residual network on images, predicted and measured."""

from __future__ import annotations

from typing import Annotated

import typer

from scalewright.cli.bench.options import (
    BudgetText,
    EveryText,
    ImageSize,
    KeepNumber,
    KeepTrace,
    SavingText,
    SystemName,
)
from scalewright.cli.bench.start import run_benchmark
from scalewright.cli.options import AsJson, CatalogFolder, DeviceName, RunFolder

BatchNumber = Annotated[int | None, typer.Option(help="Images a rank; default: EPICURE's for the GPU's memory.")]
EpochNumber = Annotated[int, typer.Option(help="0: one, or EPICURE's five.")]
StepNumber = Annotated[int, typer.Option(help="Of an epoch; 0: all its images, or 50 of synthetic ones.")]
PrecisionText = Annotated[str, typer.Option(help="fp32, tf32, or AMP: bf16, fp16; auto: bf16 on GPUs, fp32 on CPUs.")]
CompileText = Annotated[
    str, typer.Option("--compile", help="off, default, max-autotune, graphs; auto: the fastest known.")
]
ProtocolText = Annotated[
    str, typer.Option(help="Which steps count: steady (MSER-5), or epicure (the fourth of five epochs).")
]
DataText = Annotated[
    str, typer.Option(help="synthetic; made[:lmdb|shards|folder], JPEGs made here; or a data set's folder.")
]
CopyTo = Annotated[str, typer.Option(metavar="ram|DIR", help="Copy the data set to RAM or a local disk first.")]
WorkerNumber = Annotated[int | None, typer.Option(help="Decoding processes a rank; default: its share of the cores.")]


def run(
    model: Annotated[str, typer.Option(help="Catalogue name of a residual network.")] = "resnet-50",
    ranks: Annotated[int | None, typer.Option(help="Processes; default: one per GPU.")] = None,
    batch: BatchNumber = None,
    size: ImageSize = 0,
    epochs: EpochNumber = 0,
    steps: StepNumber = 0,
    precision: PrecisionText = "auto",
    compile_mode: CompileText = "auto",
    channels: Annotated[str, typer.Option(help="last, first; auto: last, except for fp32 on GPUs.")] = "auto",
    protocol: ProtocolText = "steady",
    data: DataText = "synthetic",
    images: Annotated[int, typer.Option(help="Training images that are made.")] = 2000,
    passes: Annotated[int, typer.Option(help="Times an epoch reads each image; EPICURE: 13, TinyImageNet.")] = 1,
    copy_to: CopyTo = "",
    workers: WorkerNumber = None,
    label_smoothing: Annotated[float, typer.Option(help="Share of the target spread over all classes.")] = 0.0,
    checkpoint: SavingText = "async",
    checkpoint_every: EveryText = "0",
    keep: KeepNumber = 2,
    seed: Annotated[int, typer.Option(help="Of weights, order, crops and made images.")] = 0,
    device: DeviceName = "auto",
    system: SystemName = None,
    run_dir: RunFolder = None,
    budget: BudgetText = "10 min",
    profile: KeepTrace = False,
    as_json: AsJson = False,
    catalog: CatalogFolder = None,
) -> None:
    """Train a residual network on images. Exit 1: over the budget or too large; 75: stopped, run it again."""
    run_benchmark(
        "vision", run_dir=run_dir, as_json=as_json, catalog=catalog,
        model=model, ranks=ranks, batch=batch, image_size=size, epochs=epochs, steps=steps, precision=precision,
        compile=compile_mode, channels=channels, protocol=protocol, data=data, num_images=images, passes=passes,
        copy_to=copy_to, workers=workers, label_smoothing=label_smoothing, checkpoint=checkpoint,
        checkpoint_every=checkpoint_every, keep=keep, seed=seed, device=device, this_system=system, budget=budget,
        profile=profile,
    )  # fmt: skip
