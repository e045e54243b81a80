"""Reading nodes: trees of /sys as an InfiniBand node, a Slingshot node and this machine have them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from preflight_cases import write_tree

from scalewright.records.node_devices import network_ports, numa_cpus, parse_cpu_list, pcie_link
from scalewright.records.node_list import expand_nodes
from scalewright.run.preflight.facts import RankFacts, RankGpu
from scalewright.run.preflight.gather import disk, gather, parse_tcp_table, placed
from scalewright.run.world import World

INFINIBAND = {
    "sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)",
    "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
    "sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand",
    "sys/class/infiniband/mlx5_0/device/numa_node": "0",
    "sys/class/infiniband/mlx5_0/device/current_link_speed": "32.0 GT/s PCIe",
    "sys/class/infiniband/mlx5_0/device/max_link_speed": "32.0 GT/s PCIe",
    "sys/class/infiniband/mlx5_0/device/current_link_width": "16",
    "sys/class/infiniband/mlx5_0/device/max_link_width": "16",
    "sys/class/infiniband/mlx5_1/ports/1/rate": "200 Gb/sec (2X NDR)",
    "sys/class/infiniband/mlx5_1/ports/1/state": "4: ACTIVE",
    "sys/class/infiniband/mlx5_1/ports/1/link_layer": "InfiniBand",
    "sys/class/infiniband/mlx5_2/ports/1/rate": "100 Gb/sec (4X EDR)",
    "sys/class/infiniband/mlx5_2/ports/1/state": "1: DOWN",
    "sys/class/infiniband/mlx5_2/ports/1/link_layer": "Ethernet",
    "sys/class/net/ib0/type": "32",
    "sys/class/net/ib0/operstate": "up",
    "sys/class/net/lo/operstate": "unknown",
    "sys/devices/system/node/node0/cpulist": "0-55,112-167",
    "sys/devices/system/node/node1/cpulist": "56-111,168-223",
    "sys/devices/system/node/node2/cpulist": "",
}
GPU = {
    "sys/bus/pci/devices/0000:1b:00.0/numa_node": "0",
    "sys/bus/pci/devices/0000:1b:00.0/current_link_speed": "32.0 GT/s PCIe",
    "sys/bus/pci/devices/0000:1b:00.0/max_link_speed": "32.0 GT/s PCIe",
    "sys/bus/pci/devices/0000:1b:00.0/current_link_width": "8",
    "sys/bus/pci/devices/0000:1b:00.0/max_link_width": "16",
}
SLINGSHOT = {
    f"sys/class/net/hsn{n}/{name}": text
    for n in range(4)
    for name, text in {"speed": "200000", "operstate": "up", "type": "1", "device/numa_node": str(n)}.items()
}


def test_ports_of_an_infiniband_node(tmp_path: Path) -> None:
    ports = {nic.name: nic for nic in network_ports(write_tree(tmp_path, INFINIBAND) / "sys")}
    assert set(ports) == {"mlx5_0:1", "mlx5_1:1", "mlx5_2:1", "ib0"}
    assert ports["mlx5_0:1"].bytes_per_s == pytest.approx(50e9)
    assert ports["mlx5_1:1"].bytes_per_s == pytest.approx(25e9)  # trained at half width
    assert [ports[n].is_up for n in ("mlx5_0:1", "mlx5_2:1")] == [True, False]
    assert [ports[n].kind for n in ("mlx5_0:1", "mlx5_2:1", "ib0")] == ["infiniband", "roce", "infiniband"]
    assert ports["mlx5_0:1"].numa == 0
    assert ports["mlx5_1:1"].numa == -1
    link = ports["mlx5_0:1"].link
    assert link is not None
    assert link.max_bytes_per_s == pytest.approx(63.0e9, rel=0.01)  # PCIe 5.0 x16


def test_ports_of_a_slingshot_node(tmp_path: Path) -> None:
    ports = list(network_ports(write_tree(tmp_path, SLINGSHOT) / "sys"))
    assert [(nic.name, nic.kind, nic.bytes_per_s, nic.numa) for nic in ports] == [
        (f"hsn{n}", "slingshot", 25e9, n) for n in range(4)
    ]


def test_numa_nodes_without_cpus_are_left_out(tmp_path: Path) -> None:
    cpus_of_node = numa_cpus(write_tree(tmp_path, INFINIBAND) / "sys")
    assert list(cpus_of_node) == ["0", "1"]
    assert len(cpus_of_node["0"]) == 112


def test_the_link_and_place_of_a_gpu(tmp_path: Path) -> None:
    gpu = placed(RankGpu(uuid="GPU-1", bus="0000:1B:00.0", name="H100"), write_tree(tmp_path, GPU))
    assert gpu.numa == 0
    assert gpu.link is not None
    assert (gpu.link.num_lanes, gpu.link.max_num_lanes) == (8, 16)
    assert placed(RankGpu(uuid="GPU-1", bus="0000:ff:00.0", name="H100"), tmp_path).link is None


@pytest.mark.parametrize("speed", ["Unknown", "Unknown speed", ""])
def test_a_link_that_is_no_pcie_is_not_judged(tmp_path: Path, speed: str) -> None:
    """Devices on an integrated fabric (MI250X on xGMI, GH200 on C2C) say so."""
    tree = {f"d/{w}_link_speed": speed for w in ("current", "max")} | {"d/current_link_width": "0"}
    assert pcie_link(write_tree(tmp_path, tree) / "d") is None


def test_cpu_lists() -> None:
    assert parse_cpu_list("0-3,8,10-11\n") == (0, 1, 2, 3, 8, 10, 11)
    assert parse_cpu_list("") == ()


def test_room_in_folders(tmp_path: Path) -> None:
    room = disk(tmp_path / "new")
    assert room.problem == ""
    assert room.free_bytes is not None
    assert room.free_bytes > 0
    assert list((tmp_path / "new").iterdir()) == []  # the probe's file is gone
    (tmp_path / "file").write_text("")
    assert disk(tmp_path / "file" / "below").problem


def test_own_connections_of_the_kernels_table() -> None:
    table = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0101D50A:4E20 0201D50A:9C40 01 00000000:00000000 00:00000000 00000000     0        0 111 1 0 20 4 30 10 -1
   1: 0100007F:4E20 0100007F:9C41 01 00000000:00000000 00:00000000 00000000     0        0 222 1 0 20 4 30 10 -1
   2: 0101D50A:4E20 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 111 1 0 20 4 30 10 -1
"""
    assert parse_tcp_table(table, {"111"}) == {"10.213.1.1"}
    assert parse_tcp_table(table, {"222"}) == {"127.0.0.1"}
    mapped = "head\n 0: 0000000000000000FFFF00000101D50A:1 0:2 01 0 0 0 0 0 333 1\n"
    assert parse_tcp_table(mapped, {"333"}) == {"10.213.1.1"}


def test_facts_of_this_machine_survive_the_way_to_rank_0(tmp_path: Path) -> None:
    world = World.from_environment({}, host="here")
    facts = gather(world, {}, folders=[tmp_path], gpu=RankGpu(uuid="u", bus="", name="G"), num_visible_gpus=1)
    assert set(facts.cpus) == os.sched_getaffinity(0)
    assert RankFacts.from_dict(facts.as_dict()) == facts


def test_node_lists() -> None:
    assert expand_nodes("n[1-3,07],login1") == ("n1", "n2", "n3", "n07", "login1")
    assert expand_nodes("r[1-2]n[3-4]") == ("r1n3", "r1n4", "r2n3", "r2n4")
    assert expand_nodes("nid005001") == ("nid005001",)
    assert expand_nodes("(null)") == ()
