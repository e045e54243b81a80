"""Read a node: CPUs, NUMA nodes, PCIe links, network ports, driver, image and folders.

Every reader takes the root that /sys and /proc are under, so that copies of other machines' trees can be read too.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from scalewright.run.preflight.facts import UNKNOWN_NUMA, Disk, Gpu, Nic, NicKind, PcieLink, RankFacts
from scalewright.run.provenance import container, driver, versions
from scalewright.run.world import World

ROOT = Path("/")
BIT_PER_BYTE = 8.0
_IB_RATE = re.compile(r"^([\d.]+)\s*Gb/sec")
_PCIE_RATE = re.compile(r"^([\d.]+)\s*GT/s")
MUST_AGREE = ("torch", "numpy", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "triton", "scalewright")


def gather(
    world: World,
    env: Mapping[str, str],
    *,
    folders: Iterable[Path] = (),
    gpu: Gpu | None = None,
    num_visible_gpus: int = 0,
    root: Path = ROOT,
) -> RankFacts:
    """Facts of this rank and its node. `gpu` is what the framework says it uses; the rest is read from `root`."""
    return RankFacts(
        rank=world.rank,
        local_rank=world.local_rank,
        host=world.host,
        switch=world.switch,
        cpus=tuple(sorted(os.sched_getaffinity(0))),
        num_node_cpus=os.cpu_count() or 0,
        cpus_of_numa=numa_cpus(root),
        device="cpu" if gpu is None else "cuda",
        gpu=None if gpu is None else placed(gpu, root),
        num_visible_gpus=num_visible_gpus,
        nics=tuple(nics(root)),
        driver=driver(),
        image=container(env),
        software={"python": platform.python_version(), **_software()},
        disks=tuple(disk(folder) for folder in folders),
    )


def _software() -> dict[str, str]:
    return {name: version for name, version in versions().items() if name in MUST_AGREE}


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """The kernel's form of a set of CPUs: `0-3,64-67`."""
    found: list[int] = []
    for part in filter(None, text.strip().split(",")):
        low, _, high = part.partition("-")
        found += range(int(low), int(high or low) + 1)
    return tuple(found)


def numa_cpus(root: Path = ROOT) -> dict[str, tuple[int, ...]]:
    """CPUs by NUMA node; nodes of memory only are left out."""
    found = {}
    for path in sorted((root / "sys/devices/system/node").glob("node[0-9]*/cpulist")):
        cpus = parse_cpu_list(_text(path))
        if cpus:
            found[path.parent.name.removeprefix("node")] = cpus
    return found


def placed(gpu: Gpu, root: Path = ROOT) -> Gpu:
    """The device with its NUMA node and its PCIe link, where the kernel tells."""
    folder = pci_folder(gpu.bus, root)
    if folder is None:
        return gpu
    return Gpu(uuid=gpu.uuid, bus=gpu.bus, name=gpu.name, numa=_numa(folder), link=pcie_link(folder))


def pci_folder(bus: str, root: Path = ROOT) -> Path | None:
    folder = root / "sys/bus/pci/devices" / bus.lower()
    return folder if bus and folder.is_dir() else None


def pcie_link(folder: Path) -> PcieLink | None:
    """None where the device is not on PCIe, or the kernel does not know (integrated fabrics say `Unknown`)."""
    speeds = [_PCIE_RATE.match(_text(folder / f"{which}_link_speed")) for which in ("current", "max")]
    lanes = [_text(folder / f"{which}_link_width") for which in ("current", "max")]
    if speeds[0] is None or speeds[1] is None or not all(text.isdigit() and 0 < int(text) < 64 for text in lanes):
        return None
    return PcieLink(
        transfers_per_s=float(speeds[0].group(1)) * 1e9,
        max_transfers_per_s=float(speeds[1].group(1)) * 1e9,
        num_lanes=int(lanes[0]),
        max_num_lanes=int(lanes[1]),
    )


def nics(root: Path = ROOT) -> Iterator[Nic]:
    """Ports of InfiniBand and RoCE adapters, and the kernel's interfaces but loopback."""
    for port in sorted((root / "sys/class/infiniband").glob("*/ports/*")):
        adapter = port.parent.parent
        rate_text = _text(port / "rate")
        rate = _IB_RATE.match(rate_text)
        yield Nic(
            name=f"{adapter.name}:{port.name}",
            kind="roce" if _text(port / "link_layer") == "Ethernet" else "infiniband",
            is_up="ACTIVE" in _text(port / "state"),
            bytes_per_s=float(rate.group(1)) * 1e9 / BIT_PER_BYTE if rate else None,
            rate_text=rate_text,
            numa=_numa(adapter / "device"),
            link=pcie_link(adapter / "device"),
        )
    for interface in sorted((root / "sys/class/net").glob("*")):
        if interface.name == "lo" or not interface.is_dir():
            continue
        speed = _text(interface / "speed")
        mbit = int(speed) if re.fullmatch(r"\d+", speed) else 0
        yield Nic(
            name=interface.name,
            kind=_interface_kind(interface),
            is_up=_text(interface / "operstate") in ("up", "unknown"),
            bytes_per_s=mbit * 1e6 / BIT_PER_BYTE if mbit else None,
            rate_text=f"{mbit / 1000:g} Gbit/s" if mbit else "",
            numa=_numa(interface / "device"),
            link=pcie_link(interface / "device"),
        )


def _interface_kind(interface: Path) -> NicKind:
    if interface.name.startswith("hsn"):
        return "slingshot"
    if _text(interface / "type") == "32":  # ARPHRD_INFINIBAND: IPoIB, whose port is listed above as well
        return "infiniband"
    return "ethernet" if (interface / "device").exists() else "virtual"


def disk(folder: Path) -> Disk:
    """Room in a folder, and whether a file can be made there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".preflight-") as file:
            file.write(b"x")
            file.flush()
        found = os.statvfs(folder)
    except OSError as error:
        return Disk(path=str(folder), free_bytes=None, num_free_inodes=None, problem=error.strerror or str(error))
    return Disk(
        path=str(folder),
        free_bytes=float(found.f_bavail) * found.f_frsize,
        num_free_inodes=float(found.f_favail) if found.f_files else None,
    )


def own_tcp_addresses(root: Path = ROOT) -> set[str]:
    """Local addresses of this process's established TCP connections to other addresses than its own, from /proc."""
    inodes = set()
    for link in (root / "proc/self/fd").glob("*"):
        with contextlib.suppress(OSError):  # closed in the meantime
            target = os.readlink(link)  # noqa: PTH115  the target is no path
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    found: set[str] = set()
    for name in ("tcp", "tcp6"):
        found |= parse_tcp_table(_text(root / "proc/self/net" / name), inodes)
    return found


def parse_tcp_table(text: str, inodes: set[str]) -> set[str]:
    """IPv4 addresses (mapped ones of IPv6 too) that established connections with these inodes have on this side."""
    found = set()
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10 or fields[3] != "01" or fields[9] not in inodes:
            continue
        digits = fields[1].partition(":")[0]
        if len(digits) == 8 or digits.startswith("0000000000000000FFFF0000"):
            octets = bytes.fromhex(digits[-8:])[::-1]  # the kernel prints the address in the host's byte order
            found.add(".".join(str(octet) for octet in octets))
    return found


def _numa(folder: Path) -> int:
    text = _text(folder / "numa_node")
    return int(text) if re.fullmatch(r"-?\d+", text) else UNKNOWN_NUMA


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
