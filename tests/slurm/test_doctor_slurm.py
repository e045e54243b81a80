"""`scalewright doctor`, and scalewright inside jobs, on a real Slurm cluster."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from scalewright.lab.cluster import Lab

if TYPE_CHECKING:
    from tests.conftest import Cli

pytestmark = pytest.mark.slurm


def doctor_checks(cli: Cli, lab: Lab) -> dict[str, dict[str, Any]]:
    result = cli("doctor", "--json", env={"SLURM_CONF": str(lab.conf)})
    assert result.returncode == 0, result.stderr
    checks = json.loads(result.stdout)["checks"]
    assert all({"name", "area", "state", "detail"} <= set(check) for check in checks)
    return {check["name"]: check for check in checks}


def test_doctor_reports_the_version_the_nodes_and_the_accounting(cli: Cli, slurm: Lab) -> None:
    version = slurm.run("sinfo", "--version").stdout.strip()
    assert version.startswith("slurm")
    checks = doctor_checks(cli, slurm)
    assert checks["slurm"]["state"] == "ok"
    assert version in checks["slurm"]["detail"]
    assert "4 nodes" in checks["slurm"]["detail"]
    assert (checks["slurm accounting"]["state"], checks["slurm accounting"]["detail"]) == ("ok", slurm.id)


def test_doctor_reports_that_accounting_is_missing(cli: Cli, slurm_without_accounting: Lab) -> None:
    assert doctor_checks(cli, slurm_without_accounting)["slurm accounting"]["state"] == "missing"


def test_a_job_runs_scalewright_on_every_node(cli: Cli, slurm: Lab, tmp_path: Path) -> None:
    version = cli("--version").stdout.strip()
    assert version
    scalewright = shlex.quote(str(Path(sys.executable).with_name("scalewright")))
    output = tmp_path / "job.out"
    job = slurm.run(
        *("sbatch", "--wait", "-N2", "--ntasks-per-node=1", f"--output={output}"),
        *("--wrap", f"srun {scalewright} --version"),
    )
    assert job.returncode == 0, job.stderr + output.read_text()
    assert output.read_text().splitlines() == [version, version]
