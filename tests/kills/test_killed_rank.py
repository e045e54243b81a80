"""Ctrl-C is pressed, or a rank is killed: the run says so, and the same command goes on where it was."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.conftest import StartCli

from forked_cli import StartedCall
from scalewright.records import metric_names as names
from scalewright.records.events import read_events
from scalewright.records.run_directory import RunDirectory

NUM_STEPS = 2000
COMMAND = [
    "bench", "language", "--model", "layers=1,hidden=16,heads=1,seq=16,vocab=32",
    "--ranks", "2", "--device", "cpu", "--steps", str(NUM_STEPS), "--checkpoint-every", "20",
    "--system", "discoverer", "--budget", "60 min",
    "--run-dir",
]  # fmt: skip


@contextmanager
def running(start_cli: StartCli, path: Path, *options: str) -> Iterator[StartedCall]:
    process = start_cli(*COMMAND, str(path), *options, cwd=path.parent)
    try:
        yield process
    finally:
        process.kill()


def wait_for_checkpoint(directory: RunDirectory, process: StartedCall, *, after: int) -> None:
    deadline = time.monotonic() + 120
    while not any(step > after for step in directory.checkpoint_steps()):
        assert process.poll() is None, process.communicate(timeout=60)
        assert time.monotonic() < deadline
        time.sleep(0.02)


def pid_of_rank(directory: RunDirectory, process: StartedCall, rank: int) -> int:
    """The child of the command that writes the log of this rank."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    logs = {str(Path(f"/proc/{child}/fd/1").readlink()): int(child) for child in children}
    return logs[str(directory.log(rank))]


@pytest.mark.kills
def test_interrupted_run_goes_on_where_it_was_and_a_killed_rank_ends_it(start_cli: StartCli, tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "r")
    with running(start_cli, directory.path) as process:
        wait_for_checkpoint(directory, process, after=0)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "stopped by SIGINT" in stderr
    stopped_at = directory.checkpoint_steps()[-1]

    with running(start_cli, directory.path) as process:
        wait_for_checkpoint(directory, process, after=stopped_at)
        os.kill(pid_of_rank(directory, process, 1), signal.SIGKILL)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 3, stderr
    assert "rank 1 ended with signal SIGKILL" in stderr.splitlines()[-1]
    info = directory.read_exit_info()
    assert info is not None
    assert (info.code, info.rank) == (3, 1)
    assert info.last_checkpoint == f"checkpoints/step-{directory.checkpoint_steps()[-1]:08d}"

    events = list(read_events(directory.rank_events(0)))
    assert [e.detail for e in events if e.name == names.EVENT_RESUME] == [f"from step-{stopped_at:08d}"]
    steps = [event.step for event in events if event.name == names.STEP_TIME]
    assert steps == list(range(len(steps))), "steps were done twice or left out"


@pytest.mark.kills
def test_requeued_runs_have_the_losses_of_one_that_was_never_stopped(start_cli: StartCli, tmp_path: Path) -> None:
    stopped, whole = RunDirectory(tmp_path / "stopped"), RunDirectory(tmp_path / "whole")
    options = ("--steps", "160")
    saved = 0
    for number in (signal.SIGTERM, signal.SIGUSR1):
        with running(start_cli, stopped.path, *options) as process:
            wait_for_checkpoint(stopped, process, after=saved)
            process.send_signal(number)
            _, stderr = process.communicate(timeout=60)
        assert process.returncode == 75, stderr
        assert f"stopped by {number.name} after a whole step" in stderr
        saved = stopped.checkpoint_steps()[-1]
    for directory in (stopped, whole):
        with running(start_cli, directory.path, *options) as process:
            _, stderr = process.communicate(timeout=120)
        assert process.returncode == 0, stderr
    for rank in (0, 1):
        losses = [
            [(event.step, event.value) for event in read_events(run.rank_events(rank)) if event.name == names.LOSS]
            for run in (stopped, whole)
        ]
        assert len(losses[1]) == 160
        assert losses[0] == losses[1], "a resumed run must go on bit for bit"
