"""`scalewright bench`: run a benchmark here, with the prediction beside the measurement."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scalewright.cli.options import AsJson, CatalogFolder

if TYPE_CHECKING:
    from scalewright.catalog.library import Catalog
    from scalewright.launch.here import Here
    from scalewright.launch.outlook import Outlook
    from scalewright.records.run_directory import RunDirectory
    from scalewright.workload.language_run import LanguageRun
    from scalewright.workload.layout import Layout
    from scalewright.workload.model import ModelSpec

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Run a benchmark, predicted and measured.")

DEFAULT_MICRO_BATCH = 4
INTERRUPTED = 130


@app.callback()
def _root() -> None:
    """Run a benchmark here: a run directory with metrics, and the prediction beside the measurement."""


@app.command("language")
def language(
    model: Annotated[str, typer.Option(help="Catalogue name, config.json, or layers=..,hidden=..,heads=..")],
    ranks: Annotated[int | None, typer.Option(help="Processes; default: the layout's, or one per GPU.")] = None,
    layout: Annotated[str | None, typer.Option(help="tp=2,pp=2,dp=2,mbs=1,gbs=16,...; default: dp alone.")] = None,
    steps: Annotated[int, typer.Option(help="Optimizer steps.")] = 50,
    seq: Annotated[int, typer.Option(help="Tokens per sample; 0: the model's own.")] = 0,
    precision: Annotated[
        str, typer.Option(help="fp32, tf32, fp16, bf16, fp8; auto: bf16 on GPUs, fp32 on CPUs.")
    ] = "auto",
    scaling: Annotated[
        str, typer.Option(help="weak or strong sets the batch as EPICURE does; given keeps it.")
    ] = "given",
    checkpoint_every: Annotated[
        str, typer.Option(help="Steps; 0: only when stopped; auto: from the failure model.")
    ] = "0",
    data: Annotated[str, typer.Option(help="synthetic, or a .npy file of token ids.")] = "synthetic",
    device: Annotated[str, typer.Option(help="cpu, cuda (also AMD), or auto.")] = "auto",
    system: Annotated[
        str | None, typer.Option(help="Catalogue name of this machine; default: GPU name or a probe.")
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Default: runs/TIME-NAME. The same one resumes.")
    ] = None,
    budget: Annotated[str, typer.Option(help="Longest time it may take, as predicted.")] = "10 min",
    profile: Annotated[bool, typer.Option("--profile", help="Keep a Kineto trace of the profiled steps.")] = False,
    as_json: AsJson = False,
    catalog: CatalogFolder = None,
) -> None:
    """Train a language model for some steps. Exit 1: over the budget or too large; 75: stopped, run it again."""
    from scalewright import units
    from scalewright.catalog.library import open_catalog
    from scalewright.cli.predict import resolve_model
    from scalewright.launch.here import device_here
    from scalewright.launch.local import pick_port
    from scalewright.records.documents import write_document
    from scalewright.records.run_directory import RunDirectory, new_run_id
    from scalewright.workload.language_run import resolve

    budget_s = units.parse(budget, units.SECONDS)
    library = open_catalog(catalog)
    spec = resolve_model(library, model)
    split, num_ranks = settle_ranks(ranks, layout)
    found_device = device_here(device, num_ranks=num_ranks // _num_nodes())
    options: dict[str, Any] = {
        "steps": steps,
        "precision": ("bf16" if found_device == "cuda" else "fp32") if precision == "auto" else precision,
        "checkpoint_every": int(checkpoint_every) if checkpoint_every.isdigit() else checkpoint_every,
        "data": settle_data(data),
        "device": found_device,
        "keep_trace": profile,
    }

    def make(chosen: ModelSpec) -> LanguageRun:
        return resolve(chosen, split, seq_len=seq, scaling=scaling, **options)

    config = make(spec)
    directory = RunDirectory(run_dir or Path("runs") / new_run_id(f"language-{spec.id}-{num_ranks}"))
    if directory.holds(config.document()) and _is_finished(directory):
        typer.echo(f"{directory.path} is finished: nothing to run", err=True)
        _answer(directory, as_json=as_json)
        return
    pick_port(os.environ)
    here = _machine(library, system, config, num_ranks)
    ahead = None if here is None else _look_ahead(library, config, here, make, budget_s)
    RunDirectory.create_or_resume(directory.path, config.document())
    with directory.held():
        if here is not None and not directory.machine.exists():
            write_document(directory.machine, here.as_document(config.precision))
        code = _run(directory, config, ahead, num_ranks)
    _finish(directory, code, as_json=as_json)


def settle_ranks(ranks: int | None, layout: str | None) -> tuple[Layout, int]:
    """The layout and how many processes it takes; either follows from the other, and both must agree."""
    from scalewright.errors import ConfigError
    from scalewright.launch.allocation import default_num_ranks, is_inside
    from scalewright.workload.layout import parse_layout

    if ranks is not None and ranks < 1:
        raise ConfigError(f"--ranks {ranks} must be 1 or more")
    if layout is None:
        count = ranks or (default_num_ranks(os.environ) if is_inside(os.environ) else 1)
        return parse_layout(f"dp={count},mbs={DEFAULT_MICRO_BATCH}"), count
    split = parse_layout(layout)
    needed = int(split.num_gpus)
    if ranks is not None and ranks != needed:
        raise ConfigError(
            f"--ranks {ranks} does not match layout {split.brief}, whose tp x pp x cp x dp is {needed}: "
            f"use --ranks {needed}, or another layout"
        )
    return split, needed


def settle_data(data: str) -> str:
    """The data set by its full path, so that the same one resumes from any folder."""
    from scalewright.errors import ConfigError
    from scalewright.workload.language_run import SYNTHETIC

    if data == SYNTHETIC:
        return data
    if not Path(data).is_file():
        raise ConfigError(f"--data {data!r}: no such file: give a .npy file of token ids, or leave it out")
    return str(Path(data).resolve())


def _num_nodes() -> int:
    from scalewright.launch.allocation import is_inside

    text = os.environ.get("SLURM_JOB_NUM_NODES", "1")
    return int(text) if is_inside(os.environ) and text.isdigit() and int(text) > 0 else 1


def _is_finished(directory: RunDirectory) -> bool:
    info = directory.read_exit_info()
    return info is not None and info.finished


def _machine(library: Catalog, system: str | None, config: LanguageRun, num_ranks: int) -> Here | None:
    """The machine to predict for; None where nobody can say without a name: several nodes, and no --system."""
    from scalewright.costs.machine import machine_from_system
    from scalewright.launch.here import GPU_START_S, Here, machine_here

    if system is not None:
        machine = machine_from_system(library, system)
        return Here(machine=machine, device=config.device, start_s=GPU_START_S, basis=f"system {system}")
    if _num_nodes() > 1:
        typer.echo("no prediction: name this machine with --system to have one", err=True)
        return None
    return machine_here(library, num_ranks=num_ranks, precision=config.precision, device=config.device)


def _look_ahead(
    library: Catalog,
    config: LanguageRun,
    here: Here,
    make: Callable[[ModelSpec], LanguageRun],
    budget_s: float,
) -> Outlook | None:
    """Predict before anything starts; over the budget or the memory, say what would fit and end with 1."""
    from scalewright import units
    from scalewright.errors import NotExpressedError
    from scalewright.launch.outlook import largest_that_fits, outlook
    from scalewright.records.types import ExitCode

    try:
        ahead = outlook(library, config, here.machine, start_s=here.start_s)
    except NotExpressedError as error:
        typer.echo(f"no prediction: {error}", err=True)
        return None
    duration, limit = (units.format(value, units.SECONDS) for value in (ahead.duration_s, budget_s))
    if ahead.fits_memory and ahead.duration_s <= budget_s:
        step = units.format(ahead.step_s, units.SECONDS)
        typer.echo(f"predicted {duration}: {config.steps} steps of {step} ({here.basis})", err=True)
        return ahead
    best = largest_that_fits(library, here.machine, remake=make, start_s=here.start_s, budget_s=budget_s)
    why = f"would take {duration}, over the budget of {limit}" if ahead.fits_memory else "does not fit in memory"
    hint = (
        "no preset fits: use fewer --steps or a larger --budget"
        if best is None
        else f"the largest preset that fits is {best[0]} ({units.format(best[1], units.SECONDS)})"
    )
    typer.echo(f"{config.model_id} {why} ({here.basis}): {hint}", err=True)
    raise typer.Exit(ExitCode.NO)


def _run(directory: RunDirectory, config: LanguageRun, ahead: Outlook | None, num_ranks: int) -> int:
    from scalewright.launch.allocation import is_inside, run_in_allocation
    from scalewright.launch.here import num_cores
    from scalewright.launch.local import run_ranks
    from scalewright.observe.rollup import write_rollup
    from scalewright.records.documents import write_document, write_text
    from scalewright.report.progress import RunProgress

    if ahead is not None and not directory.prediction.exists():
        write_document(directory.prediction, ahead.prediction.as_document())
    if not directory.script.exists():
        write_text(directory.script, _script(directory))
    with RunProgress(config.steps) as progress:
        if is_inside(os.environ):
            code = run_in_allocation(
                os.environ, directory, kind="language", num_ranks=num_ranks, on_events=progress.see
            )
        else:
            code = run_ranks(
                directory,
                kind="language",
                num_ranks=num_ranks,
                num_cores=num_cores(),
                on_events=progress.see,
                on_signal=lambda number: progress.say(f"{signal.Signals(number).name}: stopping after this step"),
            )
    write_rollup(directory)
    return code


def _script(directory: RunDirectory) -> str:
    """The command that makes this run again, or resumes it."""
    words = sys.argv[1:]
    given = any(word == "--run-dir" or word.startswith("--run-dir=") for word in words)
    command = ["scalewright", *words, *([] if given else ["--run-dir", str(directory.path)])]
    return f"#!/bin/sh\ncd {shlex.quote(str(Path.cwd()))} || exit 2\nexec {shlex.join(command)}\n"


def _finish(directory: RunDirectory, code: int, *, as_json: bool) -> None:
    """The run's answer, or in one sentence why there is none."""
    from scalewright.errors import ConfigError, EnvironmentFailedError
    from scalewright.records.types import ExitCode

    if code == ExitCode.YES:
        _answer(directory, as_json=as_json)
        return
    info = directory.read_exit_info()
    reason = "the run left no reason: see logs/" if info is None else info.reason
    if code == ExitCode.BAD_INPUT:
        raise ConfigError(reason)
    if code in (ExitCode.NO, ExitCode.REQUEUE, INTERRUPTED):
        kept = f" (last checkpoint: {info.last_checkpoint or 'none'})" if info is not None else ""
        typer.echo(f"{directory.path}: {reason}{kept}", err=True)
        raise typer.Exit(code)
    raise EnvironmentFailedError(f"{directory.path}: {reason}")


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
