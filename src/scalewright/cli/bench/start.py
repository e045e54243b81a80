"""What all benchmarks share: start one, tell in one sentence why it did not finish, and print what it found."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from scalewright.records.run_directory import RunDirectory

RunFolder = Annotated[Path | None, typer.Option(metavar="DIR", help="Default: runs/TIME-NAME. The same one resumes.")]
DeviceName = Annotated[str, typer.Option(help="cpu, cuda (also AMD), or auto.")]

LAST_WORDS_BYTES = 2**16
"""With less room than this on its disk, a run may not have been able to write down why it ended."""


def start_bench(
    kind: str, config: dict[str, Any], *, run_dir: Path | None, as_json: bool, num_ranks: int = 1, slug: str = ""
) -> None:
    """Run a micro benchmark in its run directory and print its measurements."""
    from scalewright.records.documents import to_json
    from scalewright.records.measurements import read_measurements
    from scalewright.records.run_directory import new_run_id
    from scalewright.report.bench.measurements import print_measurements
    from scalewright.report.console import answer_console
    from scalewright.report.run.progress import NoteProgress
    from scalewright.study.execute import Execution, Watch, execute

    path = run_dir or Path("runs") / new_run_id(slug or kind)
    point = Execution(kind=kind, config=config, path=path, num_ranks=num_ranks, script=command_again(path))
    if point.is_finished:
        typer.echo(f"{path} is finished: nothing to run", err=True)
    else:
        with NoteProgress(kind) as progress:
            code = execute(point, Watch(on_events=progress.see, on_signal=lambda _: progress.say("stopping")))
        refuse_unfinished(point.directory, code)
    found = read_measurements(point.directory)
    if as_json:
        typer.echo(to_json(found.document()), nl=False)
        return
    typer.echo(f"run directory {path}", err=True)
    print_measurements(answer_console(), found)


def folder_to_measure(path: Path) -> str:
    """Where a benchmark of storage works: there already, unless other nodes than this one are to say so."""
    from scalewright.errors import EnvironmentFailedError
    from scalewright.launch.ranks.allocation import is_inside

    if not is_inside(os.environ) and not path.is_dir():
        raise EnvironmentFailedError(f"{path}: no such folder to measure in; make it, or give another --path")
    return str(path.resolve())


def command_again(path: Path) -> str:
    """The command that makes this run again, or resumes it."""
    words = sys.argv[1:]
    given = any(word == "--run-dir" or word.startswith("--run-dir=") for word in words)
    command = ["scalewright", *words, *([] if given else ["--run-dir", str(path)])]
    return f"#!/bin/sh\ncd {shlex.quote(str(Path.cwd()))} || exit 2\nexec {shlex.join(command)}\n"


def stopping(number: int) -> str:
    return f"{signal.Signals(number).name}: stopping after this step"


def refuse_unfinished(directory: RunDirectory, code: int) -> None:
    """Where a run did not finish: in one sentence why, and its exit code."""
    from scalewright.errors import ConfigError, EnvironmentFailedError
    from scalewright.records.types import ExitCode

    if code == ExitCode.YES:
        return
    info = directory.read_exit_info()
    reason = _last_words(directory) if info is None else info.reason
    if code == ExitCode.BAD_INPUT:
        raise ConfigError(reason)
    if code in (ExitCode.NO, ExitCode.REQUEUE, ExitCode.INTERRUPTED):
        kept = f" (last checkpoint: {info.last_checkpoint})" if info is not None and info.last_checkpoint else ""
        typer.echo(f"{directory.path}: {reason}{kept}", err=True)
        raise typer.Exit(code)
    raise EnvironmentFailedError(f"{directory.path}: {reason}")


def _last_words(directory: RunDirectory) -> str:
    """What a rank printed before it ended, where the disk had no room left for the reason."""
    for path in sorted(directory.logs.glob("rank-*.log")):
        lines = path.read_text(errors="replace").splitlines()
        said = [line for line in lines if line.startswith("error: ")]
        if said:
            return said[-1].removeprefix("error: ")
    if shutil.disk_usage(directory.path).free < LAST_WORDS_BYTES:
        return "No space left on device: free space, then run it again to resume; earlier checkpoints are untouched"
    return "the run left no reason: see logs/"
