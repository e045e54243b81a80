"""A node as its kernel and its tools tell it: NUMA nodes, GPUs, network ports and the ways between them.

Reads /sys, `nvidia-smi`, and `lstopo` where the kernel does not know which NUMA node a device belongs to.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from scalewright import units
from scalewright.here.topology_tools import Matrix, amd_links, kfd_bus, lstopo_numa, smi_gpus, smi_matrix
from scalewright.records.node_devices import (
    UNKNOWN_NUMA,
    Nic,
    NicKind,
    PcieLink,
    network_ports,
    numa_folders,
    numa_of,
    parse_cpu_list,
    pci_folder,
    pcie_link,
    sys_text,
)

ROOT = Path("/")
TOOL_TIMEOUT_S = 20.0
NVIDIA_VENDOR = "0x10de"
DISPLAY_CLASSES = ("0x0300", "0x0302")
"""PCI classes of GPUs: VGA and 3D controllers."""
FABRIC: tuple[NicKind, ...] = ("infiniband", "roce", "slingshot")
"""Ports that traffic between GPUs of several nodes goes through."""
Ask = Callable[[Sequence[str]], str]
Device = TypeVar("Device", "Gpu", "Nic")


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaNode:
    number: int
    cpus: tuple[int, ...]
    memory_bytes: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    number: int
    name: str
    bus: str
    numa: int = UNKNOWN_NUMA
    link: PcieLink | None = None

    @property
    def label(self) -> str:
        return f"GPU{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """One node."""

    host: str
    numa_nodes: tuple[NumaNode, ...]
    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...]
    ways: Matrix
    """Between pairs of GPUs, and of a GPU and a network port: NV18, XGMI, PIX, PXB, PHB, NODE, SYS."""
    allowed_cpus: tuple[int, ...]
    """That this process may run on."""
    notes: tuple[str, ...] = ()

    def way(self, one: str, other: str) -> str | None:
        """How two devices reach each other; None where nobody tells."""
        return self.ways.get((one, other)) or self.ways.get((other, one))

    def as_dict(self) -> dict[str, Any]:
        body = asdict(self)
        body["ways"] = [{"from": one, "to": other, "way": way} for (one, other), way in self.ways.items()]
        return body


def ask_tool(command: Sequence[str]) -> str:
    """What a program prints; empty where it is missing, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def read_topology(root: Path = ROOT, *, ask: Ask = ask_tool, cpus: Sequence[int] | None = None) -> Topology:
    """This node, or one whose /sys lies under `root`."""
    sys = root / "sys"
    notes: list[str] = []
    matrix, nic_names = smi_matrix(ask(("nvidia-smi", "topo", "-m")))
    gpus = list(_nvidia(sys, ask, notes)) or list(_amd(sys))
    nics = list(_nics(sys))
    ways = _renamed(matrix, nic_names) | amd_links(sys, {gpu.bus: gpu.label for gpu in gpus})
    unplaced = [gpu.bus for gpu in gpus if gpu.numa == UNKNOWN_NUMA]
    unplaced += [nic.bus for nic in nics if nic.numa == UNKNOWN_NUMA]
    if any(unplaced):
        known = lstopo_numa(ask(("lstopo", "--of", "xml")))
        gpus = [_located(gpu, known) for gpu in gpus]
        nics = [_located(nic, known) for nic in nics]
    nodes = list(_numa_nodes(sys))
    if len(nodes) == 1:  # where there is one node only, kernels often leave the question open
        gpus = [replace(gpu, numa=nodes[0].number) for gpu in gpus]
        nics = [replace(nic, numa=nodes[0].number) for nic in nics]
    return Topology(
        host=socket.gethostname(),
        numa_nodes=tuple(nodes),
        gpus=tuple(gpus),
        nics=tuple(nics),
        ways=ways,
        allowed_cpus=tuple(sorted(os.sched_getaffinity(0) if cpus is None else cpus)),
        notes=tuple(notes),
    )


def cpu_list(cpus: Sequence[int]) -> str:
    """The inverse of `parse_cpu_list`."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def _numa_nodes(sys: Path) -> Iterator[NumaNode]:
    for folder in numa_folders(sys):
        match = re.search(r"MemTotal:\s+(\d+) kB", sys_text(folder / "meminfo"))
        cpus = parse_cpu_list(sys_text(folder / "cpulist"))
        memory_bytes = float(match.group(1)) * units.KIB if match else None
        if cpus or memory_bytes:
            yield NumaNode(number=int(folder.name[4:]), cpus=cpus, memory_bytes=memory_bytes)


def _nvidia(sys: Path, ask: Ask, notes: list[str]) -> Iterator[Gpu]:
    told = smi_gpus(ask(("nvidia-smi", "--query-gpu=index,name,pci.bus_id", "--format=csv,noheader")))
    for number, name, bus in told:
        folder = pci_folder(sys, bus)
        yield Gpu(number=number, name=name, bus=bus, numa=numa_of(folder), link=pcie_link(folder))
    if told:
        return
    found = [path for path in sorted((sys / "bus/pci/devices").glob("*")) if _is_nvidia_gpu(path)]
    for number, folder in enumerate(found):
        name = f"NVIDIA device {sys_text(folder / 'device')}"
        yield Gpu(number=number, name=name, bus=folder.name, numa=numa_of(folder), link=pcie_link(folder))
    if found:
        notes.append("nvidia-smi does not answer: links between GPUs are not known")


def _is_nvidia_gpu(folder: Path) -> bool:
    return sys_text(folder / "vendor") == NVIDIA_VENDOR and sys_text(folder / "class").startswith(DISPLAY_CLASSES)


def _amd(sys: Path) -> Iterator[Gpu]:
    """GPUs of the kernel's compute topology; CPUs are nodes of it as well, with the identity 0."""
    nodes = sorted((sys / "class/kfd/kfd/topology/nodes").glob("[0-9]*"), key=lambda path: int(path.name))
    gpus = [node for node in nodes if sys_text(node / "gpu_id") not in ("", "0")]
    for number, node in enumerate(gpus):
        properties = dict(line.split()[:2] for line in sys_text(node / "properties").splitlines() if " " in line)
        bus = kfd_bus(int(properties.get("domain", 0)), int(properties.get("location_id", 0)))
        folder = pci_folder(sys, bus)
        name = f"AMD {sys_text(folder / 'product_name') or sys_text(node / 'name') or 'GPU'}"
        yield Gpu(number=number, name=name, bus=bus, numa=numa_of(folder), link=pcie_link(folder))


def _nics(sys: Path) -> Iterator[Nic]:
    """Fabric adapters by port, and physical interfaces that are none of those. An adapter's only port has its name."""
    found = list(network_ports(sys))
    ports = Counter(nic.name.partition(":")[0] for nic in found if ":" in nic.name)
    taken = {nic.bus for nic in found if ":" in nic.name}
    for nic in found:
        adapter, colon, _ = nic.name.partition(":")
        if colon:
            yield replace(nic, name=adapter) if ports[adapter] == 1 else nic
        elif nic.kind in ("slingshot", "ethernet") and (not nic.bus or nic.bus not in taken):
            yield nic


def _renamed(matrix: Matrix, nic_names: dict[str, str]) -> Matrix:
    """Ports by the kernel's names, where the tool tells which is which."""
    return {(nic_names.get(a, a), nic_names.get(b, b)): way for (a, b), way in matrix.items()}


def _located(device: Device, known: dict[str, int]) -> Device:
    return replace(device, numa=known[device.bus]) if device.numa == UNKNOWN_NUMA and device.bus in known else device
