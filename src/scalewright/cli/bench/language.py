"""`scalewright bench language`: train a language model for some steps, predicted and measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scalewright.cli.bench.start import DeviceName, RunFolder
from scalewright.cli.bench.training import (
    BudgetText,
    EveryText,
    KeepNumber,
    KeepTrace,
    SavingText,
    SystemName,
    answer,
    run_ready,
    told_ahead,
)
from scalewright.cli.options import AsJson, CatalogFolder

if TYPE_CHECKING:
    from scalewright.catalog.library import Catalog
    from scalewright.launch.prepare.language_setup import Chosen
    from scalewright.launch.prepare.outlook import Ready
    from scalewright.workload.language_run import LanguageRun

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
    Path | None, typer.Option(metavar="DIR", help="Checkpoint of another run of this model, under any layout.")
]
PlanFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Model, layout and precision of a stored plan, instead.")
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
    data: Annotated[str, typer.Option(help="synthetic, or a .npy file of token ids.")] = "synthetic",
    device: DeviceName = "auto",
    system: SystemName = None,
    run_dir: RunFolder = None,
    budget: BudgetText = "10 min",
    profile: KeepTrace = False,
    as_json: AsJson = False,
    catalog: CatalogFolder = None,
) -> None:
    """Train a language model for some steps. Exit 1: over the budget or too large; 75: stopped, run it again."""
    from scalewright import units
    from scalewright.catalog.library import open_catalog
    from scalewright.launch.prepare import language_setup as setup
    from scalewright.records.run_directory import RunDirectory, new_run_id
    from scalewright.study.execute import Execution

    budget_s = units.parse(budget, units.SECONDS)
    library = open_catalog(catalog)
    chosen = _chosen(library, model, plan, layout, precision)
    wanted = setup.Wanted(
        spec=chosen.spec,
        ranks=ranks,
        layout=chosen.layout,
        device=device,
        precision=chosen.precision,
        seq_len=seq,
        scaling=scaling,
        compile=compile_mode,
        options={
            "steps": steps,
            "seed": seed,
            "protocol": protocol,
            "checkpoint_every": int(checkpoint_every) if checkpoint_every.isdigit() else checkpoint_every,
            "checkpoint_async": setup.settle_save_mode(checkpoint),
            "checkpoint_keep": keep,
            "start_from": setup.settle_start(start_from, steps=steps),
            "data": setup.settle_data(data),
            "keep_trace": profile,
        },
    )
    path = run_dir or Path("runs") / new_run_id(f"language-{wanted.spec.id}")
    directory = RunDirectory(path)
    config, _ = setup.settle(wanted, directory)
    if Execution(kind="language", config=config.document(), path=path).is_finished:
        typer.echo(f"{path} is finished: nothing to run", err=True)
    else:
        ready = told_ahead(
            lambda: setup.prepare(library, wanted, directory, system=system, budget_s=budget_s),
            more=lambda found: "" if wanted.layout else _chosen_split(found),
        )
        run_ready("language", path, ready, plan_id=chosen.plan_id, plan=chosen.plan)
    answer(directory, as_json=as_json)


def _chosen(library: Catalog, model: str | None, plan: Path | None, layout: str | None, precision: str) -> Chosen:
    """What to train and how it is split: as the options say, or as a plan does."""
    from scalewright.errors import ConfigError
    from scalewright.launch.prepare.language_setup import Chosen, chosen_by_plan
    from scalewright.workload.named import resolve_model

    if plan is None:
        if model is None:
            raise ConfigError("what is trained? give --model, or a stored plan with --plan")
        return Chosen(spec=resolve_model(library, model), layout=layout, precision=precision)
    given = {"--model": model is not None, "--layout": layout is not None, "--precision": precision != "auto"}
    twice = [name for name, is_given in given.items() if is_given]
    if twice:
        raise ConfigError(f"{twice[0]} and --plan both say it: leave out one")
    return chosen_by_plan(plan)


def _chosen_split(ready: Ready[LanguageRun]) -> str:
    return f", layout {ready.config.layout.brief}"
