"""Advice on a real queue: refusals in the scheduler's words, and a first choice that starts earlier."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Cli, Refused
    from scalewright.lab.cluster import Lab

pytestmark = pytest.mark.slurm
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "queue_advice.py"


@pytest.mark.soak
def test_the_first_choice_starts_earlier_in_full_queues(slurm: Lab) -> None:
    command = [sys.executable, str(BENCHMARK), "--lab", slurm.id, "--queues", "2", "--first-seed", "3", "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    outcomes = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(outcomes) == 2, done.stderr
    assert all(o["advised_wait_s"] <= o["original_wait_s"] + 2.0 for o in outcomes), outcomes
    assert any(o["starts_earlier"] for o in outcomes), outcomes
    assert all(o["num_calls"] <= 16 for o in outcomes)


def test_why_a_job_waits(cli: Cli, slurm: Lab) -> None:
    full = f"--nodes={len(slurm.nodes)}"
    jobs = [
        slurm.run("sbatch", "--parsable", full, "--exclusive", "-t", "30", "-o", "/dev/null", "--wrap", "sleep 60")
        for _ in range(2)
    ]
    first, second = (job.stdout.strip() for job in jobs)
    try:
        found = cli("advise", "--job", second, "--json", env=slurm.env)
        assert found.returncode == 0, found.stderr
        told = json.loads(found.stdout)
        assert told["reason"]["code"] in ("Resources", "Priority", "None")
        assert 0 < told["wait_s"] <= 1800
        assert "neither runs nor waits" in cli("advise", "--job", "999999", env=slurm.env).stderr
        assert "runs already" in cli("advise", "--job", first, env=slurm.env).stderr
    finally:
        slurm.run("scancel", first, second)


def test_an_unknown_partition_is_refused(cli: Cli, slurm: Lab, refused: Refused, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    made = cli(
        *("plan", "--model", "gpt3-1.3b", "--system", "selene", "--nodes", "1", "--global-batch", "64"),
        *("--steps", "10", "--out", str(plan)),
    )
    assert made.returncode == 0, made.stderr
    said = refused(cli("advise", str(plan), "--account", "lab", "--partition", "nope", env=slurm.env))
    assert "batch" in said
    # made for nodes of eight GPUs, where these have two: the profile's rule, before anybody is asked
    said = refused(cli("advise", str(plan), "--account", "lab", env=slurm.env))
    assert "GPUs" in said
