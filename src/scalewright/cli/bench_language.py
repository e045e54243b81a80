"""`scalewright bench language`: train a language model for some steps, predicted and measured."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scalewright.cli.bench_start import DeviceName, RunFolder, command_again, refuse_unfinished, stopping
from scalewright.cli.options import AsJson, CatalogFolder

if TYPE_CHECKING:
    from scalewright.catalog.library import Catalog
    from scalewright.launch.language import Chosen, Ready, Wanted
    from scalewright.records.run_directory import RunDirectory

ModelName = Annotated[str | None, typer.Option(help="Catalogue name, config.json, or layers=..,hidden=..,heads=..")]
PrecisionText = Annotated[str, typer.Option(help="fp32, tf32, fp16, bf16, fp8; auto: bf16 on GPUs, fp32 on CPUs.")]
ScalingText = Annotated[str, typer.Option(help="weak or strong sets the batch as EPICURE does; given keeps it.")]
CompileText = Annotated[
    str, typer.Option("--compile", help="off, default, max-autotune, graphs; auto: graphs on one GPU, else off.")
]
ProtocolText = Annotated[
    str, typer.Option(help="Which steps count: steady (MSER-5), or epicure (from 10 even steps on).")
]
EveryText = Annotated[str, typer.Option(help="Steps; 0: only when stopped; auto: from the failure model.")]
StartFolder = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Checkpoint of another run of this model, under any layout.")
]
PlanFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Model, layout and precision of a stored plan, instead.")
]
SystemName = Annotated[str | None, typer.Option(help="Catalogue name of this machine; default: GPU name or a probe.")]


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
    checkpoint: Annotated[str, typer.Option(help="async: train on while it is written; sync: wait.")] = "async",
    checkpoint_every: EveryText = "0",
    keep: Annotated[int, typer.Option(help="Newest whole checkpoints that are kept.")] = 2,
    start_from: StartFolder = None,
    seed: Annotated[int, typer.Option(help="Of weights and synthetic data.")] = 0,
    data: Annotated[str, typer.Option(help="synthetic, or a .npy file of token ids.")] = "synthetic",
    device: DeviceName = "auto",
    system: SystemName = None,
    run_dir: RunFolder = None,
    budget: Annotated[str, typer.Option(help="Longest time it may take, as predicted.")] = "10 min",
    profile: Annotated[bool, typer.Option("--profile", help="Keep a Kineto trace of the profiled steps.")] = False,
    as_json: AsJson = False,
    catalog: CatalogFolder = None,
) -> None:
    """Train a language model for some steps. Exit 1: over the budget or too large; 75: stopped, run it again."""
    from scalewright import units
    from scalewright.catalog.library import open_catalog
    from scalewright.launch.language import Wanted, settle, settle_data, settle_save_mode, settle_start
    from scalewright.records.run_directory import RunDirectory, new_run_id
    from scalewright.study.execute import Execution

    budget_s = units.parse(budget, units.SECONDS)
    library = open_catalog(catalog)
    chosen = _chosen(library, model, plan, layout, precision)
    wanted = Wanted(
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
            "checkpoint_async": settle_save_mode(checkpoint),
            "checkpoint_keep": keep,
            "start_from": settle_start(start_from, steps=steps),
            "data": settle_data(data),
            "keep_trace": profile,
        },
    )
    path = run_dir or Path("runs") / new_run_id(f"language-{wanted.spec.id}")
    directory = RunDirectory(path)
    config, _ = settle(wanted, directory)
    if Execution(kind="language", config=config.document(), path=path).is_finished:
        typer.echo(f"{path} is finished: nothing to run", err=True)
    else:
        ready = _prepared(library, wanted, directory, system, budget_s)
        refuse_unfinished(directory, _run(directory, ready, chosen))
    _answer(directory, as_json=as_json)


def _chosen(library: Catalog, model: str | None, plan: Path | None, layout: str | None, precision: str) -> Chosen:
    """What to train and how it is split: as the options say, or as a plan does."""
    from scalewright.errors import ConfigError
    from scalewright.launch.language import Chosen, chosen_by_plan
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


def _prepared(library: Catalog, wanted: Wanted, directory: RunDirectory, system: str | None, budget_s: float) -> Ready:
    """The run made ready; over the budget or the memory, say what would fit and end with 1."""
    from scalewright import units
    from scalewright.launch.language import OverBudgetError, prepare
    from scalewright.launch.local import pick_port
    from scalewright.records.types import ExitCode

    pick_port(os.environ)  # a port that is taken is refused before a second is spent on measuring
    try:
        ready = prepare(library, wanted, directory, system=system, budget_s=budget_s)
    except OverBudgetError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(ExitCode.NO) from error
    if ready.ahead is None or ready.here is None:
        typer.echo(ready.note, err=True)
        return ready
    duration, step = (units.format(s, units.SECONDS) for s in (ready.ahead.duration_s, ready.ahead.step_s))
    split = "" if wanted.layout else f", layout {ready.config.layout.brief}"
    typer.echo(f"predicted {duration}: {ready.config.steps} steps of {step} ({ready.here.basis}){split}", err=True)
    return ready


def _run(directory: RunDirectory, ready: Ready, chosen: Chosen) -> int:
    from scalewright.report.progress import RunProgress
    from scalewright.study.execute import Execution, Watch, execute

    here, ahead = ready.here, ready.ahead
    point = Execution(
        kind="language",
        config=ready.config.document(),
        path=directory.path,
        num_ranks=ready.num_ranks,
        plan_id=chosen.plan_id,
        plan=chosen.plan,
        machine=None if here is None else here.as_document(ready.config.precision),
        prediction=None if ahead is None else ahead.prediction.as_document(),
        script=command_again(directory.path),
    )
    with RunProgress(ready.config.steps) as progress:
        return execute(point, Watch(on_events=progress.see, on_signal=lambda number: progress.say(stopping(number))))


def _answer(directory: RunDirectory, *, as_json: bool) -> None:
    from scalewright.observe.collect import collect
    from scalewright.observe.summary import summarize
    from scalewright.records.documents import to_json
    from scalewright.report.console import answer_console
    from scalewright.report.run import print_run

    found = collect(directory)
    summary = summarize(found)
    if as_json:
        typer.echo(to_json(summary.as_document()), nl=False)
        return
    typer.echo(f"run directory {directory.path}", err=True)
    print_run(answer_console(), found, summary)
