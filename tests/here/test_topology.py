"""A node's topology from /sys and its tools: what is where, how it hangs together, and which placements are bad."""

from __future__ import annotations

import io
import json
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console
from topology_cases import TEXTS, FakeNode, dgx_h100, four_a100_bad, lumi, one_gpu_vm

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.here.placement_rules import RULES, catalogued_links, nearest_nics, placement_findings
from scalewright.here.topology import Topology, cpu_list, read_topology
from scalewright.here.topology_tools import lstopo_numa, smi_matrix
from scalewright.records.node_devices import parse_cpu_list, pcie_link
from scalewright.records.types import Finding
from scalewright.report.cluster.topology import print_topology
from scalewright.report.cluster.topology_plot import boxes, plot_topology

Cli = Callable[..., subprocess.CompletedProcess[str]]
CATALOG = Catalog((packaged_data(),))
GIB = 2.0**30


def read(node: FakeNode, cpus: Sequence[int] = range(256)) -> Topology:
    return read_topology(node.root, run_tool=node.ask, cpus=cpus)


def findings(topology: Topology) -> list[Finding]:
    return placement_findings(topology, num_links=catalogued_links(CATALOG))


def printed(topology: Topology, notes: Sequence[Finding]) -> str:
    page = io.StringIO()
    print_topology(Console(width=80, file=page), topology, notes)
    return page.getvalue()


def test_dgx_h100_is_read_whole_and_well_placed(tmp_path: Path) -> None:
    topology = read(dgx_h100(tmp_path))
    assert [node.number for node in topology.numa_nodes] == [0, 1]
    assert topology.numa_nodes[0].cpus == (*range(56), *range(112, 168))
    assert topology.numa_nodes[0].memory_bytes == 1024 * GIB
    assert [gpu.numa for gpu in topology.gpus] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert topology.gpus[0].bus == "0000:1b:00.0"
    assert topology.gpus[0].link is not None
    assert (topology.gpus[0].link.transfers_per_s, topology.gpus[0].link.num_lanes) == (32e9, 16)
    assert {topology.connection(f"GPU{a}", f"GPU{b}") for a in range(8) for b in range(8) if a != b} == {"NV18"}
    assert topology.connection("GPU1", "mlx5_2") == "PXB"
    assert topology.connection("mlx5_9", "GPU0") == "SYS"
    assert {nic.bytes_per_s for nic in topology.nics} == {50e9}
    assert [nic.name for nic in nearest_nics(topology, topology.gpus[7])] == ["mlx5_9"]
    assert findings(topology) == []


def test_dies_of_lumi_sit_where_its_documentation_says(tmp_path: Path) -> None:
    """LUMI documentation, GPU nodes: dies 0 and 1 belong to NUMA node 3, 2 and 3 to 1, 4 and 5 to 0, 6 and 7 to 2."""
    topology = read(lumi(tmp_path))
    assert [gpu.numa for gpu in topology.gpus] == [3, 3, 1, 1, 0, 0, 2, 2]
    assert topology.connection("GPU0", "GPU1") == topology.connection("GPU1", "GPU3") == "XGMI"
    assert topology.connection("GPU0", "GPU5") is None
    assert {(nic.kind, nic.bytes_per_s) for nic in topology.nics} == {("slingshot", 25e9)}
    assert [nearest_nics(topology, gpu)[0].name for gpu in topology.gpus] == [f"hsn{i // 2}" for i in range(8)]
    assert findings(topology) == []


def test_virtual_machine_with_one_gpu(tmp_path: Path) -> None:
    topology = read(one_gpu_vm(tmp_path))
    assert [(gpu.name, gpu.numa, gpu.link) for gpu in topology.gpus] == [("NVIDIA H200", 0, None)]
    assert topology.connections == {}
    assert findings(topology) == []


