"""Ctrl-C is pressed, or a rank is killed: the run says so, and the same command goes on where it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scalewright.records import metric_names as names
from scalewright.records.events import read_events
from scalewright.records.run_directory import RunDirectory

NUM_STEPS = 2000
COMMAND = [
    sys.executable, "-m", "scalewright", "bench", "language", "--model", "layers=1,hidden=16,heads=1,seq=16,vocab=32",
    "--ranks", "2", "--device", "cpu", "--steps", str(NUM_STEPS), "--checkpoint-every", "20",
    "--system", "discoverer", "--budget", "60 min",
    "--run-dir",
]  # fmt: skip


@contextmanager
def running(path: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*COMMAND, str(path), *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for_checkpoint(directory: RunDirectory, process: subprocess.Popen[str], *, after: int) -> None:
    deadline = time.monotonic() + 120
    while not any(step > after for step in directory.checkpoint_steps()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def pid_of_rank(directory: RunDirectory, rank: int) -> int:
    """The process whose variables say that it is this rank of a run in this directory."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command, env = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
        except OSError:
            continue
        if str(directory.path).encode() in command and f"\0RANK={rank}\0".encode() in b"\0" + env:
            return int(entry.name)
    raise AssertionError(f"rank {rank} is not running")


@pytest.mark.kills
def test_interrupted_run_goes_on_where_it_was_and_a_killed_rank_ends_it(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "r")
    with running(directory.path) as process:
        wait_for_checkpoint(directory, process, after=0)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "stopped by SIGINT" in stderr
    stopped_at = directory.checkpoint_steps()[-1]

    with running(directory.path) as process:
        wait_for_checkpoint(directory, process, after=stopped_at)
        os.kill(pid_of_rank(directory, 1), signal.SIGKILL)
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
def test_requeued_runs_have_the_losses_of_one_that_was_never_stopped(tmp_path: Path) -> None:
    stopped, whole = RunDirectory(tmp_path / "stopped"), RunDirectory(tmp_path / "whole")
    options = ("--steps", "160")
    saved = 0
    for number in (signal.SIGTERM, signal.SIGUSR1):
        with running(stopped.path, *options) as process:
            wait_for_checkpoint(stopped, process, after=saved)
            process.send_signal(number)
            _, stderr = process.communicate(timeout=60)
        assert process.returncode == 75, stderr
        assert f"stopped by {number.name} after a whole step" in stderr
        saved = stopped.checkpoint_steps()[-1]
    for directory in (stopped, whole):
        with running(directory.path, *options) as process:
            _, stderr = process.communicate(timeout=120)
        assert process.returncode == 0, stderr
    for rank in (0, 1):
        losses = [
            [(event.step, event.value) for event in read_events(run.rank_events(rank)) if event.name == names.LOSS]
            for run in (stopped, whole)
        ]
        assert len(losses[1]) == 160
        assert losses[0] == losses[1], "a resumed run must go on bit for bit"
