"""Rules for placement on a node: pure functions from its topology to findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from scalewright import units
from scalewright.catalog.library import Catalog
from scalewright.errors import UnknownNameError
from scalewright.here.topology import FABRIC, Gpu, Topology, cpu_list
from scalewright.records.node_devices import UNKNOWN_NUMA, Nic
from scalewright.records.types import Finding, Rule

KERNEL_PCI = "Linux, Documentation/ABI/testing/sysfs-bus-pci"
KERNEL_IB = "Linux, Documentation/ABI/stable/sysfs-class-infiniband"
NCCL_GUIDE = "NVIDIA, NCCL documentation, Troubleshooting"
LUMI_GUIDE = "LUMI documentation, GPU binding"
SMI_MANUAL = "NVIDIA, nvidia-smi manual, topo"
RULES: tuple[Rule, ...] = (
    Rule(id="nic-far", severity="warning", title="a GPU's nearest network port is on another NUMA node",
         source=NCCL_GUIDE, why="Its traffic crosses the link between sockets, and GPUDirect RDMA is slow or off."),
    Rule(id="nic-shared", severity="warning", title="many GPUs share a network port", source=NCCL_GUIDE,
         why="In a collective all GPUs of a node send at once, and each gets a share of the port."),
    Rule(id="nic-down", severity="warning", title="a fabric port is down", source=KERNEL_IB,
         why="Its GPUs share the other ports."),
    Rule(id="cpus-far", severity="warning", title="this process may not run near a GPU", source=LUMI_GUIDE,
         why="Kernel launches and copies to that GPU cross the link between sockets."),
    Rule(id="pcie-narrow", severity="error", title="a PCIe link trained narrow", source=KERNEL_PCI,
         why="Half the lanes give half the rate, permanently."),
    Rule(id="pcie-slow", severity="info", title="a PCIe link runs below its generation", source=KERNEL_PCI,
         why="Idle links may save power; under load a healthy link runs at its highest speed."),
    Rule(id="nvlink-missing", severity="error", title="NVLink links are missing", source=SMI_MANUAL,
         why="Collectives run at the rate of the weakest pair."),
)  # fmt: skip
BY_ID = {rule.id: rule for rule in RULES}
GPUS_PER_NIC = 2
"""As on LUMI, Frontier and Leonardo. If more GPUs share a port, the user should know it before sizing a job."""
NEARNESS = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Connections over PCIe, nearest first (nvidia-smi topo)."""


def catalogued_links(catalog: Catalog) -> Callable[[str], int | None]:
    """A function from a GPU's name to its number of NVLink links; None for other links and unknown names."""

    def links(name: str) -> int | None:
        try:
            entry = catalog.accelerator(name)
        except UnknownNameError:
            return None
        num = entry.num_scale_up_links
        return round(num.value) if num is not None and (entry.scale_up_link or "").startswith("nvlink") else None

    return links


def placement_findings(topology: Topology, *, num_links: Callable[[str], int | None] = lambda _: None) -> list[Finding]:
    """Findings of all rules. `num_links` gives the number of NVLink links of a GPU by name, if known."""
    return [
        *_far_nics(topology),
        *_shared_nics(topology),
        *_ports_down(topology),
        *_far_cpus(topology),
        *_links(topology),
        *_nvlink(topology, num_links),
    ]


def _finding(rule: str, message: str, evidence: Mapping[str, Any], next_step: str) -> Finding:
    rule_entry = BY_ID[rule]
    return Finding(
        rule=rule,
        severity=rule_entry.severity,
        message=message,
        evidence=dict(evidence),
        next_step=next_step,
        source=rule_entry.source,
    )


def fabric_nics(topology: Topology) -> list[Nic]:
    return [nic for nic in topology.nics if nic.kind in FABRIC]


def nearest_nics(topology: Topology, gpu: Gpu) -> list[Nic]:
    """Fabric ports nearest to a GPU: by its connections, else those of its NUMA node; empty if both are unknown."""
    up = [nic for nic in fabric_nics(topology) if nic.is_up]
    connections = {nic.name: topology.connection(gpu.label, nic.name) for nic in up}
    distance = {name: NEARNESS.index(kind) for name, kind in connections.items() if kind in NEARNESS}
    if distance:
        shortest = min(distance.values())
        return [nic for nic in up if distance.get(nic.name) == shortest]
    return [nic for nic in up if gpu.numa != UNKNOWN_NUMA and nic.numa == gpu.numa]


def _is_far(topology: Topology, gpu: Gpu, nic: Nic) -> bool:
    connection = topology.connection(gpu.label, nic.name)
    if connection in NEARNESS:
        return connection == "SYS"
    return UNKNOWN_NUMA not in (gpu.numa, nic.numa) and gpu.numa != nic.numa


