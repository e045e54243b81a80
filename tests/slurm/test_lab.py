"""The practice cluster: it is whole, it is real, it breaks and recovers, and it goes alone."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from waiting import PATIENCE_S, wait_for

from scalewright.lab.cluster import Lab
from scalewright.lab.daemon import start_ticks

if TYPE_CHECKING:
    from tests.conftest import Cli

pytestmark = pytest.mark.slurm


def submit(lab: Lab, *arguments: str) -> str:
    done = lab.run("sbatch", "--parsable", "--output=/dev/null", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def job_state(lab: Lab, job: str) -> str:
    return lab.run("squeue", "-h", "-j", job, "-o", "%T").stdout.strip()


def pid_namespaces() -> dict[Path, str]:
    """The PID namespace of every process that runs; those that ended and wait for their parent do not."""
    namespace_of = {}
    for entry in Path("/proc").glob("[0-9]*"):
        if start_ticks(int(entry.name)) is not None:
            with contextlib.suppress(OSError):  # ended in the meantime
                namespace_of[entry] = str((entry / "ns/pid").readlink())
    return namespace_of


def commands_in(namespace: str) -> list[str]:
    commands = []
    for entry in (entry for entry, own in pid_namespaces().items() if own == namespace):
        with contextlib.suppress(OSError):
            commands.append((entry / "comm").read_text().strip())
    return commands


def status_of(cli: Cli, lab_id: str) -> dict[str, Any]:
    result = cli("lab", "status", lab_id, "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    (status,) = json.loads(result.stdout)["instances"]
    return dict(status)


def test_status_and_env_describe_a_cluster_that_answers(cli: Cli, slurm: Lab) -> None:
    status = status_of(cli, slurm.id)
    assert status["is_ready"]
    assert {daemon["name"] for daemon in status["daemons"]} == {
        *("munged", "mariadbd", "slurmdbd", "slurmctld"),
        *(f"slurmd-{node}" for node in slurm.nodes),
    }
    assert [node["name"] for node in status["nodes"]] == slurm.nodes
    assert len(slurm.nodes) == 4
    assert slurm.id in cli("lab", "status").stdout
    exports = cli("lab", "env", slurm.id).stdout
    shell = subprocess.run(
        ["sh", "-c", f"{exports}\nsinfo -h -o %R"], capture_output=True, text=True, check=True, env={"PATH": os.defpath}
    )
    assert shell.stdout.split() == ["batch", "gpu", "debug"]


def test_jobs_find_nodes_with_names_gpus_features_and_switches(slurm: Lab) -> None:
    ask = 'echo "$(hostname) $CUDA_VISIBLE_DEVICES $SLURM_TOPOLOGY_ADDR"; getent hosts ' + slurm.nodes[3]
    result = slurm.run("srun", "-N4", "--gpus-per-node=2", "sh", "-c", ask)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    switches = ("leaf1", "leaf1", "leaf2", "leaf2")
    expected = {f"{node} 0,1 spine.{switch}.{node}" for node, switch in zip(slurm.nodes, switches, strict=True)}
    assert expected <= set(lines)
    assert sum(slurm.nodes[3] in line.split()[1:] for line in lines if line not in expected) == 4
    result = slurm.run("srun", "-N2", "--constraint=a100&leaf2", "hostname")
    assert sorted(result.stdout.split()) == slurm.nodes[2:], result.stderr


def test_accounting_remembers_a_job_and_knows_who_preempts_whom(slurm: Lab) -> None:
    job = submit(slurm, "--qos=high", "--wrap", "exit 7")

    def remembered() -> str:
        return slurm.run("sacct", "-n", "-X", "-P", "-j", job, "-o", "state,exitcode,qos,account").stdout.strip()

    # The parts of a record arrive one after the other.
    wait_for("its account", lambda: remembered() == "FAILED|7:0|high|lab")
    preempts = slurm.run("sacctmgr", "-n", "-P", "show", "qos", "format=name,preempt,preemptmode").stdout.split()
    assert sorted(preempts) == ["high|low|cluster", "low||requeue", "normal|low|cluster"]


def test_a_pending_job_gets_a_start_estimate(slurm: Lab) -> None:
    running = submit(slurm, "-N4", "--exclusive", "-t", "5", "--wrap", "sleep 300")
    waiting = submit(slurm, "-N4", "--exclusive", "-t", "5", "--wrap", "true")
    try:
        wait_for("the first to run", lambda: job_state(slurm, running) == "RUNNING")
        wait_for("an estimate", lambda: slurm.run("squeue", "-h", "-j", waiting, "-o", "%S").stdout.strip()[:2] == "20")
        starts, ends = (
            slurm.run("squeue", "-h", "-j", job, "-o", field).stdout.strip()
            for job, field in ((waiting, "%S"), (running, "%e"))
        )
        assert starts >= ends, "it cannot start before the job that holds every node may end"
    finally:
        slurm.run("scancel", running, waiting)


def test_a_killed_node_goes_down_and_comes_back(cli: Cli, slurm: Lab) -> None:
    node, other = slurm.nodes[3], slurm.nodes[2]
    job = submit(slurm, "-N2", f"--nodelist={other},{node}", "--no-requeue", "--wrap", "srun sleep 300")
    namespace = pid_namespaces()[Path(f"/proc/{slurm.daemons.pid(f'slurmd-{node}')}")]
    wait_for("its process", lambda: "sleep" in commands_in(namespace))
    slurm.kill_node(node)
    try:
        assert commands_in(namespace) == []
        result = cli("lab", "status", slurm.id)
        assert result.returncode == 1
        assert "not ready" in result.stdout
        slurm.wait_for_nodes([node], {"down", "down*"}, timeout_s=PATIENCE_S)
        wait_for("the job to be lost", lambda: job_state(slurm, job) in ("", "NODE_FAIL"))
    finally:
        slurm.start_node(node)
    assert slurm.run("srun", "-N1", f"--nodelist={node}", "hostname").stdout.split() == [node]
    assert status_of(cli, slurm.id)["is_ready"]


def test_the_queue_outlives_a_restart_of_the_controller(slurm: Lab) -> None:
    running, held = submit(slurm, "--wrap", "sleep 300"), submit(slurm, "--hold", "--wrap", "true")
    try:
        wait_for("the job to run", lambda: job_state(slurm, running) == "RUNNING")
        before = slurm.daemons.pid("slurmctld")
        slurm.restart_controller()
        assert slurm.daemons.pid("slurmctld") not in (None, before)
        assert (job_state(slurm, running), job_state(slurm, held)) == ("RUNNING", "PENDING")
    finally:
        slurm.run("scancel", running, held)
