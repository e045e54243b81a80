"""Training as a job of a graph, through a time limit, a node that dies and a scheduler that is restarted."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from training_runs import signal_ranks
from waiting import PATIENCE_S, job_field, limit_job, path_without_preflight, update_job, wait_for

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.lab.cluster import USABLE, Lab
from scalewright.launch.prepare.language_setup import LanguageRequest, resolve_data, resolve_language_run
from scalewright.records import metric_names as names
from scalewright.records.events import read_events
from scalewright.records.node_list import expand_nodes
from scalewright.records.run_directory import RunDirectory
from scalewright.workload.named import resolve_model

if TYPE_CHECKING:
    from tests.conftest import Cli

pytestmark = pytest.mark.slurm
NUM_STEPS = 1_000_000
"""More than any machine does before the test ends."""
CHECKPOINT_EVERY = 25


def prepared_run(path: Path) -> RunDirectory:
    """A run of two ranks on CPUs that is long enough to be interrupted twice."""
    request = LanguageRequest(
        spec=resolve_model(Catalog((packaged_data(),)), "layers=1,hidden=16,heads=1,seq=16,vocab=32"), ranks=2,
        layout=None, device="cpu", precision="auto", seq_len=0, scaling="given",
        options={"steps": NUM_STEPS, "checkpoint_every": CHECKPOINT_EVERY, "data": resolve_data("synthetic"),
                 "keep_trace": False},
    )  # fmt: skip
    config, _ = resolve_language_run(request, RunDirectory(path))
    return RunDirectory.create_or_resume(path, config.document())


def resumes(directory: RunDirectory) -> list[str]:
    events = directory.rank_events(0)
    return [e.detail for e in read_events(events) if e.name == names.EVENT_RESUME] if events.exists() else []


def test_training_survives_the_time_limit_a_lost_node_and_a_restarted_scheduler(
    cli: Cli, slurm: Lab, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    run = prepared_run(tmp_path / "training")
    command = [sys.executable, "-m", "scalewright.run", "language", "--run-dir", str(run.path)]
    train = tmp_path / "train"
    train.write_text(f"#!/bin/sh\nexec {shlex.join(command)}\n")
    train.chmod(0o755)
    env = slurm.env | {"PATH": path_without_preflight(tmp_path / "bin", slurm.env["PATH"])}
    (tmp_path / "graph.toml").write_text(
        'schema = "scalewright.graph/1"\nname = "survives"\nsite = "generic"\n[jobs.train]\n'
        f'command = ["{train}"]\nnodes = 2\ngpus_per_node = 1\ntime = "00:30:00"\nnotice = "180 s"\n'
    )
    launch = tmp_path / "launch"
    with subprocess.Popen(
        [*(sys.executable, "-m", "scalewright", "jobs", "submit", "graph.toml", "--out", str(launch)),
         *("--watch", "--poll", "1 s", "--json")],
        env=env, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as driver:  # fmt: skip
        try:
            jobs = launch / "jobs.json"
            wait_for("a job", lambda: jobs.exists() and '"id": "' in jobs.read_text())
            wait_for("an id", lambda: bool(_job(cli, launch, slurm)["id"]))
            job = _job(cli, launch, slurm)["id"]
            log = launch / "jobs/train/logs" / f"slurm-{job}.out"
            wait_for("a checkpoint", run.checkpoint_steps)
            signal_ranks(run, signal.SIGSTOP)
            limit_job(slurm, job, minutes_left=3)
            wait_for("the notice", lambda: "asking the ranks to save" in log.read_text())
            signal_ranks(run, signal.SIGCONT)
            wait_for("the requeue", lambda: job_field(slurm, job, "Restarts") == "1")
            stopped_at = run.checkpoint_steps()[-1]
            assert resumes(run) == []
            wait_for("the queue", lambda: job_field(slurm, job, "JobState") == "PENDING")
            slurm.restart_controller()
            limit_job(slurm, job, minutes_left=30)
            update_job(slurm, job, "StartTime=now")
            wait_for("the first resume", lambda: len(resumes(run)) == 1)
            assert resumes(run) == [f"from step-{stopped_at:08d}"]
            wait_for("more checkpoints", lambda: run.checkpoint_steps()[-1] > stopped_at)
            signal_ranks(run, signal.SIGSTOP)
            lost = job_field(slurm, job, "BatchHost")
            slurm.kill_node(lost)
            try:
                wait_for("the requeue", lambda: job_field(slurm, job, "Restarts") == "2")
                update_job(slurm, job, "StartTime=now")
                wait_for("the second resume", lambda: len(resumes(run)) == 2)
                saved = run.checkpoint_steps()[-1]
                wait_for("progress", lambda: run.checkpoint_steps()[-1] > saved)
            finally:
                slurm.start_node(lost, wait=False)
            cancelled = cli("jobs", "cancel", str(launch), env=slurm.env)
            out, err = driver.communicate(timeout=PATIENCE_S)
        finally:
            driver.kill()
            slurm.run("scancel", "--name=survives.train")
    assert (cancelled.returncode, cancelled.stdout.strip()) == (0, job), cancelled.stderr
    assert driver.returncode == 1, err + log.read_text()[-2000:]
    assert json.loads(out)["launches"][0]["jobs"]["train"]["states"] == {"cancelled": 1}
    assert lost not in expand_nodes(_nodes_of_attempt(log, job, 2))
    events = list(read_events(run.rank_events(0)))
    done = [e.step for e in events if e.name == names.STEP_TIME]
    assert done[: stopped_at + 1] == list(range(stopped_at + 1)), "steps were done twice or left out"
    starts = [i for i, e in enumerate(events) if e.name == names.EVENT_RESUME]
    saved_at = [int(events[i].detail.rpartition("-")[2]) for i in starts]
    went_on_at = [next(e.step for e in events[i:] if e.name == names.STEP_TIME) for i in starts]
    assert went_on_at == saved_at
    assert saved_at[0] == stopped_at < saved_at[1]
    slurm.wait_for_nodes([lost], USABLE)


def _job(cli: Cli, launch: Path, slurm: Lab) -> dict[str, Any]:
    listed = cli("jobs", "list", str(launch), "--json", env=slurm.env)
    assert listed.returncode == 0, listed.stderr
    jobs = json.loads(listed.stdout)["launches"][0]["slurm_jobs"]
    return dict(jobs[0]) if jobs else {"id": ""}


def _nodes_of_attempt(log: Path, job: str, attempt: int) -> str:
    return re.findall(r" on (\S+), at", (log.parent / f"job-{job}-{attempt}.txt").read_text())[0]


def test_without_accounts_ends_are_known_and_a_driver_waits_for_a_scheduler_that_is_away(
    cli: Cli, slurm_without_accounting: Lab, tmp_path: Path
) -> None:
    slurm = slurm_without_accounting
    tmp_path.chmod(0o755)
    (tmp_path / "item.sh").write_text("#!/bin/sh\n#SBATCH --mem=64M\nsleep 1\nexit $SLURM_ARRAY_TASK_ID\n")
    (tmp_path / "graph.toml").write_text(
        'schema = "scalewright.graph/1"\nname = "plain"\n'
        '[jobs.sweep]\nscript = "item.sh"\nitems = ["a", "b"]\nretries = {limit = 1, backoff = "1 s"}\n'
        '[jobs.after]\nscript = "item.sh"\nitems = ["a", "b"]\nafter = {sweep = "corr"}\n'
    )
    launch = str(tmp_path / "launch")
    submitted = cli("jobs", "submit", "graph.toml", "--out", launch, cwd=tmp_path, env=slurm.env)
    assert submitted.returncode == 0, submitted.stderr
    assert "some jobs are submitted later" in submitted.stderr
    slurm.stop_controller()
    with subprocess.Popen(
        [sys.executable, "-m", "scalewright", "jobs", "watch", launch, "--poll", "1 s", "--json"],
        env=slurm.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as driver:  # fmt: skip
        try:
            time.sleep(3)
            slurm.start_controller()
            out, err = driver.communicate(timeout=PATIENCE_S)
        finally:
            driver.kill()
    assert driver.returncode == 1, err
    launch_document = json.loads(out)["launches"][0]
    assert launch_document["jobs"]["sweep"]["states"] == {"completed": 1, "failed": 1}
    assert [(j["job"], j["tasks"]) for j in launch_document["slurm_jobs"]] == [
        ("sweep", "0-1"),
        ("sweep", "1"),
        ("after", "0"),
    ]
    spent = cli("jobs", "spent", launch, env=slurm.env)
    assert spent.returncode == 0, spent.stderr
    assert "the queue, as recorded by drivers" in spent.stdout
