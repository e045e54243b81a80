"""A node as a tree for the terminal: NUMA nodes with their GPUs and network ports, the links, and what is wrong."""

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


def print_topology(console: Console, found: Topology, findings: Sequence[Finding]) -> None:
    console.print(tree(found))
    if len(found.gpus) > 1 and found.ways:
        print_ways(console, found)
    for note in found.notes:
        console.print(f"note: {escape(note)}", highlight=False)
    if not findings:
        console.print("no bad placement found", highlight=False)
    for rule in dict.fromkeys(finding.rule for finding in findings):
        _print_findings(console, [finding for finding in findings if finding.rule == rule])


def _print_findings(console: Console, findings: Sequence[Finding]) -> None:
    """All findings of one rule, which is explained once."""
    first = findings[0]
    for finding in findings:
        mark = f"[{COLOUR[finding.severity]}]{finding.severity}[/]"
        console.print(f"{mark} {escape(finding.message)} ({escape(finding.rule)})", highlight=False)
    for line in (BY_ID[first.rule].why, f"next: {first.next_step}"):
        console.print(Padding(escape(line), (0, 0, 0, 2)), highlight=False)


def tree(found: Topology) -> Tree:
    num_cpus = sum(len(node.cpus) for node in found.numa_nodes)
    names = sorted({gpu.name for gpu in found.gpus})
    gpus = f"{len(found.gpus)} x {escape(names[0])}" if len(names) == 1 else f"{len(found.gpus) or 'no'} GPUs"
    ports = f"{len(found.nics) or 'no'} network port{'' if len(found.nics) == 1 else 's'}"
    root = Tree(f"[bold]{escape(found.host)}[/]: {num_cpus} CPUs, {gpus}, {ports}", highlight=False)
    for node in found.numa_nodes:
        memory = "" if node.memory_bytes is None else f", {units.format(node.memory_bytes, units.BYTES)}"
        cpus = f"CPUs {cpu_list(node.cpus)}" if node.cpus else "no CPUs"
        branch = root.add(f"NUMA node {node.number}: {cpus}{memory}")
        _add_devices(branch, found, node.number)
    listed = {node.number for node in found.numa_nodes}
    elsewhere = ({gpu.numa for gpu in found.gpus} | {nic.numa for nic in found.nics}) - listed
    if elsewhere:
        branch = root.add("on no NUMA node that the kernel tells")
        for number in sorted(elsewhere):
            _add_devices(branch, found, number)
    return root


def _add_devices(branch: Tree, found: Topology, number: int) -> None:
    for gpu in (gpu for gpu in found.gpus if gpu.numa == number):
        branch.add(escape(gpu_line(found, gpu)))
    for nic in (nic for nic in found.nics if nic.numa == number):
        branch.add(escape(nic_line(nic)))


def gpu_line(found: Topology, gpu: Gpu) -> str:
    is_only = all(other.name == gpu.name for other in found.gpus)
    parts = [gpu.label if is_only else f"{gpu.label} {gpu.name}", gpu.bus, link_text(gpu.link)]
    near = [nic.name for nic in nearest_nics(found, gpu)]
    if near and len(near) < len(found.nics):
        way = found.way(gpu.label, near[0])
        parts.append(f"near {', '.join(near)}{f' ({way})' if way else ''}")
    return ", ".join(part for part in parts if part)


def nic_line(nic: Nic) -> str:
    rate = "" if nic.bytes_per_s is None else gigabit(nic.bytes_per_s)
    return ", ".join(part for part in (f"{nic.name} {nic.kind}", rate, "" if nic.is_up else "down") if part)


def gigabit(bytes_per_s: float) -> str:
    """Ports are known by bits."""
    return f"{bytes_per_s * 8e-9:g} Gbit/s"


def link_text(link: PcieLink | None) -> str:
    return "" if link is None else f"PCIe {link.transfers_per_s / units.GIGA:g} GT/s x{link.num_lanes}"


def uniform_way(found: Topology) -> str | None:
    """The one way between every two GPUs; None where pairs differ."""
    ways = {found.way(a.label, b.label) for a in found.gpus for b in found.gpus if a.number < b.number}
    return ways.pop() if len(ways) == 1 else None


def print_ways(console: Console, found: Topology) -> None:
    only = uniform_way(found)
    if only is not None:
        console.print(f"between every two of the {len(found.gpus)} GPUs: {escape(only)}", highlight=False)
        return
    labels = [gpu.label for gpu in found.gpus]
    table = plain_table("", *labels, right=tuple(labels), gap=1)
    for one in labels:
        table.add_row(one, *("-" if one == other else found.way(one, other) or "?" for other in labels))
    console.print(table)
