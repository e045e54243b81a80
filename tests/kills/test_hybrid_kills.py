"""Roles of a run are killed one after the other: it ends as if nothing had happened."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Protocol

import pytest
from tests.conftest import Cli
from tests.forked_cli import StartedCall
from tests.role_cases import SFT, check_whole, curve, grpo, kill, processes_of

from scalewright.records.hybrid import read_timeline
from scalewright.records.reasoning import read_stage
from scalewright.records.run_directory import RunDirectory

pytestmark = pytest.mark.kills
NUM_STEPS = 24
ROLES = ("engine-0", "trainer", "controller", "engine-1")
NUM_KILLS = int(os.environ.get("SCALEWRIGHT_TEST_KILLS", "3"))
"""Of the test that kills at random; `make soak` sets it to 200."""


class StartCli(Protocol):
    def __call__(self, *args: str, cwd: Path) -> StartedCall: ...


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory, shared_cli_with_ranks: Cli) -> Path:
    path = tmp_path_factory.mktemp("hybrid") / "sft"
    done = shared_cli_with_ranks(*SFT, "--run-dir", str(path))
    assert done.returncode == 0, done.stderr
    return path


def wait_for_steps(process: StartedCall | subprocess.Popen[str], path: Path, num: int) -> None:
    deadline = time.monotonic() + 180
    while len(curve(path)) < num:
        assert process.poll() is None, "it ended before it was killed"
        assert time.monotonic() < deadline, f"no step {num}"
        time.sleep(0.02)


def wait_for_another(path: Path, role: str, before: list[int]) -> None:
    deadline = time.monotonic() + 60
    while not set(processes_of(path, role)) - set(before):
        assert time.monotonic() < deadline, f"{role} was not started again"
        time.sleep(0.02)


def test_each_role_is_killed_once_and_nothing_changes(
    cli: Cli, start_cli: StartCli, started: Path, tmp_path: Path
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert cli(*grpo(started, steps=NUM_STEPS, run_dir=whole)).returncode == 0
    command = (*grpo(started, steps=NUM_STEPS, run_dir=cut), "--engines", "2", "--checkpoint-every", "3")
    process = start_cli(*command, cwd=tmp_path)
    try:
        for number, role in enumerate(ROLES[:3]):
            wait_for_steps(process, cut, 4 * (number + 1))
            before = processes_of(cut, role)
            assert kill(cut, role)
            wait_for_another(cut, role, before)
        wait_for_steps(process, cut, 15)
        process.send_signal(signal.SIGTERM)
        last = process.communicate(timeout=60)[1].splitlines()[-1]
    finally:
        process.kill()
    assert process.returncode == 75, last
    again = cli(*command)
    assert again.returncode == 0, again.stderr
    check_whole(cut, steps=NUM_STEPS)
    restarted = {span.of for span in read_timeline(RunDirectory(cut)) if span.kind == "restart"}
    assert restarted == set(ROLES[:3])
    for mine, theirs in zip(curve(cut), curve(whole), strict=True):
        assert (mine.reward_mean, mine.length_mean) == (theirs.reward_mean, theirs.length_mean)
        assert mine.grad_norm == pytest.approx(theirs.grad_norm, rel=1e-2, abs=1e-6)
    first, second = (read_stage(RunDirectory(path)) for path in (whole, cut))
    assert first.accuracy == second.accuracy
    assert (second.num_samples, second.num_tokens) == (first.num_samples, first.num_tokens)


def test_a_killed_supervisor_leaves_roles_that_the_next_one_ends(
    cli: Cli, start_cli: StartCli, started: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    command = (*grpo(started, steps=8, run_dir=path), "--engines", "1", "--staleness", "1", "--checkpoint-every", "2")
    process = start_cli(*command, cwd=tmp_path)
    try:
        wait_for_steps(process, path, 3)
        pids = [pid for role in ("trainer", "controller", "engine-0") for pid in processes_of(path, role)]
    finally:
        process.kill()
    assert len(pids) == 3
    again = cli(*command)
    assert again.returncode == 0, again.stderr
    check_whole(path, steps=8, staleness=1)
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


@pytest.mark.timeout(3600)
def test_kills_at_random_lose_nothing(cli: Cli, start_cli: StartCli, started: Path, tmp_path: Path) -> None:
    """Runs with kills at random, until enough roles were killed. Each ends with the curve of an undisturbed run."""
    rng, num_killed, number = random.Random(0), 0, 0
    whole = tmp_path / "whole"
    assert cli(*grpo(started, steps=NUM_STEPS, run_dir=whole)).returncode == 0
    while num_killed < NUM_KILLS:
        path = tmp_path / f"run-{number}"
        number += 1
        is_sync = number % 2 == 1
        bound = () if is_sync else ("--staleness", "2")
        command = (*grpo(started, steps=NUM_STEPS, run_dir=path), "--engines", "2", "--checkpoint-every", "3", *bound)
        process = start_cli(*command, cwd=tmp_path)
        try:
            num_of_run = 0
            while process.poll() is None and num_of_run < min(NUM_KILLS, 20):
                time.sleep(rng.uniform(0.2, 2.0))
                num_of_run += kill(path, rng.choice(ROLES))
            num_killed += num_of_run
            process.communicate(timeout=300)
        finally:
            process.kill()
        assert process.returncode == 0
        check_whole(path, steps=NUM_STEPS, staleness=0 if is_sync else 2)
        if is_sync:
            assert [p.reward_mean for p in curve(path)] == [p.reward_mean for p in curve(whole)]
            assert read_stage(RunDirectory(path)).accuracy == read_stage(RunDirectory(whole)).accuracy
