"""A stage is killed in the middle of a step, or told to stop: run again, it ends as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest

from forked_cli import StartedCall
from scalewright.records.reasoning import CurvePoint, read_curve, read_stage
from scalewright.records.run_directory import RunDirectory

MODEL = ("--model", "layers=1,hidden=32,heads=2", "--numbers", "2", "--largest", "11", "--operators", "+")
QUICK = ("--device", "cpu", "--eval-problems", "8")
NUM_STEPS = 16
Cli = Callable[..., subprocess.CompletedProcess[str]]


class StartCli(Protocol):
    def __call__(self, *args: str, cwd: Path) -> StartedCall: ...


def points_of(path: Path) -> list[CurvePoint]:
    return [replace(point, seconds_by_part={}) for point in read_curve(RunDirectory(path))]


def ended(process: StartedCall, path: Path, number: signal.Signals, *, after: int) -> str:
    """The last words of a stage that gets a signal once it has so many steps; KILL goes to its rank."""
    try:
        deadline = time.monotonic() + 120
        while len(points_of(path)) < after or not RunDirectory(path).checkpoint_steps():
            assert process.poll() is None, process.communicate(timeout=60)
            assert time.monotonic() < deadline
            time.sleep(0.01)
        if number == signal.SIGKILL:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            logs = {str(Path(f"/proc/{child}/fd/1").readlink()): int(child) for child in children}
            os.kill(logs[str(RunDirectory(path).log(0))], number)
        else:
            process.send_signal(number)
        return process.communicate(timeout=60)[1].splitlines()[-1]
    finally:
        process.kill()


@pytest.mark.kills
@pytest.mark.parametrize("options", [(), ("--token-budget", "200")], ids=["all-done", "budget"])
def test_a_killed_grpo_stage_goes_on_where_its_checkpoint_is(
    cli: Cli, start_cli: StartCli, tmp_path: Path, options: tuple[str, ...]
) -> None:
    start = cli(
        "reason", "sft", *MODEL, *QUICK, "--steps", "110", "--batch", "32", "--num-traces", "256", "--learning-rate",
        "0.02", "--run-dir", str(tmp_path / "sft"),
    )  # fmt: skip
    assert start.returncode == 0, start.stderr
    command = (
        "reason", "grpo", *QUICK, "--start-from", str(tmp_path / "sft"), "--steps", str(NUM_STEPS),
        "--checkpoint-every", "3", "--num-prompts", "8", "--answers", "4", *options, "--run-dir",
    )  # fmt: skip
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert cli(*command, str(whole)).returncode == 0
    for number, code, words, after in (
        (signal.SIGKILL, 3, "rank 0 ended with signal SIGKILL", 5),
        (signal.SIGTERM, 75, "stopped by SIGTERM after a whole step", 8),
    ):
        process = start_cli(*command, str(cut), cwd=tmp_path)
        last = ended(process, cut, number, after=after)
        assert (process.returncode, words in last) == (code, True), last
        assert RunDirectory(cut).checkpoint_steps()
        assert not RunDirectory(cut).stage.exists()
    again = cli(*command, str(cut))
    assert again.returncode == 0, again.stderr
    assert points_of(cut) == points_of(whole)
    first, second = (read_stage(RunDirectory(path)) for path in (whole, cut))
    assert first.accuracy == second.accuracy
    assert first.num_samples == second.num_samples
    if not options:
        assert first.num_samples == NUM_STEPS * 32
