"""Gather facts about a rank and its node: processors, devices, ports, driver, image and folders.

Every reader takes the root of /sys and /proc, so that tests can read copies of other machines' trees.
"""

from __future__ import annotations

import contextlib
import os
import platform
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from scalewright.records.node_devices import network_ports, numa_cpus, numa_of, pci_folder, pcie_link, sys_text
from scalewright.run.preflight.facts import Disk, RankFacts, RankGpu
from scalewright.run.provenance import container, driver, versions
from scalewright.run.world import World

ROOT = Path("/")
MUST_AGREE = ("torch", "numpy", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "triton", "scalewright")


def gather(
    world: World,
    env: Mapping[str, str],
    *,
    folders: Iterable[Path] = (),
    gpu: RankGpu | None = None,
    num_visible_gpus: int = 0,
    root: Path = ROOT,
) -> RankFacts:
    """Facts of this rank and its node. `gpu` comes from the framework; everything else is read from `root`."""
    return RankFacts(
        rank=world.rank,
        local_rank=world.local_rank,
        host=world.host,
        switch=world.switch,
        cpus=tuple(sorted(os.sched_getaffinity(0))),
        num_node_cpus=os.cpu_count() or 0,
        cpus_of_numa=numa_cpus(root / "sys"),
        device="cpu" if gpu is None else "cuda",
        gpu=None if gpu is None else placed(gpu, root),
        num_visible_gpus=num_visible_gpus,
        nics=tuple(network_ports(root / "sys")),
        driver=driver(),
        image=container(env),
        software={"python": platform.python_version(), **_software()},
        disks=tuple(disk(folder) for folder in folders),
    )


def _software() -> dict[str, str]:
    return {name: version for name, version in versions().items() if name in MUST_AGREE}


def placed(gpu: RankGpu, root: Path = ROOT) -> RankGpu:
    """The device with its NUMA node and its PCIe link, if the kernel reports them."""
    folder = pci_folder(root / "sys", gpu.bus)
    if not gpu.bus or not folder.is_dir():
        return gpu
    return replace(gpu, numa=numa_of(folder), link=pcie_link(folder))


def disk(folder: Path) -> Disk:
    """Free space of a folder, and whether a file can be created there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".preflight-") as file:
            file.write(b"x")
            file.flush()
        stats = os.statvfs(folder)
    except OSError as error:
        return Disk(path=str(folder), free_bytes=None, num_free_inodes=None, problem=error.strerror or str(error))
    return Disk(
        path=str(folder),
        free_bytes=float(stats.f_bavail) * stats.f_frsize,
        num_free_inodes=float(stats.f_favail) if stats.f_files else None,
    )


def own_tcp_addresses(root: Path = ROOT) -> set[str]:
    """Local addresses of this process's established TCP connections to other addresses than its own, from /proc."""
    inodes = set()
    for link in (root / "proc/self/fd").glob("*"):
        with contextlib.suppress(OSError):  # closed in the meantime
            target = os.readlink(link)  # noqa: PTH115  the target is no path
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    addresses: set[str] = set()
    for name in ("tcp", "tcp6"):
        addresses |= parse_tcp_table(sys_text(root / "proc/self/net" / name), inodes)
    return addresses


def parse_tcp_table(text: str, inodes: set[str]) -> set[str]:
    """IPv4 addresses (mapped ones of IPv6 too) that established connections with these inodes have on this side."""
    addresses = set()
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10 or fields[3] != "01" or fields[9] not in inodes:
            continue
        digits = fields[1].partition(":")[0]
        if len(digits) == 8 or digits.startswith("0000000000000000FFFF0000"):
            octets = bytes.fromhex(digits[-8:])[::-1]  # the kernel prints the address in the host's byte order
            addresses.add(".".join(str(octet) for octet in octets))
    return addresses
