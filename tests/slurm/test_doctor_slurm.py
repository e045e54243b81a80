"""`scalewright doctor`, and scalewright inside jobs, on a real Slurm cluster."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from cluster import Cluster
    from tests.conftest import Cli

pytestmark = pytest.mark.slurm


def doctor_checks(cli: Cli, slurm: Cluster) -> dict[str, dict[str, Any]]:
    result = cli("doctor", "--json", env={"SLURM_CONF": str(slurm.conf)})
    assert result.returncode == 0, result.stderr
    checks = json.loads(result.stdout)["checks"]
    assert all({"name", "area", "state", "detail"} <= set(check) for check in checks)
    return {check["name"]: check for check in checks}


def test_two_nodes_are_idle(slurm: Cluster) -> None:
    result = slurm.run("sinfo", "-h", "-N", "-o", "%N %T %G")
    assert result.stdout.splitlines() == ["n1 idle gpu:a100:2", "n2 idle gpu:a100:2"], result.stderr


def test_doctor_reports_the_version_and_the_nodes(cli: Cli, slurm: Cluster) -> None:
    version = slurm.run("sinfo", "--version").stdout.strip()
    assert version.startswith("slurm")
    check = doctor_checks(cli, slurm)["slurm"]
    assert check["state"] == "ok"
    assert version in check["detail"]
    assert "2 nodes" in check["detail"]


def test_doctor_reports_that_accounting_is_missing(cli: Cli, slurm: Cluster) -> None:
    assert doctor_checks(cli, slurm)["slurm accounting"]["state"] == "missing"


def test_a_job_sees_the_fake_gpus(slurm: Cluster) -> None:
    result = slurm.run("srun", "-N2", "--gpus-per-node=2", "bash", "-c", 'echo "$CUDA_VISIBLE_DEVICES"')
    assert result.stdout.splitlines() == ["0,1", "0,1"], result.stderr


def test_a_job_runs_scalewright_on_every_node(cli: Cli, slurm: Cluster) -> None:
    version = cli("--version").stdout.strip()
    assert version
    scalewright = shlex.quote(str(Path(sys.executable).with_name("scalewright")))
    output = slurm.directory / "job.out"
    job = slurm.run(
        *("sbatch", "--wait", "-N2", "--ntasks-per-node=1", f"--output={output}"),
        *("--wrap", f"srun {scalewright} --version"),
    )
    assert job.returncode == 0, job.stderr + output.read_text()
    assert output.read_text().splitlines() == [version, version]
