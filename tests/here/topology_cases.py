"""Nodes for the topology tests: trees like /sys, and what the tools of such a node print.

The texts and trees are made up in the form of the real ones: a DGX H100, a LUMI-G node, a virtual machine with one GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

TEXTS = Path(__file__).parent / "topology"


@dataclass
class FakeNode:
    """A node's /sys under `root`, and its tools' answers."""

    root: Path
    answers: dict[tuple[str, ...], str] = field(default_factory=dict)

    def ask(self, command: Sequence[str]) -> str:
        return self.answers.get(tuple(command[:2]), "")

    def put(self, path: str, text: str) -> None:
        file = self.root / "sys" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")

    def numa(self, number: int, cpus: str, *, kib: int = 1 << 30) -> None:
        self.put(f"devices/system/node/node{number}/cpulist", cpus)
        self.put(f"devices/system/node/node{number}/meminfo", f"Node {number} MemTotal:       {kib} kB")

    def pci(
        self, bus: str, *, numa: int, speed: str = "32.0 GT/s PCIe", lanes: int = 16, max_speed: str = "32.0 GT/s PCIe",
        max_lanes: int = 16, **files: str,
    ) -> Path:  # fmt: skip
        """A PCI device below a bridge of its own, reachable through bus/pci/devices as the kernel links it."""
        bridge = f"devices/pci{bus[:4]}:00/{bus[:4]}:00:{bus[5:7]}.0"
        folder = f"{bridge}/{bus}"
        self.put(f"{bridge}/max_link_speed", "32.0 GT/s PCIe")
        self.put(f"{bridge}/max_link_width", "16")
        link = {
            "current_link_speed": speed, "current_link_width": str(lanes), "max_link_speed": max_speed,
            "max_link_width": str(max_lanes), "numa_node": str(numa),
        }  # fmt: skip
        for name, text in (link | files).items():
            self.put(f"{folder}/{name}", text)
        entry = self.root / "sys/bus/pci/devices" / bus
        entry.parent.mkdir(parents=True, exist_ok=True)
        entry.symlink_to(self.root / "sys" / folder)
        return self.root / "sys" / folder

    def infiniband(self, name: str, bus: str, *, numa: int, rate: str = "400 Gb/sec (4X NDR)", up: bool = True) -> None:
        device = self.pci(bus, numa=numa)
        port = f"class/infiniband/{name}/ports/1"
        self.put(f"{port}/rate", rate)
        self.put(f"{port}/state", "4: ACTIVE" if up else "1: DOWN")
        self.put(f"{port}/link_layer", "InfiniBand")
        (self.root / "sys/class/infiniband" / name / "device").symlink_to(device)

    def interface(self, name: str, bus: str, *, numa: int, mbit: int) -> None:
        device = self.pci(bus, numa=numa)
        self.put(f"class/net/{name}/speed", str(mbit))
        self.put(f"class/net/{name}/operstate", "up")
        (self.root / "sys/class/net" / name / "device").symlink_to(device)

    def smi(self, gpus: Sequence[tuple[str, str]], matrix: str) -> None:
        lines = [f"{i}, {name}, 0000{bus[:4]}:{bus[5:].upper()}" for i, (name, bus) in enumerate(gpus)]
        self.answers["nvidia-smi", "--query-gpu=index,name,pci.bus_id"] = "\n".join(lines) + "\n"
        self.answers["nvidia-smi", "topo"] = matrix


def dgx_h100(root: Path) -> FakeNode:
    node = FakeNode(root)
    node.numa(0, "0-55,112-167")
    node.numa(1, "56-111,168-223")
    buses = [f"0000:{b}:00.0" for b in ("1b", "43", "52", "61", "9d", "c3", "d1", "df")]
    for index, bus in enumerate(buses):
        node.pci(bus, numa=index // 4, vendor="0x10de", **{"class": "0x030200"})
    for index in range(10):
        node.infiniband(f"mlx5_{index}", f"0000:{0xA0 + index:02x}:00.0", numa=index // 5)
    node.smi([("NVIDIA H100 80GB HBM3", bus) for bus in buses], (TEXTS / "dgx_h100.txt").read_text())
    return node


def lumi(root: Path) -> FakeNode:
    """Eight graphics dies over four NUMA nodes, the order of which is famous for not being that of the dies."""
    node = FakeNode(root)
    for number in range(4):
        low = 16 * number
        node.numa(number, f"{low}-{low + 15},{low + 64}-{low + 79}", kib=131072 * 1024)
    numa_of_die = (3, 3, 1, 1, 0, 0, 2, 2)
    buses = [f"0000:{b}:00.0" for b in ("c1", "c6", "c9", "ce", "d1", "d6", "d9", "de")]
    for number in range(4):
        node.put(f"class/kfd/kfd/topology/nodes/{number}/gpu_id", "0")
        node.put(f"class/kfd/kfd/topology/nodes/{number}/properties", "cpu_cores_count 32\nlocation_id 0\ndomain 0")
    for die, bus in enumerate(buses):
        node.pci(bus, numa=numa_of_die[die], speed="16.0 GT/s PCIe", max_speed="16.0 GT/s PCIe", vendor="0x1002")
        folder = f"class/kfd/kfd/topology/nodes/{4 + die}"
        node.put(f"{folder}/gpu_id", str(51000 + die))
        node.put(f"{folder}/name", "aldebaran")
        location = int(bus[5:7], 16) << 8
        node.put(f"{folder}/properties", f"cpu_cores_count 0\nsimd_count 440\nlocation_id {location}\ndomain 0")
        for peer in (die ^ 1, (die + 2) % 8):
            link = f"{folder}/io_links/{peer}/properties"
            node.put(link, f"type 11\nnode_from {4 + die}\nnode_to {4 + peer}\nweight 15\nmax_bandwidth 200000")
        node.put(
            f"{folder}/io_links/9/properties", f"type 2\nnode_from {4 + die}\nnode_to {numa_of_die[die]}\nweight 20"
        )
    for index, numa in enumerate((3, 1, 0, 2)):
        node.interface(f"hsn{index}", f"0000:{0xE0 + index:02x}:00.0", numa=numa, mbit=200_000)
    return node


def one_gpu_vm(root: Path) -> FakeNode:
    """A virtual machine: one NUMA node, whose devices do not say that they belong to it, and no PCIe bridges."""
    node = FakeNode(root)
    node.numa(0, "0-15")
    node.pci("0000:00:05.0", numa=-1, speed="Unknown", lanes=0, vendor="0x10de", **{"class": "0x030200"})
    node.smi([("NVIDIA H200", "0000:00:05.0")], (TEXTS / "one_gpu_vm.txt").read_text())
    return node


def four_a100_bad(root: Path) -> FakeNode:
    """A node on which much is wrong: one adapter for four GPUs, far from two; a weak pair; a narrow and a slow link."""
    node = FakeNode(root)
    node.numa(0, "0-15")
    node.numa(1, "16-31")
    buses = [f"0000:{b}:00.0" for b in ("07", "0b", "48", "4c")]
    for index, bus in enumerate(buses):
        lanes, speed = (8 if index == 1 else 16), ("2.5 GT/s PCIe" if index == 3 else "16.0 GT/s PCIe")
        node.pci(bus, numa=index // 2, lanes=lanes, speed=speed, max_speed="16.0 GT/s PCIe")
    node.infiniband("mlx5_0", "0000:01:00.0", numa=0, rate="200 Gb/sec (4X HDR)")
    node.infiniband("mlx5_1", "0000:02:00.0", numa=1, rate="10 Gb/sec (4X SDR)", up=False)
    node.smi([("NVIDIA A100-SXM4-40GB", bus) for bus in buses], (TEXTS / "four_a100_bad.txt").read_text())
    return node
