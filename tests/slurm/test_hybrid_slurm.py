"""Roles of a GRPO stage on a real Slurm: a step for each, a lost node of an engine, a stop that queues it again."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from tests.conftest import Cli
from tests.role_cases import SFT, check_whole, curve, grpo
from waiting import job_field, wait_for, wait_for_end

from scalewright.lab.cluster import Lab
from scalewright.records.run_directory import RunDirectory

pytestmark = pytest.mark.slurm
NUM_STEPS = 60


def submit(lab: Lab, folder: Path, *options: str, start: Path) -> str:
    """A batch script that runs the stage; Slurm keeps the job when a node is lost."""
    command = (*grpo(start, steps=NUM_STEPS, run_dir=folder / "run"), "--engines", "2", "--checkpoint-every", "2")
    script = folder / "job.sh"
    words = shlex.join([sys.executable, "-m", "scalewright", *command])
    script.write_text(
        f"#!/bin/bash\nexport OMP_NUM_THREADS=1\n{words} &\nstage=$!\ntrap 'kill -USR1 $stage' USR1\n"
        "wait $stage; code=$?\n((code <= 128)) || { wait $stage; code=$?; }\n"
        '((code != 75)) || exec scontrol requeue "$SLURM_JOB_ID"\nexit $code\n'
    )
    given = ("-N3", "--ntasks-per-node=1", "--no-kill", "--requeue", "--open-mode=append", "-o", str(folder / "out"))
    done = lab.run("sbatch", "--parsable", *given, *options, str(script))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_lost_node_takes_one_engine_and_a_stop_is_resumed(slurm: Lab, cli: Cli, tmp_path: Path) -> None:
    start = cli(*SFT, "--run-dir", str(tmp_path / "sft"))
    assert start.returncode == 0, start.stderr
    path, out = tmp_path / "run", tmp_path / "out"
    job = submit(slurm, tmp_path, start=tmp_path / "sft")

    def shown() -> str:
        logs = [file.read_text(errors="replace")[-1500:] for file in sorted(path.rglob("*.log"))]
        return "\n".join([out.read_text() if out.exists() else "", *logs])

    def has_steps(num: int) -> bool:
        assert job_field(slurm, job, "JobState") in ("PENDING", "CONFIGURING", "RUNNING"), shown()
        return len(curve(path)) >= num

    wait_for("steps", lambda: has_steps(4), shown=shown)
    steps = slurm.run("squeue", "--steps", "--noheader", "--format=%j %N", "--jobs", job).stdout.split("\n")
    places = dict(line.split() for line in steps if line.startswith(("trainer", "engine")))
    assert len(set(places.values())) == 3, steps
    lost = places["engine-1"]
    slurm.kill_node(lost)
    try:
        num_before = len(curve(path))
        wait_for("steps without the node", lambda: has_steps(num_before + 4), shown=shown)
        assert job_field(slurm, job, "Restarts") == "0"
    finally:
        slurm.start_node(lost)
    slurm.run("scancel", "--batch", "--signal=USR1", job)
    wait_for_end(slurm, job, shown=shown)
    assert job_field(slurm, job, "JobState") == "COMPLETED", shown()
    assert job_field(slurm, job, "Restarts") == "1", shown()
    check_whole(path, steps=NUM_STEPS)
    info = RunDirectory(path).read_exit_info()
    assert info is not None
    assert info.finished
