"""Pre-flight over real links: the node behind a slow one is named, and a spare takes its place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scalewright.lab.network import ShapedNetwork
from scalewright.records.documents import write_document
from scalewright.records.preflight import PreflightRequest
from scalewright.records.run_directory import RunDirectory

pytestmark = pytest.mark.netns
NODES = ("n1", "n2", "n3", "n4")
RATE_BYTES_PER_S = 50e6
PORT = 20777


@pytest.fixture
def network() -> ShapedNetwork:
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    return ShapedNetwork(NODES, rate_bytes_per_s=RATE_BYTES_PER_S)


def start(network: ShapedNetwork, directory: RunDirectory, nodes: tuple[str, ...]) -> dict[str, subprocess.Popen[str]]:
    """One rank in the namespace of each of `nodes`, of the four that the job has."""
    started = {}
    for node in nodes:
        env = os.environ | {
            "RANK": str(NODES.index(node)), "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": network.address("n1"), "MASTER_PORT": str(PORT), "SLURMD_NODENAME": node,
            "SLURM_JOB_NODELIST": "n[1-4]", "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        command = [sys.executable, "-m", "scalewright.run", "preflight", "--run-dir", str(directory.path)]
        started[node] = subprocess.Popen(
            network.command(node, command), env=env, text=True, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
        )
    return started


def ends(started: dict[str, subprocess.Popen[str]]) -> set[int]:
    try:
        for process in started.values():
            process.communicate(timeout=150)
    finally:
        for process in started.values():
            process.kill()
            process.wait()
    return {process.returncode for process in started.values()}


def test_the_node_behind_a_slow_link_is_named_and_the_others_go_on(network: ShapedNetwork, tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    write_document(directory.preflight_request, PreflightRequest(num_spares=1).as_document())
    with network:
        network.shape("n3", RATE_BYTES_PER_S / 12)
        assert ends(start(network, directory, NODES)) == {0}
    result = json.loads(directory.preflight_result.read_text())
    slow = [f for f in result["findings"] if f["rule"] == "node-slow"]
    assert [f["evidence"]["nodes"] for f in slow] == [["n3"]]
    assert (result["keep"], result["drop"]) == (["n1", "n2", "n4"], ["n3"])
    assert directory.preflight_nodes.read_text() == "n1,n2,n4\n"
    assert directory.preflight_exclude.read_text() == "n3\n"
    assert {tuple(t["routes"]) for t in result["transports"]} == {("TCP/eth0",)}


def test_a_node_that_never_comes_is_named_and_the_job_asks_for_another(network: ShapedNetwork, tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    write_document(directory.preflight_request, PreflightRequest(deadline_s=15.0).as_document())
    with network:
        assert ends(start(network, directory, ("n1", "n2", "n4"))) == {75}
    result = json.loads(directory.preflight_result.read_text())
    assert [(f["rule"], f["evidence"]["nodes"]) for f in result["findings"]] == [("rank-missing", ["n3"])]
    assert result["keep"] == []
    assert directory.preflight_exclude.read_text() == "n3\n"
    ended = directory.read_exit_info()
    assert ended is not None
    assert ended.code == 75
    assert "n3" in ended.reason
