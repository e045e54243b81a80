"""The status of an instance: its daemons, nodes and ports."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from scalewright.lab.cluster import USABLE, Lab
from scalewright.lab.configuration import cluster_nodes
from scalewright.records.documents import document


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonStatus:
    name: str
    pid: int | None
    """None: it is not running."""
    log: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    name: str
    address: str
    port: int
    state: str
    """State in Slurm's words; `unknown` if no controller answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabStatus:
    id: str
    directory: str
    slurm_conf: str
    is_ready: bool
    accounting: bool
    memory_control: str
    num_gpus_per_node: int
    first_port: int
    last_port: int
    network: str
    """Address range of the nodes' links, such as 10.100.0.0/16; empty: they share the host's network."""
    link_rate_bytes_per_s: float | None
    daemons: list[DaemonStatus]
    nodes: list[NodeStatus]


def lab_status(lab: Lab) -> LabStatus:
    daemons = [DaemonStatus(name=n, pid=lab.daemons.pid(n), log=str(lab.paths.log(n))) for n in lab.daemons.names()]
    running = {daemon.name for daemon in daemons if daemon.pid is not None}
    states = lab.node_states() if "slurmctld" in running else {}
    nodes = [
        NodeStatus(name=node.name, address=node.address, port=node.port, state=states.get(node.name, "unknown"))
        for node in cluster_nodes(lab.paths, lab.state)
    ]
    state = lab.state
    return LabStatus(
        id=lab.id,
        directory=str(lab.directory),
        slurm_conf=str(lab.conf),
        is_ready=len(running) == len(daemons) and all(node.state in USABLE for node in nodes),
        accounting=state.spec.accounting,
        memory_control=state.memory_control,
        num_gpus_per_node=state.spec.num_gpus_per_node,
        first_port=state.first_port,
        last_port=state.first_port + state.num_ports - 1,
        network=f"10.{state.network_index}.0.0/16" if state.network_index else "",
        link_rate_bytes_per_s=state.spec.link_rate_bytes_per_s,
        daemons=daemons,
        nodes=nodes,
    )


def as_document(statuses: list[LabStatus]) -> dict[str, Any]:
    return document("lab-status", {"instances": [asdict(status) for status in statuses]})
