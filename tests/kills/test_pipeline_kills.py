"""A pipeline is killed inside a stage, then stopped by a gate: finished stages stay, and the others follow."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.conftest import Cli, clean_environment

from scalewright.records.reasoning import read_curve
from scalewright.records.run_directory import RunDirectory

STUDY = """
schema = "scalewright.study/1"
id = "mine"
title = "Killed"
question = "Does it go on?"
kind = "reason"

[pipeline]

[pipeline.options]
model = "layers=1,hidden=32,heads=2"
task = "countdown"
device = "cpu"
eval_problems = 16

[[pipeline.stages]]
name = "sft"
stage = "sft"
options = { steps = 60, num_traces = 64, batch = 8, checkpoint_every = 5 }
gate = { by = 0.99 }

[[pipeline.stages]]
name = "answers"
stage = "generate"
from = "sft"
options = { num_problems = 8, answers = 2, keeps = "all" }

[[pipeline.stages]]
name = "student"
stage = "distill"
data_from = "answers"
options = { steps = 2, batch = 8 }
"""


def killed_inside(folder: Path, stage: RunDirectory, *, after: int) -> None:
    """Run the study and kill all its processes once the stage has made so many steps."""
    command = [sys.executable, "-m", "scalewright", "study", "run", "mine.toml", "--no-plots"]
    process = subprocess.Popen(
        command, cwd=folder, env=clean_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 120
        while not any(step >= after for step in stage.checkpoint_steps()):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.kills
def test_a_killed_pipeline_goes_on_and_ends_at_its_gate(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(STUDY)
    points = json.loads(cli("study", "show", "mine.toml", "--json", cwd=tmp_path).stdout)["points"]
    runs = [RunDirectory(tmp_path / "results" / "mine" / "runs" / point["id"] / "repeat-0") for point in points]
    killed_inside(tmp_path, runs[0], after=10)
    assert not runs[0].stage.exists()

    ended = cli("study", "run", "mine.toml", "--no-plots", cwd=tmp_path, timeout=300)
    assert ended.returncode == 1, ended.stderr
    assert "sft: greedy accuracy is 0.0 %" in ended.stderr
    assert "2 of 3  stage answers: skipped: the gate after sft was not passed" in ended.stderr
    assert "answers, student skipped" in ended.stdout
    record = json.loads(runs[0].stage.read_text())
    assert record["num_attempts"] == 2
    assert [point.step for point in read_curve(runs[0])] == list(range(60))
    assert not runs[1].config.exists()

    file.write_text(STUDY.replace("by = 0.99", "by = 0.0"))
    passed = cli("study", "run", "mine.toml", "--no-plots", cwd=tmp_path, timeout=300)
    assert passed.returncode == 0, passed.stderr
    assert json.loads(runs[0].stage.read_text()) == record, "a stage that has ended is not run again"
    states = json.loads(cli("study", "status", "mine.toml", "--json", cwd=tmp_path).stdout)["tries"]
    assert [one["state"] for one in states] == ["finished"] * 3
    report = json.loads((tmp_path / "results" / "mine" / "report" / "report.json").read_text())
    assert [stage["follows"] for stage in report["pipeline"]["stages"]] == [[], ["sft"], ["answers"]]
    assert report["pipeline"]["stages"][0]["curve"]["loss"][0] > report["pipeline"]["stages"][0]["curve"]["loss"][-1]
