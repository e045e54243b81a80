"""Advice on a real queue: refusals in the scheduler's words, and a first choice that starts earlier."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from waiting import job_field, wait_for

if TYPE_CHECKING:
    from conftest import Cli, Refused
    from scalewright.lab.cluster import Lab

pytestmark = pytest.mark.slurm
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "queue_advice.py"


def load_benchmark() -> Any:
    spec = importlib.util.spec_from_file_location("queue_advice", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["queue_advice"] = module  # its data classes look themselves up there
    spec.loader.exec_module(module)
    return module


def test_the_first_choice_starts_while_the_original_waits(slurm: Lab, tmp_path: Path) -> None:
    """One node is free, and what waits first needs all: only a small and short request can start before it."""
    benchmark, num_nodes = load_benchmark(), len(slurm.nodes)
    bench = benchmark.Bench(slurm, tmp_path, gpus_per_node=2, account="lab")
    running, waiting = (benchmark.Job(num_nodes=n, limit_min=60, lasts_s=600) for n in (num_nodes - 1, num_nodes))
    try:
        bench.fill([running], [waiting])
        advice = bench.ask(num_nodes=num_nodes, limit_min=240)
        assert advice["num_tested"] <= 16
        original = bench.submit_ask(advice["original"], lasts_s=600)
        advised = bench.submit_ask(advice["best"], lasts_s=600)
        bench.wait(lambda: bench.starts(advised), "start of the advised request")
        assert not bench.starts(original), advice["best"]
    finally:
        bench.empty()


def test_why_a_job_waits(cli: Cli, slurm: Lab) -> None:
    full = f"--nodes={len(slurm.nodes)}"
    jobs = [
        slurm.run("sbatch", "--parsable", full, "--exclusive", "-t", "30", "-o", "/dev/null", "--wrap", "sleep 60")
        for _ in range(2)
    ]
    first, second = (job.stdout.strip() for job in jobs)
    try:
        wait_for("the first job runs", lambda: job_field(slurm, first, "JobState") == "RUNNING")
        done = cli("advise", "--job", second, "--json", env=slurm.env)
        assert done.returncode == 0, done.stderr
        explanation = json.loads(done.stdout)
        assert explanation["reason"]["code"] in ("Resources", "Priority", "None")
        assert 0 < explanation["wait_s"] <= 1800
        assert "neither runs nor waits" in cli("advise", "--job", "999999", env=slurm.env).stderr
        assert "is running on" in cli("advise", "--job", first, env=slurm.env).stderr
    finally:
        slurm.run("scancel", first, second)


def test_an_unknown_partition_is_refused(cli: Cli, slurm: Lab, refused: Refused, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    made = cli(
        *("plan", "--model", "gpt3-1.3b", "--system", "selene", "--nodes", "1", "--global-batch", "64"),
        *("--steps", "10", "--out", str(plan)),
    )
    assert made.returncode == 0, made.stderr
    message = refused(cli("advise", str(plan), "--account", "lab", "--partition", "nope", env=slurm.env))
    assert "batch" in message
    # made for nodes of eight GPUs, where these have two: the profile's rule, before anybody is asked
    message = refused(cli("advise", str(plan), "--account", "lab", env=slurm.env))
    assert "GPUs" in message
