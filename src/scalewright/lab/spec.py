"""The specification of a practice cluster, and the programs and rights that it needs on the host."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

from scalewright.errors import ConfigError, EnvironmentFailedError

MAX_NODES = 128
MAX_GPUS_PER_NODE = 16

SCHEDULER = {
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "scontrol": "slurm-client",
    "sinfo": "slurm-client",
}
ACCOUNTING = {
    "slurmdbd": "slurmdbd",
    "sacctmgr": "slurm-client",
    "mariadbd": "mariadb-server-core",
}
NETWORK = {"ip": "iproute2", "tc": "iproute2"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LabSpec:
    """Size and kind of a practice cluster. Slurm believes these numbers; the host may have less."""

    num_nodes: int = 4
    num_gpus_per_node: int = 2
    num_cpus_per_node: int = 8
    memory_per_node_bytes: float = 16e9
    accounting: bool = True
    """Run slurmdbd and MariaDB. Without them there is no sacct, no QOS and no preemption."""
    network: bool = False
    """Give every node its own network namespace and link."""
    link_rate_bytes_per_s: float | None = None
    """Rate of every link in each direction; None: not limited."""
    link_latency_s: float = 0.0
    """From node to node, one way."""

    def __post_init__(self) -> None:
        _check_range("nodes", self.num_nodes, 1, MAX_NODES)
        _check_range("GPUs per node", self.num_gpus_per_node, 0, MAX_GPUS_PER_NODE)
        _check_range("CPUs per node", self.num_cpus_per_node, 1, 1024)
        if not self.network and (self.link_rate_bytes_per_s is not None or self.link_latency_s):
            raise ConfigError("a link rate or latency needs a network: set network as well")

    @property
    def programs(self) -> dict[str, str]:
        """The programs that it needs, and the Debian package of each."""
        return SCHEDULER | (ACCOUNTING if self.accounting else {}) | (NETWORK if self.network else {})


def _check_range(what: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{value} {what} are not possible: choose {low} to {high}")


def missing_programs(spec: LabSpec) -> dict[str, str]:
    return {name: package for name, package in spec.programs.items() if shutil.which(name, path=search_path()) is None}


def search_path() -> str:
    """PATH with the sbin folders, where the daemons are installed."""
    return os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"


def check_host(spec: LabSpec) -> None:
    """Refuse a host without root rights or without the programs, before anything starts."""
    if os.geteuid() != 0:
        raise EnvironmentFailedError(
            "a practice cluster starts daemons and namespaces, which needs root: run this command as root"
        )
    if missing := missing_programs(spec):
        packages = " ".join(sorted(set(missing.values())))
        names = ", ".join(missing)
        verb = "is" if len(missing) == 1 else "are"
        raise EnvironmentFailedError(
            f"{names} {verb} not installed: apt-get install --no-install-recommends {packages}"
        )
