"""Pre-flight under a real srun: in an allocation, as the first step of a rendered job, and nodes that fail are left."""

from __future__ import annotations

import json
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from waiting import PATIENCE_S, job_field, wait_for, wait_for_end, without_pause

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
    script = tmp_path / "job.sh"
    script.write_text(without_pause(dry.stdout))
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
        wait_for("its place in the queue", lambda: job_field(slurm, job, "JobState") == "PENDING")
        result = json.loads((tmp_path / "run" / "preflight" / "result.json").read_text())
        assert result["code"] == 75
        listed = slurm.run("scontrol", "show", "hostnames", job_field(slurm, job, "ExcNodeList")).stdout.split()
        assert sorted(listed) == sorted(result["drop"])
        assert not (tmp_path / "came").exists()
    finally:
        slurm.run("scancel", job)


# A node with another image than the others: its ranks would talk in other versions.
PYTHON = """#!/bin/sh
if [ "$SLURMD_NODENAME" = @BAD@ ]; then export APPTAINER_CONTAINER=/images/other.sif; fi
exec @PYTHON@ "$@"
"""
SHOW = """
import os, pathlib, sys
told = " ".join(os.environ[name] for name in ("SLURMD_NODENAME", "WORLD_SIZE", "MASTER_ADDR"))
pathlib.Path(sys.argv[1], os.environ["RANK"]).write_text(told)
"""


def described(slurm: Lab, job: str, log: Path) -> str:
    text = log.read_text() if log.exists() else "it has said nothing"
    return slurm.run("scontrol", "show", "job", job).stdout + text


def test_a_bad_node_is_left_out_where_there_is_a_spare(cli: Cli, slurm: Lab, tmp_path: Path) -> None:
    """Through srun and through torchrun at once: the run is on the good nodes, and meets on the first of them."""
    bad, *good = slurm.nodes[:3]
    python = tmp_path / "python"
    python.write_text(PYTHON.replace("@BAD@", bad).replace("@PYTHON@", sys.executable))
    python.chmod(0o755)
    jobs = {}
    for launcher in ("srun", "torchrun"):
        (tmp_path / launcher).mkdir()
        launched = cli(
            *("launch", "--site", "generic", "--nodes", "2", "--spares", "1", "--gpus-per-node", "1"),
            *("--time", "00:15:00", "--launcher", launcher, "--directive", f"nodelist={','.join([bad, *good])}"),
            *("--run-dir", str(tmp_path / f"run-{launcher}"), "--", str(python), "-c", SHOW, str(tmp_path / launcher)),
            env=slurm.env,
            cwd=tmp_path,
        )
        assert launched.returncode == 0, launched.stderr
        jobs[launcher] = launched.stdout.strip()
    for launcher, job in jobs.items():
        directory = RunDirectory(tmp_path / f"run-{launcher}")
        log = directory.logs / f"slurm-{job}.out"
        state = wait_for_end(slurm, job, shown=partial(described, slurm, job, log))
        assert state == "COMPLETED", log.read_text()
        result = json.loads(directory.preflight_result.read_text())
        assert (result["code"], result["keep"], result["drop"]) == (0, good, [bad]), result["reason"]
        assert {f["rule"] for f in result["findings"] if f["severity"] == "error"} == {"versions-differ"}
        assert f"running on {','.join(good)}" in log.read_text()
        rank_texts = [(tmp_path / launcher / str(rank)).read_text() for rank in range(2)]
        assert sorted(rank_texts) == sorted(f"{host} 2 {good[0]}" for host in good)
        assert directory.preflight_exclude.read_text() == f"{bad}\n"
