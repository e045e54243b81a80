"""A node as its kernel and its tools tell it: NUMA nodes, GPUs, network ports and the ways between them.

Reads /sys, `nvidia-smi`, and `lstopo` where the kernel does not know which NUMA node a device belongs to.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from scalewright.launch.topology_tools import Matrix, amd_links, kfd_bus, lstopo_numa, smi_gpus, smi_matrix

ROOT = Path("/")
TOOL_TIMEOUT_S = 20.0
UNKNOWN = -1
NVIDIA_VENDOR = "0x10de"
DISPLAY_CLASSES = ("0x0300", "0x0302")
"""PCI classes of GPUs: VGA and 3D controllers."""
_RATE = re.compile(r"^([\d.]+)\s*(?:GT/s|Gb/s)")
_PCIE_BUS = re.compile(r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
NicKind = Literal["infiniband", "roce", "slingshot", "ethernet"]
FABRIC: tuple[NicKind, ...] = ("infiniband", "roce", "slingshot")
"""Ports that traffic between GPUs of several nodes goes through."""
Ask = Callable[[Sequence[str]], str]
Device = TypeVar("Device", "Gpu", "Nic")


@dataclass(frozen=True, slots=True, kw_only=True)
class PcieLink:
    """A PCIe link as it trained, and the most that both of its ends can do."""

    transfers_per_s: float
    max_transfers_per_s: float
    num_lanes: int
    max_num_lanes: int


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
    numa: int = UNKNOWN
    link: PcieLink | None = None

    @property
    def label(self) -> str:
        return f"GPU{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    name: str
    kind: NicKind
    is_up: bool
    bytes_per_s: float | None
    bus: str = ""
    numa: int = UNKNOWN
    link: PcieLink | None = None


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
    buses = [gpu.bus for gpu in gpus if gpu.numa == UNKNOWN] + [nic.bus for nic in nics if nic.numa == UNKNOWN]
    if any(buses):
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


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """The kernel's form of a set of CPUs: `0-3,64-67`."""
    found: list[int] = []
    for part in filter(None, text.strip().split(",")):
        low, _, high = part.partition("-")
        found += range(int(low), int(high or low) + 1)
    return tuple(found)


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
    folders = sorted((sys / "devices/system/node").glob("node[0-9]*"), key=lambda path: int(path.name[4:]))
    for folder in folders:
        match = re.search(r"MemTotal:\s+(\d+) kB", _text(folder / "meminfo"))
        cpus = parse_cpu_list(_text(folder / "cpulist"))
        memory_bytes = float(match.group(1)) * 1024.0 if match else None
        if cpus or memory_bytes:
            yield NumaNode(number=int(folder.name[4:]), cpus=cpus, memory_bytes=memory_bytes)


def _nvidia(sys: Path, ask: Ask, notes: list[str]) -> Iterator[Gpu]:
    told = smi_gpus(ask(("nvidia-smi", "--query-gpu=index,name,pci.bus_id", "--format=csv,noheader")))
    for number, name, bus in told:
        folder = sys / "bus/pci/devices" / bus
        yield Gpu(number=number, name=name, bus=bus, numa=_numa(folder), link=pcie_link(folder))
    if told:
        return
    found = [path for path in sorted((sys / "bus/pci/devices").glob("*")) if _is_nvidia_gpu(path)]
    for number, folder in enumerate(found):
        name = f"NVIDIA device {_text(folder / 'device')}"
        yield Gpu(number=number, name=name, bus=folder.name, numa=_numa(folder), link=pcie_link(folder))
    if found:
        notes.append("nvidia-smi does not answer: links between GPUs are not known")


def _is_nvidia_gpu(folder: Path) -> bool:
    return _text(folder / "vendor") == NVIDIA_VENDOR and _text(folder / "class").startswith(DISPLAY_CLASSES)


