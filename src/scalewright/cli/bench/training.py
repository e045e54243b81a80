"""What the benchmarks that train share: the prediction told first, the run started, and the run printed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from scalewright.cli.bench.start import command_again, refuse_unfinished, stopping

if TYPE_CHECKING:
    from scalewright.launch.prepare.outlook import Ready
    from scalewright.records.run_directory import RunDirectory

SystemName = Annotated[
    str | None, typer.Option(help="Name of this machine, or here; default: calibration, GPU or a probe.")
]
BudgetText = Annotated[str, typer.Option(help="Longest time it may take, as predicted.")]
EveryText = Annotated[str, typer.Option(help="Steps; 0: only when stopped; auto: from the failure model.")]
SavingText = Annotated[str, typer.Option(help="async: train on while it is written; sync: wait.")]
KeepNumber = Annotated[int, typer.Option(help="Newest whole checkpoints that are kept.")]
KeepTrace = Annotated[bool, typer.Option("--profile", help="Keep a Kineto trace of the profiled steps.")]

R = TypeVar("R", bound="Ready[Any]")


def told_ahead(prepare: Callable[[], R], *, more: Callable[[R], str] = lambda _: "") -> R:
    """The run made ready, its length told; over the budget or the memory, say what would fit and end with 1."""
    from scalewright import units
    from scalewright.launch.prepare.outlook import OverBudgetError
    from scalewright.launch.ranks.local import pick_port
    from scalewright.records.types import ExitCode

    pick_port(os.environ)  # a port that is taken is refused before a second is spent on measuring
    try:
        ready = prepare()
    except OverBudgetError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(ExitCode.NO) from error
    if ready.ahead is None or ready.here is None:
        typer.echo(ready.note, err=True)
        return ready
    duration, step = (units.format(s, units.SECONDS) for s in (ready.ahead.duration_s, ready.ahead.step_s))
    what = f"{ready.config.steps} steps of {step} ({ready.here.basis}){more(ready)}"
    typer.echo(f"predicted {duration}: {what}", err=True)
    return ready


def run_ready(
    kind: str, path: Path, ready: Ready[Any], *, plan_id: str = "", plan: dict[str, Any] | None = None
) -> None:
    """Run it, or resume it; why it did not finish is told in one sentence."""
    from scalewright.report.run.progress import RunProgress
    from scalewright.study.execute import Execution, Watch, execute

    here, ahead = ready.here, ready.ahead
    point = Execution(
        kind=kind,
        config=ready.config.document(),
        path=path,
        num_ranks=ready.num_ranks,
        plan_id=plan_id,
        plan=plan,
        machine=None if here is None else here.as_document(ready.config.precision),
        prediction=None if ahead is None else ahead.prediction.document(),
        script=command_again(path),
    )
    with RunProgress(ready.config.steps) as progress:
        told = Watch(on_events=progress.see, on_signal=lambda number: progress.say(stopping(number)))
        code = execute(point, told)
    refuse_unfinished(point.directory, code)


def answer(directory: RunDirectory, *, as_json: bool) -> None:
    """Print what the run came to."""
    from scalewright.observe.collect import collect
    from scalewright.observe.summary import summarize
    from scalewright.records.documents import to_json
    from scalewright.report.console import answer_console
    from scalewright.report.run.summary import print_run

    found = collect(directory)
    summary = summarize(found)
    if as_json:
        typer.echo(to_json(summary.as_document()), nl=False)
        return
    typer.echo(f"run directory {directory.path}", err=True)
    print_run(answer_console(), found, summary)
