"""A pipeline on a real Slurm: a gate that is passed lets the next stage start, one that is not ends the pipeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from waiting import PATIENCE_S

if TYPE_CHECKING:
    from tests.conftest import Cli

    from scalewright.lab.cluster import Lab

pytestmark = pytest.mark.slurm

STUDY = """
schema = "scalewright.study/1"
id = "mine"
title = "Mine"
question = "Does it go on?"
kind = "reason"

[measure]
where = "site"

[measure.job]
gpus_per_node = 1
time = "00:15:00"
env = { OMP_NUM_THREADS = "1" }

[pipeline]
profile = "cpu"

[pipeline.options]
model = "layers=1,hidden=32,heads=2"
task = "countdown"
device = "cpu"
eval_problems = 16

[[pipeline.stages]]
name = "sft"
stage = "sft"
options = { steps = 3, num_traces = 64, batch = 8 }
gate = { by = 0.0 }

[[pipeline.stages]]
name = "test"
stage = "evaluate"
from = "sft"
gate = { over = "sft", by = 0.5 }

[[pipeline.stages]]
name = "answers"
stage = "generate"
from = "sft"
options = { num_problems = 8, answers = 2 }
"""


def test_gates_let_jobs_start_or_end_the_pipeline(slurm: Lab, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(STUDY)
    done = cli("study", "run", "mine.toml", "--wait", "--no-plots", cwd=tmp_path, env=slurm.env, timeout=4 * PATIENCE_S)
    assert done.returncode == 1, done.stderr
    assert "test: greedy accuracy rose by 0.0 points" in done.stderr
    launch = tmp_path / "results" / "mine" / "jobs" / "0001"
    graph = json.loads(cli("jobs", "list", str(launch), "--json", env=slurm.env).stdout)["launches"][0]
    assert [job["job"] for job in graph["slurm_jobs"]] == ["sft", "test"]
    assert (graph["jobs"]["sft"]["ok"], graph["jobs"]["test"]["ok"]) == (True, False)
    assert graph["jobs"]["answers"]["skipped"] == "test did not succeed"
    assert json.loads((launch / "jobs" / "test" / "task-0" / "gate.json").read_text())["value_frac"] == 0.0
    status = cli("study", "status", "mine.toml", "--json", cwd=tmp_path, env=slurm.env)
    assert [one["state"] for one in json.loads(status.stdout)["tries"]] == ["finished", "finished", "skipped"]
    again = cli("study", "run", "mine.toml", cwd=tmp_path, env=slurm.env)
    assert (again.returncode, again.stdout) == (1, "nothing is left to submit\n")
