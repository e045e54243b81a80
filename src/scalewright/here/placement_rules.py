"""Bad placement on a node: pure functions from its topology to findings."""

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
         why="In a collective all GPUs of a node send at once, each with its share of the port."),
    Rule(id="nic-down", severity="warning", title="a fabric port is down", source=KERNEL_IB,
         why="Its GPUs share the other ports."),
    Rule(id="cpus-far", severity="warning", title="this process may not run near a GPU", source=LUMI_GUIDE,
         why="Launches and copies to that GPU cross the link between sockets."),
    Rule(id="pcie-narrow", severity="error", title="a PCIe link trained narrow", source=KERNEL_PCI,
         why="Half the lanes are half the rate, for good."),
    Rule(id="pcie-slow", severity="info", title="a PCIe link runs below its generation", source=KERNEL_PCI,
         why="Idle links may save power; under load a healthy one runs at its highest speed."),
    Rule(id="nvlink-missing", severity="error", title="NVLink links are missing", source=SMI_MANUAL,
         why="Collectives run at the rate of the weakest pair."),
)  # fmt: skip
BY_ID = {rule.id: rule for rule in RULES}
GPUS_PER_NIC = 2
"""As on LUMI, Frontier and Leonardo; more than this is worth knowing before a job is sized."""
NEARNESS = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Ways over PCIe, nearest first (nvidia-smi topo)."""


def catalogued_links(catalog: Catalog) -> Callable[[str], int | None]:
    """How many NVLink links a GPU has, by the name its driver gives it; None for other links and unknown names."""

    def links(name: str) -> int | None:
        try:
            entry = catalog.accelerator(name)
        except UnknownNameError:
            return None
        num = entry.num_scale_up_links
        return round(num.value) if num is not None and (entry.scale_up_link or "").startswith("nvlink") else None

    return links


def judge(found: Topology, *, num_links: Callable[[str], int | None] = lambda _: None) -> list[Finding]:
    """All findings; `num_links` tells how many NVLink links a GPU of this name has, where that is known."""
    judges: tuple[Callable[[], Iterator[Finding]], ...] = (
        lambda: _far_nics(found),
        lambda: _shared_nics(found),
        lambda: _ports_down(found),
        lambda: _far_cpus(found),
        lambda: _links(found),
        lambda: _nvlink(found, num_links),
    )
    return [finding for ask in judges for finding in ask()]


def _finding(rule: str, message: str, evidence: Mapping[str, Any], next_step: str) -> Finding:
    about = BY_ID[rule]
    return Finding(
        rule=rule,
        severity=about.severity,
        message=message,
        evidence=dict(evidence),
        next_step=next_step,
        source=about.source,
    )


def fabric_nics(found: Topology) -> list[Nic]:
    return [nic for nic in found.nics if nic.kind in FABRIC]


def nearest_nics(found: Topology, gpu: Gpu) -> list[Nic]:
    """Fabric ports closest to a GPU: by the tool's matrix, else those of its NUMA node; empty where neither tells."""
    up = [nic for nic in fabric_nics(found) if nic.is_up]
    ways = {nic.name: found.way(gpu.label, nic.name) for nic in up}
    known = {name: NEARNESS.index(way) for name, way in ways.items() if way in NEARNESS}
    if known:
        best = min(known.values())
        return [nic for nic in up if known.get(nic.name) == best]
    return [nic for nic in up if gpu.numa != UNKNOWN_NUMA and nic.numa == gpu.numa]


def _is_far(found: Topology, gpu: Gpu, nic: Nic) -> bool:
    way = found.way(gpu.label, nic.name)
    if way in NEARNESS:
        return way == "SYS"
    return UNKNOWN_NUMA not in (gpu.numa, nic.numa) and gpu.numa != nic.numa


def _far_nics(found: Topology) -> Iterator[Finding]:
    up = [nic for nic in fabric_nics(found) if nic.is_up]
    for gpu in found.gpus if up else ():
        if all(_is_far(found, gpu, nic) for nic in up):
            yield _finding(
                "nic-far",
                f"{gpu.label} is on NUMA node {_number(gpu.numa)}, and no fabric port is on the same one",
                {"gpu": gpu.label, "numa": gpu.numa, "nics": {nic.name: nic.numa for nic in up}},
                "prefer GPUs beside a port for jobs that fill part of a node; check the slots of the adapters",
            )


