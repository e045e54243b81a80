"""Parsers of nvidia-smi, lstopo and the AMD driver: how the devices of a node are connected."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

Matrix = dict[tuple[str, str], str]
"""Type of connection by pair of devices, in the words of `nvidia-smi topo`: NV18, PIX, PXB, PHB, NODE, SYS."""
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_CONNECTION = re.compile(r"^(NV\d+|X|PIX|PXB|PHB|NODE|SYS)$")
_NIC_NAME = re.compile(r"^\s*(NIC\d+):\s*(\S+)\s*$")
_LABEL = re.compile(r"^(GPU\d+|NIC\d+|mlx\w+)$")
XGMI = 11
"""HSA_IOLINK_TYPE_XGMI: the type number of links between AMD GPUs."""


def smi_matrix(text: str) -> tuple[Matrix, dict[str, str]]:
    """The matrix of `nvidia-smi topo -m`, with each pair once, and the kernel's names of NIC0, NIC1, ..."""
    lines = [_ESCAPES.sub("", line).rstrip() for line in text.splitlines()]
    names = {match.group(1): match.group(2) for line in lines if (match := _NIC_NAME.match(line))}
    columns: list[str] = []
    matrix: Matrix = {}
    for line in lines:
        words = line.replace("\t", " ").split()
        if not columns:
            columns = [word for word in words if _LABEL.match(word)]
            continue
        if not words or words[0] not in columns:
            continue
        for other, connection in zip(columns, words[1:], strict=False):
            if _CONNECTION.match(connection) and connection != "X" and (other, words[0]) not in matrix:
                matrix[words[0], other] = connection
    return matrix, names


def smi_gpus(text: str) -> list[tuple[int, str, str]]:
    """Number, name and PCI address from lines such as `0, NVIDIA H100 80GB HBM3, 00000000:1B:00.0`."""
    gpus = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 3 and parts[0].isdigit():
            domain, _, address = parts[2].lower().partition(":")
            gpus.append((int(parts[0]), parts[1], f"{domain[-4:]}:{address}"))
    return gpus


def lstopo_numa(text: str) -> dict[str, int]:
    """NUMA node of each PCI device in hwloc's XML: the node with the CPUs of the nearest ancestor that has CPUs."""
    if not text.lstrip().startswith("<"):
        return {}
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError:
        return {}
    nodes = {
        int(node.get("cpuset", "").replace("0x", "").replace(",", "") or "0", 16): int(node.get("os_index", "-1"))
        for node in root.iter("object")
        if node.get("type") == "NUMANode"
    }
    numa_of_bus: dict[str, int] = {}

    def visit(element: ElementTree.Element, cpuset: str) -> None:
        here = element.get("cpuset") or cpuset
        if element.get("type") == "PCIDev" and here:
            number = nodes.get(int(here.replace("0x", "").replace(",", ""), 16))
            if number is not None:
                numa_of_bus[str(element.get("pci_busid"))] = number
        for child in element:
            visit(child, here)

    visit(root, "")
    return numa_of_bus


def kfd_bus(domain: int, location: int) -> str:
    """PCI address from the kernel's packed form: bus in bits 8 to 15, device in 3 to 7, function in 0 to 2."""
    return f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"


def amd_links(sys: Path, labels: Mapping[str, str]) -> Matrix:
    """Pairs of AMD GPUs with an Infinity Fabric link, as `XGMI`."""
    of_node: dict[str, str] = {}
    nodes = (sys / "class/kfd/kfd/topology/nodes").glob("[0-9]*")
    ordered = sorted(nodes, key=lambda path: int(path.name))
    for node in ordered:
        properties = _properties(node / "properties")
        bus = kfd_bus(properties.get("domain", 0), properties.get("location_id", 0))
        if bus in labels:
            of_node[node.name] = labels[bus]
    links: Matrix = {}
    for node in ordered:
        for link in sorted((node / "io_links").glob("*")):
            properties = _properties(link / "properties")
            one, other = (of_node.get(str(properties.get(key, -1))) for key in ("node_from", "node_to"))
            is_new = one is not None and other is not None and (other, one) not in links
            if properties.get("type") == XGMI and is_new and one and other:
                links[one, other] = "XGMI"
    return links


def _properties(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split() for line in lines)
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