def test_node_without_gpus_or_tools(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    node.numa(0, "0-3", kib=1 << 20)
    topology = read(node, range(4))
    assert (topology.gpus, topology.nics, findings(topology)) == ((), (), [])
    assert "4 CPUs, no GPUs, " in printed(topology, [])


def test_every_bad_placement_is_found(tmp_path: Path) -> None:
    topology = read(four_a100_bad(tmp_path), range(16))
    rule_and_device = {
        (f.rule, str(f.evidence.get("gpu") or f.evidence.get("device") or "")) for f in findings(topology)
    }
    assert rule_and_device == {
        ("nic-far", "GPU2"), ("nic-far", "GPU3"), ("nic-shared", ""), ("nic-down", ""), ("cpus-far", "GPU2"),
        ("cpus-far", "GPU3"), ("pcie-narrow", "GPU1"), ("pcie-slow", "GPU3"), ("nvlink-missing", "GPU2"),
        ("nvlink-missing", "GPU3"),
    }  # fmt: skip
    assert {rule for rule, _ in rule_and_device} == {rule.id for rule in RULES}
    severity = {f.rule: f.severity for f in findings(topology)}
    assert (severity["pcie-narrow"], severity["pcie-slow"]) == ("error", "info")
    assert all(f.next_step and f.source for f in findings(topology))


def test_gpus_that_show_no_nvlink_though_they_have_it(tmp_path: Path) -> None:
    """Virtual machines without a fabric manager: eight H100, all traffic over PCIe."""
    node = dgx_h100(tmp_path)
    node.answers["nvidia-smi", "topo"] = (TEXTS / "dgx_h100.txt").read_text().replace("NV18", "NODE")
    missing_links = findings(read(node))
    assert {f.rule for f in missing_links} == {"nvlink-missing"}
    assert len(missing_links) == 8


@pytest.mark.parametrize(("way", "is_bad"), [("NV18", False), ("NV16", True), ("NV6", False)])
def test_some_of_a_nodes_gpus_are_judged_by_what_they_show(tmp_path: Path, way: str, is_bad: bool) -> None:
    """Two of eight behind a switch show all their links; two of four in a mesh show the share that is theirs."""
    node = dgx_h100(tmp_path)
    gpus = "".join(f"{i}, NVIDIA H100 80GB HBM3, 00000000:{b}:00.0\n" for i, b in enumerate(("1B", "43")))
    node.answers["nvidia-smi", "--query-gpu=index,name,pci.bus_id"] = gpus
    node.answers["nvidia-smi", "topo"] = f"\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \t{way}\t0-55\nGPU1\t{way}\t X \t0-55\n"
    assert bool([f for f in findings(read(node)) if f.rule == "nvlink-missing"]) == is_bad


def test_hwloc_tells_numa_nodes_that_the_kernel_does_not(tmp_path: Path) -> None:
    node = dgx_h100(tmp_path)
    for path in (tmp_path / "sys").rglob("numa_node"):
        path.write_text("-1\n")
    assert {gpu.numa for gpu in read(node).gpus} == {-1}
    node.answers["lstopo", "--of"] = LSTOPO
    assert [gpu.numa for gpu in read(node).gpus][:2] == [0, -1]
    assert read(node).gpus[4].numa == 1


LSTOPO = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0"><object type="Machine" os_index="0" cpuset="0x0000ffff,0xffffffff">
 <object type="Package" os_index="0" cpuset="0x0000ffff">
  <object type="NUMANode" os_index="0" cpuset="0x0000ffff" nodeset="0x1"/>
  <object type="Bridge" bridge_type="0-1" bridge_pci="0000:[1a-1b]">
   <object type="PCIDev" pci_busid="0000:1b:00.0" pci_type="0302 [10de:2330]"/></object></object>
 <object type="Package" os_index="1" cpuset="0xffff0000">
  <object type="NUMANode" os_index="1" cpuset="0xffff0000" nodeset="0x2"/>
  <object type="Bridge" bridge_type="0-1"><object type="Bridge" bridge_type="1-1">
   <object type="PCIDev" pci_busid="0000:9d:00.0" pci_type="0302 [10de:2330]"/></object></object></object>
</object></topology>"""


@pytest.mark.parametrize("text", ["", "lstopo: command not found", "<broken", "<topology/>"])
def test_text_that_is_no_hwloc_tells_nothing(text: str) -> None:
    assert lstopo_numa(text) == {}


@pytest.mark.parametrize("text", ["", "No devices were found\n", "\tGPU0\nGPU0\t X \n", "Failed to initialize NVML"])
def test_matrix_of_nothing_is_empty(text: str) -> None:
    assert smi_matrix(text) == ({}, {})


def test_cpu_lists_come_back() -> None:
    for text in ("0", "0-3", "0-3,8,10-11"):
        assert cpu_list(parse_cpu_list(text)) == text


def test_card_in_a_narrower_slot_is_not_at_fault(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    folder = node.pci("0000:07:00.0", numa=0, lanes=8)
    (folder.parent / "max_link_width").write_text("8\n")
    link = pcie_link(folder)
    assert link is not None
    assert (link.num_lanes, link.max_num_lanes) == (8, 8)


@pytest.mark.parametrize("make", [dgx_h100, lumi, one_gpu_vm, four_a100_bad])
def test_text_fits_80_columns_and_names_every_device(tmp_path: Path, make: Callable[[Path], FakeNode]) -> None:
    topology = read(make(tmp_path), range(16))
    text = printed(topology, findings(topology))
    assert max(len(line) for line in text.splitlines()) <= 80
    for name in (*(gpu.label for gpu in topology.gpus), *(nic.name for nic in topology.nics)):
        assert name in text


@pytest.mark.parametrize("make", [dgx_h100, lumi, one_gpu_vm, four_a100_bad])
def test_picture_has_a_box_for_every_device_and_is_the_same_each_time(
    tmp_path: Path, make: Callable[[Path], FakeNode]
) -> None:
    topology = read(make(tmp_path), range(16))
    notes = findings(topology)
    for name in ("a.svg", "b.svg"):
        plot_topology(tmp_path / name, topology, notes)
    svg = (tmp_path / "a.svg").read_text()
    assert svg == (tmp_path / "b.svg").read_text()
    words = " ".join(e.text or "" for e in ElementTree.fromstring(svg).iter() if e.tag.endswith("text"))
    placed = boxes(topology)
    assert len(placed) == len(topology.gpus) + len(topology.nics)
    assert len({(box.x, box.y) for box in placed}) == len(placed)
    for box in placed:
        assert box.words.splitlines()[0] in words


def fake_tools(folder: Path, node: FakeNode) -> str:
    """nvidia-smi as a program that prints what the fake node's would."""
    for name, key in (("gpus", "--query-gpu=index,name,pci.bus_id"), ("topo", "topo")):
        (folder / name).write_text(node.answers["nvidia-smi", key])
    script = folder / "nvidia-smi"
    script.write_text(f'#!/bin/sh\ncase "$1" in topo) cat {folder}/topo;; *) cat {folder}/gpus;; esac\n')
    script.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_command_shows_this_node_with_the_tools_gpus(tmp_path: Path, cli: Cli) -> None:
    path = fake_tools(tmp_path, dgx_h100(tmp_path / "node"))
    done = cli("bench", "topology", "--json", "--plot", str(tmp_path / "node.svg"), env={"PATH": path})
    doc = json.loads(done.stdout)
    assert doc["schema"] == "scalewright.topology/1"
    assert [gpu["name"] for gpu in doc["gpus"]] == ["NVIDIA H100 80GB HBM3"] * 8
    assert {"from": "GPU0", "to": "GPU1", "way": "NV18"} in doc["ways"]
    assert doc["numa_nodes"][0]["memory_bytes"] > 0
    assert done.returncode == (1 if [f for f in doc["findings"] if f["severity"] != "info"] else 0)
    assert (tmp_path / "node.svg").exists()


def test_command_says_no_where_something_is_wrong(tmp_path: Path, cli: Cli) -> None:
    path = fake_tools(tmp_path, four_a100_bad(tmp_path / "node"))
    done = cli("bench", "topology", env={"PATH": path})
    assert done.returncode == 1
    assert "nvlink-missing" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_picture_of_no_known_kind_is_refused(tmp_path: Path, cli: Cli) -> None:
    done = cli("bench", "topology", "--plot", "node.bmp", cwd=tmp_path)
    assert done.returncode == 2
    assert "names no kind of picture" in done.stderr
    assert list(tmp_path.iterdir()) == []