def _shared_nics(found: Topology) -> Iterator[Finding]:
    up = [nic for nic in fabric_nics(found) if nic.is_up]
    if up and len(found.gpus) > GPUS_PER_NIC * len(up):
        yield _finding(
            "nic-shared",
            f"{len(found.gpus)} GPUs share {len(up)} fabric port{'s' if len(up) > 1 else ''}",
            {"num_gpus": len(found.gpus), "num_ports": len(up)},
            "reckon with a port's rate divided by the GPUs that share it when layouts cross nodes",
        )


def _ports_down(found: Topology) -> Iterator[Finding]:
    for nic in fabric_nics(found):
        if not nic.is_up:
            yield _finding(
                "nic-down",
                f"{nic.name} ({nic.kind}) is not active",
                {"nic": nic.name},
                "ask the operators, or keep it out of NCCL_IB_HCA; ports for storage may be down on purpose",
            )


def _far_cpus(found: Topology) -> Iterator[Finding]:
    cpus = {node.number: set(node.cpus) for node in found.numa_nodes}
    for gpu in found.gpus:
        near = cpus.get(gpu.numa)
        if near and not near & set(found.allowed_cpus):
            yield _finding(
                "cpus-far",
                f"this process may run on CPUs {cpu_list(found.allowed_cpus)}, none of them on NUMA node {gpu.numa} "
                f"of {gpu.label}",
                {"gpu": gpu.label, "near_cpus": cpu_list(sorted(near)), "allowed_cpus": cpu_list(found.allowed_cpus)},
                "bind each rank to the CPUs of its GPU: srun --cpu-bind, or --gpu-bind=closest",
            )


def _links(found: Topology) -> Iterator[Finding]:
    named = [(gpu.label, gpu.link) for gpu in found.gpus] + [(nic.name, nic.link) for nic in fabric_nics(found)]
    for name, link in named:
        if link is None:
            continue
        if link.num_lanes < link.max_num_lanes:
            yield _finding(
                "pcie-narrow",
                f"{name} has {link.num_lanes} of {link.max_num_lanes} PCIe lanes",
                {"device": name, "num_lanes": link.num_lanes, "max_num_lanes": link.max_num_lanes},
                "drain the node and have the card reseated or replaced",
            )
        if link.transfers_per_s < link.max_transfers_per_s:
            yield _finding(
                "pcie-slow",
                f"{name} runs its PCIe link at {link.transfers_per_s / units.GIGA:g} of "
                f"{link.max_transfers_per_s / units.GIGA:g} GT/s now",
                {"device": name, "transfers_per_s": link.transfers_per_s,
                 "max_transfers_per_s": link.max_transfers_per_s},
                "look again while copies run (bench memory): only a link that stays slow under load is at fault",
            )  # fmt: skip


def _nvlink(found: Topology, num_links: Callable[[str], int | None]) -> Iterator[Finding]:
    """A GPU with fewer links than its neighbours, or fewer than the catalogue gives it.

    Through a switch every pair shows all links of a GPU. Without one a GPU's links are shared out among its peers, not
    all of which need be visible here: then the catalogue is only asked about GPUs that show no link at all.
    """
    if len(found.gpus) < 2 or not found.ways:
        return
    counts = {gpu.label: _nvlink_counts(found, gpu) for gpu in found.gpus}
    most = max(sum(each) for each in counts.values())
    for gpu in found.gpus:
        total, widest, has = sum(counts[gpu.label]), max(counts[gpu.label]), num_links(gpu.name)
        lacks = has is not None and (total == 0 or has / 2 < widest < has)
        if total == most and not lacks:
            continue
        expected = f"{has} by the catalogue" if lacks else f"{most} over all pairs, as others have"
        yield _finding(
            "nvlink-missing",
            f"{gpu.label} shows {widest if lacks else total} NVLink links, not {expected}",
            {"gpu": gpu.label, "links": counts[gpu.label], "most_of_others": most, "catalogued": has},
            "see nvidia-smi nvlink --status and the fabric manager; keep jobs off the node until it is whole",
        )


def _nvlink_counts(found: Topology, gpu: Gpu) -> list[int]:
    ways = (found.way(gpu.label, other.label) or "" for other in found.gpus if other.number != gpu.number)
    return [int(way[2:]) if way.startswith("NV") else 0 for way in ways]


def _number(numa: int) -> str:
    return "?" if numa == UNKNOWN_NUMA else str(numa)
