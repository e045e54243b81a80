"""What all benchmarks share: run one point, say in one sentence why it did not finish, and print the result."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from scalewright.study.execution import Execution
    from scalewright.study.expressions import Value


def run_benchmark(
    kind: str, *, run_dir: Path | None, as_json: bool, catalog: Path | None = None, command: str = "",
    **options: Value | None,
) -> Execution:  # fmt: skip
    """Run one point of a kind in its run directory, and print the result. An option of None takes the default.

    `command` names it in errors and in the name of a new run directory; empty: `bench KIND`.
    """
    from scalewright.catalog.library import open_catalog
    from scalewright.launch.prepare.outlook import RunTooLargeError
    from scalewright.records.documents import to_json
    from scalewright.records.types import ExitCode
    from scalewright.report.console import answer_console
    from scalewright.report.run.report import run_report
    from scalewright.study.bench import benchmark

    try:
        execution = benchmark(open_catalog(catalog), kind, options, run_dir=run_dir, command=command)
    except RunTooLargeError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(ExitCode.NO) from error
    if execution.is_finished:
        typer.echo(f"{execution.path} is finished: nothing to run", err=True)
    else:
        if execution.forecast:
            typer.echo(execution.forecast, err=True)
        _exit_unless_finished(execution, _run(execution))
    report = run_report(execution.directory)
    if as_json:
        typer.echo(to_json(report.document()), nl=False)
    else:
        typer.echo(f"run directory {execution.path}", err=True)
        report.show(answer_console())
    return execution


def _run(execution: Execution) -> int:
    """Run it with a progress bar: by steps where it trains, by parts where it is a micro benchmark."""
    from scalewright.report.run.progress import NoteProgress, RunProgress
    from scalewright.study.execute import RunObserver, execute

    if execution.num_steps:
        with RunProgress(execution.num_steps) as steps:
            note = "{}: stopping after this step"
            return execute(
                execution,
                RunObserver(
                    on_events=steps.see,
                    on_signal=lambda number: steps.say(note.format(signal.Signals(number).name)),
                    on_note=steps.say,
                ),
            )
    with NoteProgress(execution.kind) as parts:
        return execute(execution, RunObserver(on_events=parts.see, on_signal=lambda _: parts.say("stopping")))


def _exit_unless_finished(execution: Execution, code: int) -> None:
    """End with the run's exit code, and say in one sentence why it did not finish."""
    from scalewright.errors import ConfigError, EnvironmentFailedError
    from scalewright.records.types import ExitCode
    from scalewright.study.bench import end_reason

    if code == ExitCode.YES:
        return
    reason = end_reason(execution.directory)
    if code == ExitCode.BAD_INPUT:
        raise ConfigError(reason)
    if code in (ExitCode.NO, ExitCode.REQUEUE, ExitCode.INTERRUPTED):
        info = execution.directory.read_exit_info()
        checkpoint = f" (last checkpoint: {info.last_checkpoint})" if info is not None and info.last_checkpoint else ""
        typer.echo(f"{execution.path}: {reason}{checkpoint}", err=True)
        raise typer.Exit(code)
    raise EnvironmentFailedError(f"{execution.path}: {reason}")
