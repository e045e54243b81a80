"""Instances side by side: each has its own folder, names, ports and processes, and goes without touching the others."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from waiting import wait_for

from scalewright.lab.cluster import Lab, remove_instance
from scalewright.lab.state import instances

if TYPE_CHECKING:
    from tests.conftest import Cli, Refused

pytestmark = [pytest.mark.slurm, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


def processes_of(directory: Path) -> set[int]:
    """The processes whose command or environment names a file of this folder."""
    needle, pids = os.fsencode(directory) + b"/", set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:  # ended in the meantime
            continue
        if needle in text:
            pids.add(int(entry.name))
    return pids


def is_listening(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def files_of(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_a_second_instance_runs_beside_the_first_and_goes_alone(cli: Cli, slurm_without_accounting: Lab) -> None:
    first = slurm_without_accounting
    started = cli("lab", "up", "beside", "--nodes", "1", "--gpus", "0", "--no-accounting")
    assert started.returncode == 0, started.stderr
    second = Lab.open("beside")
    try:
        assert f"export SLURM_CONF={second.conf}" in started.stdout
        assert f"lab down {second.id}" in started.stderr
        daemons, files = processes_of(first.directory), files_of(first.directory)
        ports = [
            {lab.state.first_port + i for lab in [each] for i in range(lab.state.num_ports)} for each in (first, second)
        ]
        assert not ports[0] & ports[1]
        assert second.run("srun", "hostname").stdout.split() == ["beside-n1"]
        assert first.run("srun", "-N2", "hostname").stdout.split() != []
        job = second.run("sbatch", "--output=/dev/null", "--wrap", "sleep 300")
        assert job.returncode == 0, job.stderr
        assert is_listening(second.state.controller_port)
    finally:
        gone = cli("lab", "down", "beside")
    assert gone.returncode == 0, gone.stderr
    assert not second.directory.exists()
    assert processes_of(second.directory) == set()
    assert not is_listening(second.state.controller_port)
    assert list(Path("/sys/fs/cgroup").glob("*/slurm_beside-*")) == []
    assert processes_of(first.directory) == daemons
    assert files_of(first.directory) == files
    assert first.run("srun", "-N2", "true").returncode == 0


def test_without_accounting_jobs_run_and_sacct_says_why_it_cannot(slurm_without_accounting: Lab) -> None:
    lab = slurm_without_accounting
    job = lab.run("sbatch", "--wait", "--output=/dev/null", "--wrap", "exit 7")
    assert job.returncode == 7, job.stderr
    remembered = lab.run("sacct")
    assert remembered.returncode != 0
    assert "accounting storage is disabled" in remembered.stderr


def test_a_start_that_fails_cleans_up_and_names_the_log(cli: Cli, refused: Refused, tmp_path: Path) -> None:
    broken = tmp_path / "slurmctld"
    broken.write_text("#!/bin/sh\necho 'fatal: planted' >&2\nexit 1\n")
    broken.chmod(0o755)
    result = cli(
        *("lab", "up", "broken", "--nodes", "1", "--no-accounting"), env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    )
    sentence = refused(result, 3)
    (paths,) = [instance for instance in instances() if instance.id == "broken"]
    log = paths.log("slurmctld")
    assert "fatal: planted" in sentence
    assert str(log) in sentence
    assert "planted" in log.read_text()
    assert files_of(paths.directory) == {"log"}
    assert processes_of(paths.directory) == set()
    assert "broken" not in cli("lab", "status").stdout
    assert cli("lab", "down", "broken").returncode == 0
    assert not paths.directory.exists()


def test_a_start_that_is_ended_leaves_no_daemons() -> None:
    """TERM while the daemons start, as from `timeout` or a scheduler."""
    command = [sys.executable, "-m", "scalewright", "lab", "up", "ended", "--nodes", "1", "--no-accounting"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for("a daemon", lambda: any(p.id == "ended" and processes_of(p.directory) for p in instances()))
        process.terminate()
        assert process.wait(timeout=60) in (0, 128 + signal.SIGTERM)  # 0: it was up before the signal came
    finally:
        process.kill()
        process.wait()
    (paths,) = [instance for instance in instances() if instance.id == "ended"]
    if process.returncode:
        assert processes_of(paths.directory) == set()
        assert files_of(paths.directory) == {"log"}
    remove_instance(paths)
    assert not paths.directory.exists()


def test_links_of_a_lab_carry_the_traffic_of_its_jobs(cli: Cli) -> None:
    started = cli("lab", "up", "links", "--nodes", "2", "--no-accounting", "--network", "80 Mbit/s", "--json")
    assert started.returncode == 0, started.stderr
    lab = Lab.open("links")
    try:
        (status,) = json.loads(started.stdout)["instances"]
        assert status["link_rate_bytes_per_s"] == 10e6
        ask = "getent hosts $(hostname); ls /sys/class/net"
        seen = lab.run("srun", "-N2", "--label", "sh", "-c", ask).stdout.splitlines()
        assert lab.network is not None
        for rank, node in enumerate(lab.nodes):
            words = " ".join(line for line in seen if line.startswith(f"{rank}:")).split()
            assert lab.network.address(node) in words
            assert {"eth0", "lo"} <= set(words)
        shaped = subprocess.run(
            lab.network.command(lab.nodes[0], ["tc", "qdisc", "show", "dev", "eth0"]),
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        assert "tbf" in shaped
        assert "80Mbit" in shaped
    finally:
        assert cli("lab", "down", "links").returncode == 0
    namespaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert "links-n" not in namespaces


def test_what_cannot_be_started_is_one_sentence(cli: Cli, refused: Refused, slurm_without_accounting: Lab) -> None:
    assert "not installed" in refused(cli("lab", "up", env={"PATH": "/nonexistent"}), 3)
    assert "slurm-client" in refused(cli("lab", "up", env={"PATH": "/nonexistent"}), 3)
    assert "129 nodes" in refused(cli("lab", "up", "--nodes", "129"))
    assert "letter" in refused(cli("lab", "up", "../x"))
    assert "such as" in refused(cli("lab", "up", "--network", "fast"))
    assert "exists already" in refused(cli("lab", "up", slurm_without_accounting.id, "--no-accounting"))
    assert "practice cluster" in refused(cli("lab", "down", "nosuchlab"))
    assert "--all" in refused(cli("lab", "down"))
    assert "as root" in refused(cli("lab", "up", prefix=("unshare", "--user")), 3)
