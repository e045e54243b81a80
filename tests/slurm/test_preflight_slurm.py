"""Pre-flight under a real srun: in an allocation, as the first step of a rendered job, and nodes that fail are left."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from waiting import PATIENCE_S, job_field, wait_for

from scalewright.records.documents import write_document
from scalewright.records.preflight import PreflightRequest
from scalewright.records.run_directory import RunDirectory

if TYPE_CHECKING:
    from conftest import Cli
    from scalewright.lab.cluster import Lab

pytestmark = pytest.mark.slurm


def test_in_an_allocation_every_node_is_checked_and_a_spare_stays_out(slurm: Lab, tmp_path: Path) -> None:
    command = shlex.join(
        [sys.executable, "-m", "scalewright", "preflight", "--device", "cpu", "--spares", "1", "--json", "--run-dir",
         str(tmp_path / "run")]
    )  # fmt: skip
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/sh\n{command} >{shlex.quote(str(tmp_path / 'answer'))}\n")
    done = slurm.run("sbatch", "--wait", "-N3", "-n3", "-o", str(tmp_path / "out"), str(script), timeout_s=PATIENCE_S)
    assert done.returncode == 0, done.stderr + (tmp_path / "out").read_text()
    result = json.loads((tmp_path / "answer").read_text())
    assert (result["code"], result["num_nodes"], result["num_ranks"]) == (0, 3, 3)
    assert len(result["keep"]) == 2
    assert len(result["spare"]) == 1
    assert set(result["keep"] + result["spare"]) == {rank["host"] for rank in result["ranks"]}
    directory = RunDirectory(tmp_path / "run")
    assert directory.preflight_nodes.read_text() == ",".join(result["keep"]) + "\n"


def rendered(cli: Cli, slurm: Lab, tmp_path: Path) -> Path:
    """A script of launch that would leave a mark once it comes to its command."""
    dry = cli(
        *("launch", "--site", "generic", "--nodes", "2", "--gpus-per-node", "1", "--time", "00:05:00", "--dry-run"),
        *("--run-dir", str(tmp_path / "run"), "--"),
        *(sys.executable, "-c", f"import pathlib; pathlib.Path({str(tmp_path)!r}, 'came').touch()"),
        env=slurm.env,
        cwd=tmp_path,
    )
    assert dry.returncode == 0, dry.stderr
    # The pause that spreads the first reads of many jobs is not of interest here.
    script = tmp_path / "job.sh"
    script.write_text(re.sub(r"sleep \$\(\(RANDOM.*", "true", dry.stdout))
    (tmp_path / "run" / "logs").mkdir(parents=True)
    return script


def test_a_rendered_job_is_checked_first(cli: Cli, slurm: Lab, tmp_path: Path) -> None:
    done = slurm.run("sbatch", "--wait", str(rendered(cli, slurm, tmp_path)), timeout_s=PATIENCE_S)
    logs = "".join(path.read_text() for path in (tmp_path / "run" / "logs").glob("slurm-*"))
    assert done.returncode == 0, done.stderr + logs
    assert (tmp_path / "came").exists()
    result = json.loads((tmp_path / "run" / "preflight" / "result.json").read_text())
    assert (result["code"], result["num_ranks"]) == (0, 2)


def test_nodes_that_fail_are_left_and_the_job_waits_for_others(cli: Cli, slurm: Lab, tmp_path: Path) -> None:
    script = rendered(cli, slurm, tmp_path)
    demanding = PreflightRequest(device="cpu", folders=(str(tmp_path),), min_free_bytes=1e18)
    write_document(RunDirectory(tmp_path / "run").preflight_request, demanding.as_document())
    job = slurm.run("sbatch", "--parsable", str(script)).stdout.strip()
    try:
        wait_for("the requeue", lambda: job_field(slurm, job, "Restarts") == "1")
        wait_for("the exclusion", lambda: job_field(slurm, job, "ExcNodeList") != "(null)")
        assert job_field(slurm, job, "JobState") == "PENDING"
        result = json.loads((tmp_path / "run" / "preflight" / "result.json").read_text())
        assert result["code"] == 75
        listed = slurm.run("scontrol", "show", "hostnames", job_field(slurm, job, "ExcNodeList")).stdout.split()
        assert sorted(listed) == sorted(result["drop"])
        assert not (tmp_path / "came").exists()
    finally:
        slurm.run("scancel", job)
