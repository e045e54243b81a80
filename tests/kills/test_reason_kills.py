"""A stage is killed in the middle of a step: run again, it ends as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from scalewright.records.reasoning import CurvePoint, read_curve, read_stage
from scalewright.records.run_directory import RunDirectory

MODEL = ("--model", "layers=1,hidden=32,heads=2", "--numbers", "2", "--largest", "11", "--operators", "+")
SCALEWRIGHT = (sys.executable, "-m", "scalewright", "reason")
QUICK = ("--device", "cpu", "--eval-problems", "8")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SCALEWRIGHT, *arguments], capture_output=True, text=True, timeout=180, check=False)


def pid_of_rank(path: Path) -> int:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"scalewright.run" in words and str(path).encode() in words:
            return int(entry.name)
    raise AssertionError("no rank is running")


def points_of(path: Path) -> list[CurvePoint]:
    return [replace(point, seconds_by_part={}) for point in read_curve(RunDirectory(path))]


@pytest.mark.kills
def test_a_killed_grpo_stage_goes_on_where_its_checkpoint_is(tmp_path: Path) -> None:
    start = run(
        "sft", *MODEL, *QUICK, "--steps", "120", "--batch", "32", "--num-traces", "256", "--learning-rate", "0.02",
        "--run-dir", str(tmp_path / "sft"),
    )  # fmt: skip
    assert start.returncode == 0, start.stderr
    command = (
        "grpo", *QUICK, "--start-from", str(tmp_path / "sft"), "--steps", "12", "--checkpoint-every", "3",
        "--num-prompts", "8", "--answers", "4", "--run-dir",
    )  # fmt: skip
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert run(*command, str(whole)).returncode == 0
    process = subprocess.Popen([*SCALEWRIGHT, *command, str(cut)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 120
        while len(points_of(cut)) < 5 or not RunDirectory(cut).checkpoint_steps():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(pid_of_rank(cut), signal.SIGKILL)
        process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 3
    assert RunDirectory(cut).checkpoint_steps()
    assert not RunDirectory(cut).stage.exists()
    again = run(*command, str(cut))
    assert again.returncode == 0, again.stderr
    assert points_of(cut) == points_of(whole)
    first, second = (read_stage(RunDirectory(path)) for path in (whole, cut))
    assert first.accuracy == second.accuracy
    assert (first.num_samples, second.num_samples) == (12 * 32, 12 * 32)