def _far_nics(topology: Topology) -> Iterator[Finding]:
    up = [nic for nic in fabric_nics(topology) if nic.is_up]
    for gpu in topology.gpus if up else ():
        if all(_is_far(topology, gpu, nic) for nic in up):
            yield _finding(
                "nic-far",
                f"{gpu.label} is on NUMA node {_number(gpu.numa)}, which has no fabric port",
                {"gpu": gpu.label, "numa": gpu.numa, "nics": {nic.name: nic.numa for nic in up}},
                "use GPUs near a port for jobs that use part of a node; check the slots of the adapters",
            )


def _shared_nics(topology: Topology) -> Iterator[Finding]:
    up = [nic for nic in fabric_nics(topology) if nic.is_up]
    if up and len(topology.gpus) > GPUS_PER_NIC * len(up):
        yield _finding(
            "nic-shared",
            f"{len(topology.gpus)} GPUs share {len(up)} fabric port{'s' if len(up) > 1 else ''}",
            {"num_gpus": len(topology.gpus), "num_ports": len(up)},
            "for layouts that cross nodes, divide the rate of a port by the GPUs that share it",
        )


def _ports_down(topology: Topology) -> Iterator[Finding]:
    for nic in fabric_nics(topology):
        if not nic.is_up:
            yield _finding(
                "nic-down",
                f"{nic.name} ({nic.kind}) is not active",
                {"nic": nic.name},
                "ask the operators, or remove it from NCCL_IB_HCA; storage ports may be down on purpose",
            )


def _far_cpus(topology: Topology) -> Iterator[Finding]:
    cpus = {node.number: set(node.cpus) for node in topology.numa_nodes}
    for gpu in topology.gpus:
        near = cpus.get(gpu.numa)
        if near and not near & set(topology.allowed_cpus):
            yield _finding(
                "cpus-far",
                f"this process may use CPUs {cpu_list(topology.allowed_cpus)}, none of them on NUMA node {gpu.numa} "
                f"of {gpu.label}",
                {
                    "gpu": gpu.label,
                    "near_cpus": cpu_list(sorted(near)),
                    "allowed_cpus": cpu_list(topology.allowed_cpus),
                },
                "bind each rank to the CPUs of its GPU: srun --cpu-bind, or --gpu-bind=closest",
            )


def _links(topology: Topology) -> Iterator[Finding]:
    links = [(gpu.label, gpu.link) for gpu in topology.gpus] + [(nic.name, nic.link) for nic in fabric_nics(topology)]
    for name, link in links:
        if link is None:
            continue
        if link.num_lanes < link.max_num_lanes:
            yield _finding(
                "pcie-narrow",
                f"{name} has {link.num_lanes} of {link.max_num_lanes} PCIe lanes",
                {"device": name, "num_lanes": link.num_lanes, "max_num_lanes": link.max_num_lanes},
                "drain the node, and reseat or replace the card",
            )
        if link.transfers_per_s < link.max_transfers_per_s:
            yield _finding(
                "pcie-slow",
                f"{name} runs its PCIe link at {link.transfers_per_s / units.GIGA:g} of "
                f"{link.max_transfers_per_s / units.GIGA:g} GT/s now",
                {"device": name, "transfers_per_s": link.transfers_per_s,
                 "max_transfers_per_s": link.max_transfers_per_s},
                "look again while copies run (bench memory): only a link that stays slow under load is faulty",
            )  # fmt: skip


def _nvlink(topology: Topology, num_links: Callable[[str], int | None]) -> Iterator[Finding]:
    """GPUs with fewer links than the others, or fewer than the catalogue says.

    With an NVLink switch, every pair shows all links of a GPU. Without a switch, the links of a GPU are divided among
    its peers, and some peers may not be visible here. Then only a GPU without any link is compared with the catalogue.
    """
    if len(topology.gpus) < 2 or not topology.connections:
        return
    counts = {gpu.label: _nvlink_counts(topology, gpu) for gpu in topology.gpus}
    most = max(sum(each) for each in counts.values())
    for gpu in topology.gpus:
        total, widest, catalogued = sum(counts[gpu.label]), max(counts[gpu.label]), num_links(gpu.name)
        below_catalogue = catalogued is not None and (total == 0 or catalogued / 2 < widest < catalogued)
        if total == most and not below_catalogue:
            continue
        expected = f"the catalogue says {catalogued}" if below_catalogue else f"others have {most} over all pairs"
        yield _finding(
            "nvlink-missing",
            f"{gpu.label} has {widest if below_catalogue else total} NVLink links, {expected}",
            {"gpu": gpu.label, "links": counts[gpu.label], "most_of_others": most, "catalogued": catalogued},
            "see nvidia-smi nvlink --status and the fabric manager; use other nodes until it is repaired",
        )


def _nvlink_counts(topology: Topology, gpu: Gpu) -> list[int]:
    others = (other for other in topology.gpus if other.number != gpu.number)
    connections = (topology.connection(gpu.label, other.label) or "" for other in others)
    return [int(kind[2:]) if kind.startswith("NV") else 0 for kind in connections]


def _number(numa: int) -> str:
    return "?" if numa == UNKNOWN_NUMA else str(numa)
