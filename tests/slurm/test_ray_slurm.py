"""Ray inside an allocation of a real Slurm: all nodes join, a lost worker is survived, and everything ends in order."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from waiting import ENDED, job_field, wait_for, wait_for_end

import scalewright

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
        # Jobs that run scalewright itself find it, and what it needs, behind Ray's own packages.
        here = [sysconfig.get_path("purelib"), str(Path(scalewright.__file__).parents[1])]
        site = next((folder / "lib").glob("python*")) / "site-packages"
        (site / "zz_tests.pth").write_text("\n".join(here))
    return folder


QUICK = (
    *("--env", "RAY_health_check_period_ms=500", "--env", "RAY_health_check_failure_threshold=3"),
    *("--env", "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES=80000000", "--no-requeue"),
)
"""Lost nodes are seen soon, and up to four of them share the memory of one machine."""


def test_nodes_join_a_lost_worker_is_survived_and_the_job_ends_with_the_code_of_its_program(
    cli: Cli, slurm: Lab, tmp_path: Path, ray_venv: Path
) -> None:
    (tmp_path / "driver.py").write_text(DRIVER)
    run_dir = tmp_path / "a run"
    launched = cli(
        *("launch", "--site", "generic", "--ray", "--nodes", "3", "--gpus-per-node", "2", "--time", "00:20:00"),
        *QUICK,
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


WAITING_FILTER = """
import os, pathlib, time
FOLDER = pathlib.Path(__file__).parent

def keep(text, url):
    node = os.environ.get("SLURMD_NODENAME", "")
    while node and not (FOLDER / "go").exists():
        (FOLDER / f"on-{node}").touch()
        time.sleep(0.1)
    return "7" not in text.split()[1]
"""
PIPELINE = """
schema = "scalewright.data-pipeline/1"
[read]
paths = ["docs"]
chunk = "4 kB"
[[filter]]
callable = "keep.py:keep"
[deduplicate]
exact = true
[write]
format = "jsonl"
"""


def written(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.jsonl*") if path.is_file()}


def test_a_pipeline_on_ray_survives_a_lost_node_and_gives_the_bytes_of_one_machine(
    cli: Cli, slurm: Lab, tmp_path: Path, ray_venv: Path
) -> None:
    (tmp_path / "docs").mkdir()
    for number in range(12):
        rows = [json.dumps({"text": f"document {number * 40 + row} says {'so ' * (row % 9)}"}) for row in range(40)]
        (tmp_path / "docs" / f"{number:02d}.jsonl").write_text("\n".join(rows) + "\n")
    (tmp_path / "keep.py").write_text(WAITING_FILTER)
    (tmp_path / "pipeline.toml").write_text(PIPELINE)
    alone = cli("data", "run", "pipeline.toml", "--out", "alone", "--workers", "1", cwd=tmp_path)
    assert alone.returncode == 0, alone.stderr
    launched = cli(
        *("launch", "--site", "generic", "--ray", "--nodes", "4", "--gpus-per-node", "2", "--time", "00:20:00"), *QUICK,
        *("--venv", str(ray_venv), "--run-dir", str(tmp_path / "run")),
        *("--", "python", "-m", "scalewright", "data", "run", "pipeline.toml", "--out", "on-ray", "--ray"),
        env=slurm.env, cwd=tmp_path,
    )  # fmt: skip
    assert launched.returncode == 0, launched.stderr
    job = launched.stdout.strip()
    log = tmp_path / "run" / "logs" / f"slurm-{job}.out"

    def shown() -> str:
        return log.read_text() if log.exists() else slurm.run("scontrol", "show", "job", job).stdout

    def busy_nodes() -> list[str]:
        return sorted(path.name.removeprefix("on-lab") for path in tmp_path.glob("on-lab*"))

    wait_for(
        "tasks on every node",
        lambda: len(busy_nodes()) == 4 or job_field(slurm, job, "JobState") in ENDED,
        shown=shown,
    )
    assert len(busy_nodes()) == 4, shown()
    lost = f"lab{busy_nodes()[-1]}"
    slurm.kill_node(lost)
    try:
        (tmp_path / "go").touch()
        assert wait_for_end(slurm, job, shown=shown) == "COMPLETED", shown()
    finally:
        slurm.start_node(lost)
    assert written(tmp_path / "on-ray") == written(tmp_path / "alone") != {}
