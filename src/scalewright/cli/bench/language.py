"""`scalewright bench language`: train a language model for some steps, predicted and measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.bench.options import BudgetText, EveryText, KeepNumber, KeepTrace, SavingText, SystemName
from scalewright.cli.bench.start import run_benchmark
from scalewright.cli.options import AsJson, CatalogFolder, DeviceName, RunFolder

ModelName = Annotated[str | None, typer.Option(help="Catalogue name, config.json, or layers=..,hidden=..,heads=..")]
PrecisionText = Annotated[str, typer.Option(help="fp32, tf32, fp16, bf16, fp8; auto: bf16 on GPUs, fp32 on CPUs.")]
ScalingText = Annotated[str, typer.Option(help="weak or strong sets the batch as EPICURE does; given keeps it.")]
CompileText = Annotated[
    str, typer.Option("--compile", help="off, default, max-autotune, graphs; auto: graphs on one GPU, else off.")
]
ProtocolText = Annotated[
    str, typer.Option(help="Which steps count: steady (MSER-5), or epicure (from 10 even steps on).")
]
StartFolder = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Checkpoint of this model under any layout, or a Hugging Face folder."),
]
PlanFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Model, layout and precision of a stored plan, instead.")
]
TokenSets = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATH[:WEIGHT]",
        help="Tokens: .npy, Megatron .bin, Parquet, or a folder; repeat to mix by weight; default: synthetic.",
    ),
]


def run(
    model: ModelName = None,
    plan: PlanFile = None,
    ranks: Annotated[int | None, typer.Option(help="Processes; default: the layout's, or one per GPU.")] = None,
    layout: Annotated[str | None, typer.Option(help="tp=2,pp=2,dp=2,mbs=1,gbs=16,...; default: dp alone.")] = None,
    steps: Annotated[int, typer.Option(help="Optimizer steps.")] = 50,
    seq: Annotated[int, typer.Option(help="Tokens per sample; 0: the model's own.")] = 0,
    precision: PrecisionText = "auto",
    compile_mode: CompileText = "auto",
    scaling: ScalingText = "given",
    protocol: ProtocolText = "steady",
    checkpoint: SavingText = "async",
    checkpoint_every: EveryText = "0",
    keep: KeepNumber = 2,
    start_from: StartFolder = None,
    seed: Annotated[int, typer.Option(help="Of weights and synthetic data.")] = 0,
    data: TokenSets = None,
    device: DeviceName = "auto",
    system: SystemName = None,
    run_dir: RunFolder = None,
    budget: BudgetText = "10 min",
    profile: KeepTrace = False,
    as_json: AsJson = False,
    catalog: CatalogFolder = None,
) -> None:
    """Train a language model for some steps. Exit 1: over the budget or too large; 75: stopped, run it again."""
    run_benchmark(
        "language", run_dir=run_dir, as_json=as_json, catalog=catalog,
        model=model, plan=_text(plan), ranks=ranks, layout=layout, steps=steps, seq=seq, precision=precision,
        compile=compile_mode, scaling=scaling, protocol=protocol, checkpoint=checkpoint,
        checkpoint_every=checkpoint_every, keep=keep, start_from=_text(start_from), seed=seed,
        data=",".join(data or ["synthetic"]), device=device, this_system=system, budget=budget, profile=profile,
    )  # fmt: skip


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
