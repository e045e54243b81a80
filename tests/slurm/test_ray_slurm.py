"""Ray inside an allocation of a real Slurm: all nodes join, a lost worker is survived, and everything ends in order."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from waiting import ENDED, job_field, wait_for, wait_for_end

if TYPE_CHECKING:
    from conftest import Cli
    from scalewright.lab.cluster import Lab

pytestmark = pytest.mark.slurm
RAY = "ray==2.60.0"

DRIVER = """
import json, os, pathlib, stat, sys, time, ray
folder = pathlib.Path(sys.argv[1])
token = pathlib.Path(os.environ["RAY_AUTH_TOKEN_PATH"])
ray.init(log_to_driver=False)

@ray.remote(num_cpus=1, max_retries=5, scheduling_strategy="SPREAD")
def task(number):
    (folder / f"on-{os.environ['SLURMD_NODENAME']}").touch()
    while not (folder / "go").exists():
        time.sleep(0.1)
    return number, os.environ["SLURMD_NODENAME"]

tasks = [task.remote(number) for number in range(8)]
alive = sum(node["Alive"] for node in ray.nodes())
done = json.dumps(dict(ray.get(tasks)))
(folder / "done").write_text(f"{alive} {oct(stat.S_IMODE(token.stat().st_mode))} {done}")
sys.exit(7)
"""


@pytest.fixture(scope="session")
def ray_venv() -> Path:
    """An environment with Ray, made once on a machine and kept: 300 MB."""
    folder = Path(tempfile.gettempdir()) / f"scalewright-{RAY}-{sys.version_info.minor}-{os.getuid()}"
    with Path(f"{folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "ready").exists():
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
            pip = [str(folder / "bin" / "pip"), "install", "-q", "--disable-pip-version-check", RAY]
            if subprocess.run(pip, check=False, capture_output=True).returncode:
                pytest.skip(f"{RAY} cannot be installed here")
            (folder / "ready").touch()
    return folder


def test_nodes_join_a_lost_worker_is_survived_and_the_job_ends_with_the_code_of_its_program(
    cli: Cli, slurm: Lab, tmp_path: Path, ray_venv: Path
) -> None:
    (tmp_path / "driver.py").write_text(DRIVER)
    run_dir = tmp_path / "a run"
    launched = cli(
        *("launch", "--site", "generic", "--ray", "--nodes", "3", "--gpus-per-node", "2", "--time", "00:20:00"),
        *("--env", "RAY_health_check_period_ms=500", "--env", "RAY_health_check_failure_threshold=3"),
        *("--env", "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES=80000000", "--no-requeue"),
        *("--venv", str(ray_venv), "--run-dir", str(run_dir), "--", "python", "driver.py", str(tmp_path)),
        env=slurm.env, cwd=tmp_path,
    )  # fmt: skip
    assert launched.returncode == 0, launched.stderr
    job = launched.stdout.strip()
    log = run_dir / "logs" / f"slurm-{job}.out"

    def shown() -> str:
        return log.read_text() if log.exists() else slurm.run("scontrol", "show", "job", job).stdout

    def nodes_with_tasks() -> list[str]:
        return sorted(path.name.removeprefix("on-") for path in tmp_path.glob("on-*"))

    def is_over() -> bool:
        return job_field(slurm, job, "JobState") in ENDED

    wait_for("tasks on every node", lambda: len(nodes_with_tasks()) == 3 or is_over(), shown=shown)
    assert not is_over(), shown()
    head, *_, lost = nodes_with_tasks()
    slurm.kill_node(lost)
    try:
        (tmp_path / "go").touch()
        assert wait_for_end(slurm, job, shown=shown) == "FAILED"
        assert job_field(slurm, job, "ExitCode") == "7:0", shown()
    finally:
        slurm.start_node(lost)
    alive, mode, done = (tmp_path / "done").read_text().split(maxsplit=2)
    assert (alive, mode) == ("3", "0o600")
    nodes = dict(json.loads(done))
    assert sorted(nodes, key=int) == [str(number) for number in range(8)]
    assert lost not in nodes.values()
    ended = json.loads((run_dir / "exit_info.json").read_text())
    assert (ended["code"], ended["reason"]) == (7, "the program ended with exit code 7: see logs")
    assert (run_dir / "logs" / "ray" / head / "gcs_server.out").exists(), shown()
    assert not list(run_dir.glob(".ray-token*"))
    assert not list(Path("/tmp").glob(f"ray-*-{job}/{head}"))
