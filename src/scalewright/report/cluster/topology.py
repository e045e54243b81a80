"""The topology of a node as a tree: NUMA nodes with GPUs and network ports, their connections, and findings."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.tree import Tree

from scalewright import units
from scalewright.here.placement_rules import BY_ID, nearest_nics
from scalewright.here.topology import Gpu, Topology, cpu_list
from scalewright.records.node_devices import Nic, PcieLink
from scalewright.records.types import Finding
from scalewright.report.console import plain_table

COLOUR = {"info": "blue", "warning": "yellow", "error": "red"}


def print_topology(console: Console, topology: Topology, findings: Sequence[Finding]) -> None:
    console.print(tree(topology))
    if len(topology.gpus) > 1 and topology.connections:
        print_connections(console, topology)
    for note in topology.notes:
        console.print(f"note: {escape(note)}", highlight=False)
    if not findings:
        console.print("no bad placement found", highlight=False)
    for rule in dict.fromkeys(finding.rule for finding in findings):
        _print_findings(console, [finding for finding in findings if finding.rule == rule])


def _print_findings(console: Console, findings: Sequence[Finding]) -> None:
    """All findings of one rule, with one explanation."""
    first = findings[0]
    for finding in findings:
        mark = f"[{COLOUR[finding.severity]}]{finding.severity}[/]"
        console.print(f"{mark} {escape(finding.message)} ({escape(finding.rule)})", highlight=False)
    for line in (BY_ID[first.rule].why, f"next: {first.next_step}"):
        console.print(Padding(escape(line), (0, 0, 0, 2)), highlight=False)


def tree(topology: Topology) -> Tree:
    num_cpus = sum(len(node.cpus) for node in topology.numa_nodes)
    names = sorted({gpu.name for gpu in topology.gpus})
    gpus = f"{len(topology.gpus)} x {escape(names[0])}" if len(names) == 1 else f"{len(topology.gpus) or 'no'} GPUs"
    ports = f"{len(topology.nics) or 'no'} network port{'' if len(topology.nics) == 1 else 's'}"
    root = Tree(f"[bold]{escape(topology.host)}[/]: {num_cpus} CPUs, {gpus}, {ports}", highlight=False)
    for node in topology.numa_nodes:
        memory = "" if node.memory_bytes is None else f", {units.format(node.memory_bytes, units.BYTES)}"
        cpus = f"CPUs {cpu_list(node.cpus)}" if node.cpus else "no CPUs"
        branch = root.add(f"NUMA node {node.number}: {cpus}{memory}")
        _add_devices(branch, topology, node.number)
    listed = {node.number for node in topology.numa_nodes}
    elsewhere = ({gpu.numa for gpu in topology.gpus} | {nic.numa for nic in topology.nics}) - listed
    if elsewhere:
        branch = root.add("NUMA node unknown to the kernel")
        for number in sorted(elsewhere):
            _add_devices(branch, topology, number)
    return root


def _add_devices(branch: Tree, topology: Topology, number: int) -> None:
    for gpu in (gpu for gpu in topology.gpus if gpu.numa == number):
        branch.add(escape(gpu_line(topology, gpu)))
    for nic in (nic for nic in topology.nics if nic.numa == number):
        branch.add(escape(nic_line(nic)))


def gpu_line(topology: Topology, gpu: Gpu) -> str:
    is_only = all(other.name == gpu.name for other in topology.gpus)
    parts = [gpu.label if is_only else f"{gpu.label} {gpu.name}", gpu.bus, link_text(gpu.link)]
    near = [nic.name for nic in nearest_nics(topology, gpu)]
    if near and len(near) < len(topology.nics):
        connection = topology.connection(gpu.label, near[0])
        parts.append(f"near {', '.join(near)}{f' ({connection})' if connection else ''}")
    return ", ".join(part for part in parts if part)


def nic_line(nic: Nic) -> str:
    rate = "" if nic.bytes_per_s is None else gigabit(nic.bytes_per_s)
    return ", ".join(part for part in (f"{nic.name} {nic.kind}", rate, "" if nic.is_up else "down") if part)


def gigabit(bytes_per_s: float) -> str:
    """Rates of ports are given in bits."""
    return f"{8.0 * bytes_per_s / units.GIGA:g} Gbit/s"


def link_text(link: PcieLink | None) -> str:
    return "" if link is None else f"PCIe {link.transfers_per_s / units.GIGA:g} GT/s x{link.num_lanes}"


def uniform_connection(topology: Topology) -> str | None:
    """The connection of every pair of GPUs if all are the same; else None."""
    connections = {
        topology.connection(a.label, b.label) for a in topology.gpus for b in topology.gpus if a.number < b.number
    }
    return connections.pop() if len(connections) == 1 else None


def print_connections(console: Console, topology: Topology) -> None:
    only = uniform_connection(topology)
    if only is not None:
        console.print(f"between all pairs of the {len(topology.gpus)} GPUs: {escape(only)}", highlight=False)
        return
    labels = [gpu.label for gpu in topology.gpus]
    table = plain_table("", *labels, right=tuple(labels), gap=1)
    for one in labels:
        table.add_row(one, *("-" if one == other else topology.connection(one, other) or "?" for other in labels))
    console.print(table)
