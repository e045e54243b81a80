"""`scalewright bench engine X`: a few steps of another training program, predicted and measured."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.bench.options import BudgetText, KeepTrace, SystemName
from scalewright.cli.bench.start import run_benchmark
from scalewright.cli.options import AsJson, CatalogFolder, DeviceName, RunFolder

EngineName = Annotated[
    str, typer.Argument(metavar="ENGINE", help="torchtitan, deepspeed, huggingface, trl, ...", show_default=False)
]
ModelName = Annotated[
    str, typer.Option(help="Catalogue name, config.json, or layers=..,hidden=..,heads=..", show_default=False)
]
LayoutText = Annotated[str, typer.Option(help="tp=2,dp=2,mbs=1,gbs=16,zero=1,...", show_default=False)]
PythonPath = Annotated[
    Path | None, typer.Option(metavar="PATH", help="Interpreter that has the engine; default: this one.")
]
LoadFolder = Annotated[Path | None, typer.Option(metavar="DIR", help="Hugging Face folder of weights to start from.")]
EngineFolder = Annotated[Path | None, typer.Option(metavar="DIR", help="Checkout of an engine that is no package.")]
SetText = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A key of the engine's own.")]
ExtraWords = Annotated[list[str] | None, typer.Argument(metavar="[-- WORDS]", help="For the engine's command line.")]


def run(
    engine: EngineName,
    model: ModelName,
    layout: LayoutText,
    extra: ExtraWords = None,
    steps: Annotated[int, typer.Option(help="Optimizer steps.")] = 20,
    seq: Annotated[int, typer.Option(help="Tokens per sample; 0: the model's own.")] = 0,
    precision: Annotated[str, typer.Option(help="fp32 or bf16; auto: bf16 on GPUs, fp32 on CPUs.")] = "auto",
    task: Annotated[str | None, typer.Option(help="pretrain, sft or grpo; default: the engine's first.")] = None,
    data: Annotated[str, typer.Option(help="synthetic, or tokens: .npy, or Megatron's .bin.")] = "synthetic",
    load: LoadFolder = None,
    tokenizer: Annotated[Path | None, typer.Option(metavar="DIR", help="Hugging Face folder of a tokenizer.")] = None,
    engine_dir: EngineFolder = None,
    seed: Annotated[int, typer.Option(help="Of weights and synthetic data.")] = 0,
    settings: SetText = None,
    profile: KeepTrace = False,
    python: PythonPath = None,
    force: Annotated[bool, typer.Option("--force", help="Go on with a release that was not tested.")] = False,
    device: DeviceName = "auto",
    system: SystemName = None,
    run_dir: RunFolder = None,
    budget: BudgetText = "10 min",
    as_json: AsJson = False,
    catalog: CatalogFolder = None,
) -> None:
    """Train with another program for some steps. Exit 2: it cannot run this; 3: not installed, or it failed."""
    run_benchmark(
        "engine", run_dir=run_dir, as_json=as_json, catalog=catalog, command=f"bench engine {engine}",
        engine=engine, model=model, layout=layout, steps=steps, seq=seq, precision=precision, task=task, data=data,
        load=_text(load), tokenizer=_text(tokenizer), engine_dir=_text(engine_dir), seed=seed,
        set=shlex.join(settings or []) or None, python=_text(python), profile=profile, force=force, device=device,
        this_system=system, budget=budget, extra=shlex.join(extra or []) or None,
    )  # fmt: skip


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
