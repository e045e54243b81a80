"""The topology of a node: NUMA nodes, GPUs, network ports and how they are connected.

Reads /sys and `nvidia-smi`. If the kernel does not know the NUMA node of a device, `lstopo` is read too.
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
"""Kinds of ports that carry the traffic between nodes."""
RunTool = Callable[[Sequence[str]], str]
"""Runs a command and returns its output."""
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
    connections: Matrix
    """Between two GPUs, and between a GPU and a network port: NV18, XGMI, PIX, PXB, PHB, NODE, SYS."""
    allowed_cpus: tuple[int, ...]
    """CPUs that this process may use."""
    notes: tuple[str, ...] = ()

    def connection(self, one: str, other: str) -> str | None:
        """How two devices are connected; None if unknown."""
        return self.connections.get((one, other)) or self.connections.get((other, one))

    def as_dict(self) -> dict[str, Any]:
        body = asdict(self)
        del body["connections"]
        pairs = [{"from": one, "to": other, "way": kind} for (one, other), kind in self.connections.items()]
        return body | {"ways": pairs}


def output_of(command: Sequence[str]) -> str:
    """Output of a program; empty if it is missing, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def read_topology(root: Path = ROOT, *, run_tool: RunTool = output_of, cpus: Sequence[int] | None = None) -> Topology:
    """The topology of this node, or of one whose /sys is under `root`."""
    sys = root / "sys"
    notes: list[str] = []
    matrix, nic_names = smi_matrix(run_tool(("nvidia-smi", "topo", "-m")))
    gpus = list(_nvidia(sys, run_tool, notes)) or list(_amd(sys))
    nics = list(_nics(sys))
    connections = _renamed(matrix, nic_names) | amd_links(sys, {gpu.bus: gpu.label for gpu in gpus})
    unplaced = [gpu.bus for gpu in gpus if gpu.numa == UNKNOWN_NUMA]
    unplaced += [nic.bus for nic in nics if nic.numa == UNKNOWN_NUMA]
    if any(unplaced):
        numa_of_bus = lstopo_numa(run_tool(("lstopo", "--of", "xml")))
        gpus = [_located(gpu, numa_of_bus) for gpu in gpus]
        nics = [_located(nic, numa_of_bus) for nic in nics]
    nodes = list(_numa_nodes(sys))
    if len(nodes) == 1:  # with a single NUMA node, kernels often do not report it for devices
        gpus = [replace(gpu, numa=nodes[0].number) for gpu in gpus]
        nics = [replace(nic, numa=nodes[0].number) for nic in nics]
    return Topology(
        host=socket.gethostname(),
        numa_nodes=tuple(nodes),
        gpus=tuple(gpus),
        nics=tuple(nics),
        connections=connections,
        allowed_cpus=tuple(sorted(os.sched_getaffinity(0) if cpus is None else cpus)),
        notes=tuple(notes),
    )


def cpu_list(cpus: Sequence[int]) -> str:
    """CPU numbers as ranges, such as 0-3,8; the inverse of `parse_cpu_list`."""
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


def _nvidia(sys: Path, run_tool: RunTool, notes: list[str]) -> Iterator[Gpu]:
    smi = smi_gpus(run_tool(("nvidia-smi", "--query-gpu=index,name,pci.bus_id", "--format=csv,noheader")))
    for number, name, bus in smi:
        folder = pci_folder(sys, bus)
        yield Gpu(number=number, name=name, bus=bus, numa=numa_of(folder), link=pcie_link(folder))
    if smi:
        return
    folders = [path for path in sorted((sys / "bus/pci/devices").glob("*")) if _is_nvidia_gpu(path)]
    for number, folder in enumerate(folders):
        name = f"NVIDIA device {sys_text(folder / 'device')}"
        yield Gpu(number=number, name=name, bus=folder.name, numa=numa_of(folder), link=pcie_link(folder))
    if folders:
        notes.append("nvidia-smi does not answer: the links between GPUs are unknown")


def _is_nvidia_gpu(folder: Path) -> bool:
    return sys_text(folder / "vendor") == NVIDIA_VENDOR and sys_text(folder / "class").startswith(DISPLAY_CLASSES)


def _amd(sys: Path) -> Iterator[Gpu]:
    """GPUs of the kernel's compute topology. CPUs are nodes of it too, with the gpu_id 0."""
    nodes = sorted((sys / "class/kfd/kfd/topology/nodes").glob("[0-9]*"), key=lambda path: int(path.name))
    gpus = [node for node in nodes if sys_text(node / "gpu_id") not in ("", "0")]
    for number, node in enumerate(gpus):
        properties = dict(line.split()[:2] for line in sys_text(node / "properties").splitlines() if " " in line)
        bus = kfd_bus(int(properties.get("domain", 0)), int(properties.get("location_id", 0)))
        folder = pci_folder(sys, bus)
        name = f"AMD {sys_text(folder / 'product_name') or sys_text(node / 'name') or 'GPU'}"
        yield Gpu(number=number, name=name, bus=bus, numa=numa_of(folder), link=pcie_link(folder))


def _nics(sys: Path) -> Iterator[Nic]:
    """Ports of fabric adapters, and other physical interfaces. The only port of an adapter has the adapter's name."""
    ports = list(network_ports(sys))
    num_ports = Counter(nic.name.partition(":")[0] for nic in ports if ":" in nic.name)
    adapters = {nic.bus for nic in ports if ":" in nic.name}
    for nic in ports:
        adapter, colon, _ = nic.name.partition(":")
        if colon:
            yield replace(nic, name=adapter) if num_ports[adapter] == 1 else nic
        elif nic.kind in ("slingshot", "ethernet") and (not nic.bus or nic.bus not in adapters):
            yield nic


def _renamed(matrix: Matrix, nic_names: dict[str, str]) -> Matrix:
    """The matrix with the kernel's names of ports, as far as the tool gives them."""
    return {(nic_names.get(a, a), nic_names.get(b, b)): kind for (a, b), kind in matrix.items()}


def _located(device: Device, numa_of_bus: dict[str, int]) -> Device:
    if device.numa == UNKNOWN_NUMA and device.bus in numa_of_bus:
        return replace(device, numa=numa_of_bus[device.bus])
    return device
