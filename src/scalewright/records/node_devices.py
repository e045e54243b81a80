"""Processors, PCIe links and network ports of a node, read from /sys in this module only.

Every reader takes the folder of /sys, so that tests can read copies of other machines' trees.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scalewright import units

NicKind = Literal["infiniband", "roce", "slingshot", "ethernet", "virtual"]
UNKNOWN_NUMA = -1
BIT_PER_BYTE = 8.0
_IPOIB_TYPE = "32"
"""ARPHRD_INFINIBAND: an interface whose adapter is listed as well."""
_RATE = re.compile(r"^([\d.]+)\s*(?:GT/s|Gb/sec)")
_PCIE_BUS = re.compile(r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")


@dataclass(frozen=True, slots=True, kw_only=True)
class PcieLink:
    """A PCIe link as it trained, and the most that both of its ends support."""

    transfers_per_s: float
    max_transfers_per_s: float
    num_lanes: int
    max_num_lanes: int

    @property
    def max_bytes_per_s(self) -> float:
        """One direction, after line coding: 8b/10b up to 5 GT/s, 128b/130b above."""
        coding = 0.8 if self.max_transfers_per_s <= 5e9 else 128.0 / 130.0
        return self.max_transfers_per_s * coding * self.max_num_lanes / BIT_PER_BYTE


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """A network port."""

    name: str
    kind: NicKind
    is_up: bool
    bytes_per_s: float | None
    """As the link trained; None if the port does not report it."""
    rate_text: str = ""
    """In the driver's words, such as `200 Gb/sec (4X HDR)`."""
    bus: str = ""
    """Its PCIe address; empty if it has none, or the kernel does not report it."""
    numa: int = UNKNOWN_NUMA
    link: PcieLink | None = None


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """The kernel's form of a set of CPUs: `0-3,64-67`."""
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        low, _, high = part.partition("-")
        cpus += range(int(low), int(high or low) + 1)
    return tuple(cpus)


def numa_folders(sys: Path) -> list[Path]:
    return sorted((sys / "devices/system/node").glob("node[0-9]*"), key=lambda path: int(path.name[4:]))


def numa_cpus(sys: Path) -> dict[str, tuple[int, ...]]:
    """CPUs by NUMA node; nodes of memory only are left out."""
    cpus_of_node = {folder.name[4:]: parse_cpu_list(sys_text(folder / "cpulist")) for folder in numa_folders(sys)}
    return {number: cpus for number, cpus in cpus_of_node.items() if cpus}


def pci_folder(sys: Path, bus: str) -> Path:
    return sys / "bus/pci/devices" / bus.lower()


def numa_of(device: Path) -> int:
    """The NUMA node of a device's folder."""
    text = sys_text(device / "numa_node")
    return int(text) if re.fullmatch(r"-?\d+", text) else UNKNOWN_NUMA


def pcie_link(device: Path) -> PcieLink | None:
    """The PCIe link of a device; None if it is not on PCIe, or the kernel reports `Unknown` (integrated fabrics).

    A slot may be narrower than its card by design, so the maximum is what both the card and the port above it support.
    """
    now, most = _speed_and_lanes(device, "current"), _speed_and_lanes(device, "max")
    if now is None or most is None:
        return None
    above = _speed_and_lanes(device.resolve().parent, "max") or most
    return PcieLink(
        transfers_per_s=now[0],
        max_transfers_per_s=min(most[0], above[0]),
        num_lanes=now[1],
        max_num_lanes=min(most[1], above[1]),
    )


def _speed_and_lanes(device: Path, which: str) -> tuple[float, int] | None:
    speed, lanes = _RATE.match(sys_text(device / f"{which}_link_speed")), sys_text(device / f"{which}_link_width")
    if speed is None or not lanes.isdigit() or not 0 < int(lanes) < 64:  # 255: the link is down or not PCIe
        return None
    return float(speed.group(1)) * units.GIGA, int(lanes)


def network_ports(sys: Path) -> Iterator[Nic]:
    """Ports of InfiniBand and RoCE adapters, and the kernel's interfaces but loopback."""
    for port in sorted((sys / "class/infiniband").glob("*/ports/*")):
        adapter = port.parent.parent
        rate_text = sys_text(port / "rate")
        rate = _RATE.match(rate_text)
        yield _placed(
            adapter / "device",
            name=f"{adapter.name}:{port.name}",
            kind="roce" if sys_text(port / "link_layer") == "Ethernet" else "infiniband",
            is_up="ACTIVE" in sys_text(port / "state"),
            bytes_per_s=float(rate.group(1)) * units.GIGA / BIT_PER_BYTE if rate else None,
            rate_text=rate_text,
        )
    for interface in sorted((sys / "class/net").glob("*")):
        if interface.name == "lo" or not interface.is_dir():
            continue
        speed = sys_text(interface / "speed")
        mbit = int(speed) if speed.isdigit() else 0
        yield _placed(
            interface / "device",
            name=interface.name,
            kind=_interface_kind(interface),
            is_up=sys_text(interface / "operstate") in ("up", "unknown"),
            bytes_per_s=mbit * units.MEGA / BIT_PER_BYTE if mbit else None,
            rate_text=f"{mbit / units.KILO:g} Gbit/s" if mbit else "",
        )


def _interface_kind(interface: Path) -> NicKind:
    if interface.name.startswith("hsn"):
        return "slingshot"
    if sys_text(interface / "type") == _IPOIB_TYPE:
        return "infiniband"
    return "ethernet" if (interface / "device").exists() else "virtual"


def _placed(device: Path, *, name: str, kind: NicKind, is_up: bool, bytes_per_s: float | None, rate_text: str) -> Nic:
    folder = device.resolve()
    return Nic(
        name=name, kind=kind, is_up=is_up, bytes_per_s=bytes_per_s, rate_text=rate_text,
        bus=folder.name if _PCIE_BUS.match(folder.name) else "", numa=numa_of(folder), link=pcie_link(folder),
    )  # fmt: skip


def sys_text(path: Path) -> str:
    """The text of a file in /sys; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
