"""Ranks over shaped links: one rank in each namespace of a network, like one rank per node of a cluster."""

from __future__ import annotations

import os
import subprocess
import sys

from scalewright.lab.network import ShapedNetwork
from scalewright.records.run_directory import RunDirectory

PORT = 20777
"""Each namespace has its own ports, so a fixed port is always free."""


def run_on_network(network: ShapedNetwork, directory: RunDirectory, *, kind: str, timeout_s: float) -> int:
    """Run a kind with one rank per namespace, over `eth0`. Returns the exit code of the first failed rank, else 0."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        for rank, name in enumerate(network.names):
            command = [sys.executable, "-m", "scalewright.run", kind, "--run-dir", str(directory.path.resolve())]
            started.append(
                subprocess.Popen(
                    network.command(name, command),
                    env=_environment(network, rank),
                    stdin=subprocess.DEVNULL,
                )
            )
        codes = [process.wait(timeout=timeout_s) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    return next((code for code in codes if code), 0)


def _environment(network: ShapedNetwork, rank: int) -> dict[str, str]:
    """The variables of torchrun for one process per node."""
    name = network.names[rank]
    return os.environ | {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(network.names)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_WORLD_SIZE": str(len(network.names)),
        "MASTER_ADDR": network.address(network.names[0]),
        "MASTER_PORT": str(PORT),
        "SLURMD_NODENAME": name,
        "GLOO_SOCKET_IFNAME": "eth0",
        "OMP_NUM_THREADS": "1",
    }