def _amd(sys: Path) -> Iterator[Gpu]:
    """GPUs of the kernel's compute topology; CPUs are nodes of it as well, with the identity 0."""
    nodes = sorted((sys / "class/kfd/kfd/topology/nodes").glob("[0-9]*"), key=lambda path: int(path.name))
    gpus = [node for node in nodes if _text(node / "gpu_id") not in ("", "0")]
    for number, node in enumerate(gpus):
        properties = dict(line.split()[:2] for line in _text(node / "properties").splitlines() if " " in line)
        bus = kfd_bus(int(properties.get("domain", 0)), int(properties.get("location_id", 0)))
        folder = sys / "bus/pci/devices" / bus
        name = f"AMD {_text(folder / 'product_name') or _text(node / 'name') or 'GPU'}"
        yield Gpu(number=number, name=name, bus=bus, numa=_numa(folder), link=pcie_link(folder))


def _nics(sys: Path) -> Iterator[Nic]:
    """Fabric adapters by port, and physical interfaces that are none of those."""
    taken: set[str] = set()
    for adapter in sorted((sys / "class/infiniband").glob("*")):
        ports = sorted((adapter / "ports").glob("*"))
        for port in ports:
            rate = _RATE.match(_text(port / "rate").replace("Gb/sec", "Gb/s"))
            kind: NicKind = "roce" if _text(port / "link_layer") == "Ethernet" else "infiniband"
            name = adapter.name if len(ports) == 1 else f"{adapter.name}:{port.name}"
            nic = Nic(
                name=name, kind=kind, is_up="ACTIVE" in _text(port / "state"),
                bytes_per_s=float(rate.group(1)) * 1e9 / 8.0 if rate else None, **_place(adapter / "device"),
            )  # fmt: skip
            taken.add(nic.bus)
            yield nic
    for interface in sorted((sys / "class/net").glob("*")):
        place = _place(interface / "device") if (interface / "device").exists() else None
        if place is None or (place["bus"] and place["bus"] in taken):
            continue
        speed = _text(interface / "speed")
        yield Nic(
            name=interface.name, kind="slingshot" if interface.name.startswith("hsn") else "ethernet",
            is_up=_text(interface / "operstate") == "up",
            bytes_per_s=float(speed) * 1e6 / 8.0 if speed.isdigit() and int(speed) else None, **place,
        )  # fmt: skip


def _place(device: Path) -> dict[str, Any]:
    folder = device.resolve()
    bus = folder.name if _PCIE_BUS.match(folder.name) else ""
    return {"bus": bus, "numa": _numa(folder), "link": pcie_link(folder)}


def pcie_link(folder: Path) -> PcieLink | None:
    """None where the device is not on PCIe, or the kernel does not know (integrated fabrics say `Unknown`).

    A slot may be narrower than the card in it by design, so the most is what the card and the port above it both do.
    """
    now, most = _speed_and_lanes(folder, "current"), _speed_and_lanes(folder, "max")
    if now is None or most is None:
        return None
    above = _speed_and_lanes(folder.resolve().parent, "max") or most
    return PcieLink(
        transfers_per_s=now[0],
        max_transfers_per_s=min(most[0], above[0]),
        num_lanes=now[1],
        max_num_lanes=min(most[1], above[1]),
    )


def _speed_and_lanes(folder: Path, which: str) -> tuple[float, int] | None:
    speed, lanes = _RATE.match(_text(folder / f"{which}_link_speed")), _text(folder / f"{which}_link_width")
    if speed is None or not lanes.isdigit() or not 0 < int(lanes) < 64:  # 255: the link is down or not PCIe
        return None
    return float(speed.group(1)) * 1e9, int(lanes)


def _renamed(matrix: Matrix, nic_names: dict[str, str]) -> Matrix:
    """Ports by the kernel's names, where the tool tells which is which."""
    return {(nic_names.get(a, a), nic_names.get(b, b)): way for (a, b), way in matrix.items()}


def _located(device: Device, known: dict[str, int]) -> Device:
    return replace(device, numa=known[device.bus]) if device.numa == UNKNOWN and device.bus in known else device


def _numa(folder: Path) -> int:
    text = _text(folder / "numa_node")
    return int(text) if re.fullmatch(r"-?\d+", text) else UNKNOWN


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
