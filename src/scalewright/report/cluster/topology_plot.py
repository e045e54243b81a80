"""The topology of a node as a figure: a column per NUMA node with GPUs and network ports, and their connections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scalewright import units
from scalewright.here.placement_rules import nearest_nics
from scalewright.here.topology import Topology, cpu_list
from scalewright.records.node_devices import Nic
from scalewright.records.types import Finding
from scalewright.report.cluster.topology import gigabit, uniform_connection
from scalewright.report.figure_file import COLOURS, REST, write_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN_INCH, ROW_INCH = 1.9, 0.34
BOX_WIDTH, BOX_HEIGHT = 0.40, 0.62
"""Size of a device's box, in columns and rows."""
GPU_COLOUR, NIC_COLOUR, LINK_COLOUR, BAD_COLOUR = COLOURS[2], COLOURS[0], COLOURS[1], COLOURS[4]
CPU_CHARS = 26
NUM_LINES = 6
"""Largest number of findings below the picture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """The box of a device: column and row of its centre."""

    label: str
    words: str
    x: float
    y: float
    colour: str


def plot_topology(path: Path, topology: Topology, findings: Sequence[Finding]) -> None:
    """Draw a node into a PNG, SVG or PDF file."""
    write_figure(path, lambda: draw(topology, findings))


def boxes(topology: Topology) -> list[Box]:
    """Boxes of all devices. In the column of their NUMA node, GPUs are on the left and network ports on the right."""
    placed = []
    for column, number in enumerate(_columns(topology)):
        gpus = [gpu for gpu in topology.gpus if gpu.numa == number]
        nics = [nic for nic in topology.nics if nic.numa == number]
        placed += [
            Box(label=gpu.label, words=gpu.label, x=column - 0.23, y=float(row), colour=GPU_COLOUR)
            for row, gpu in enumerate(gpus)
        ]
        placed += [
            Box(label=nic.name, words=_nic_words(nic), x=column + 0.23, y=float(row), colour=NIC_COLOUR)
            for row, nic in enumerate(nics)
        ]
    return placed


def _columns(topology: Topology) -> list[int]:
    """Numbers of the NUMA nodes, then those of devices without a listed node."""
    listed = [node.number for node in topology.numa_nodes]
    others = sorted({d.numa for d in topology.gpus} | {d.numa for d in topology.nics})
    return [*listed, *(number for number in others if number not in listed)]


def _nic_words(nic: Nic) -> str:
    rate = "" if nic.bytes_per_s is None else f"\n{gigabit(nic.bytes_per_s)}"
    return f"{nic.name}{'' if nic.is_up else ' (down)'}{rate}"


def draw(topology: Topology, findings: Sequence[Finding]) -> Figure:
    from matplotlib.figure import Figure

    placed = {box.label: box for box in boxes(topology)}
    columns = _columns(topology)
    num_rows = max([box.y + 1 for box in placed.values()], default=1.0)
    joined = uniform_connection(topology) if len(topology.gpus) > 1 else None
    serious = [finding for finding in findings if finding.severity != "info"]
    for_links = 0.7 if joined else 0.4 if topology.connections else 0.0
    below = for_links + 0.45 * min(len(serious), NUM_LINES + 1)
    figure = Figure(
        figsize=(max(3.4, COLUMN_INCH * len(columns)), ROW_INCH * (num_rows + 2.6 + below)), layout="constrained"
    )
    axes = figure.add_subplot()
    axes.set_axis_off()
    axes.set_xlim(-0.55, len(columns) - 0.45)
    axes.set_ylim(num_rows - 0.3 + below, -1.75)
    axes.set_title(_title(topology), fontsize=8, loc="left")
    for column, number in enumerate(columns):
        _draw_column(axes, topology, column, number, num_rows)
    _draw_connections(axes, topology, placed, joined, num_rows)
    at_fault = {str(value) for finding in serious for value in finding.evidence.values()}
    for box in placed.values():
        _draw_box(axes, box, is_bad=box.label in at_fault)
    _write_findings(axes, serious, first_y=num_rows + for_links - 0.1)
    return figure


def _write_findings(axes: Axes, findings: Sequence[Finding], *, first_y: float) -> None:
    lines = [finding.message for finding in findings[:NUM_LINES]]
    if len(findings) > NUM_LINES:
        lines.append(f"and {len(findings) - NUM_LINES} more")
    for index, line in enumerate(lines):
        axes.text(-0.46, first_y + 0.45 * index, line, ha="left", va="center", fontsize=5.5, color=BAD_COLOUR)


def _title(topology: Topology) -> str:
    names = sorted({gpu.name for gpu in topology.gpus})
    gpus = f"{len(topology.gpus)} x {', '.join(names)}" if names else "no GPU"
    return f"{topology.host}: {gpus}"


def _draw_column(axes: Axes, topology: Topology, column: int, number: int, num_rows: float) -> None:
    from matplotlib.patches import FancyBboxPatch

    axes.add_patch(
        FancyBboxPatch(
            (column - 0.46, -1.5), 0.92, num_rows + 1.0, boxstyle="round,pad=0,rounding_size=0.03",
            facecolor="#f4f4f4", edgecolor=REST, linewidth=0.6, zorder=0,
        )
    )  # fmt: skip
    node = next((node for node in topology.numa_nodes if node.number == number), None)
    if node is None:
        words = "no NUMA node known"
    else:
        memory = "" if node.memory_bytes is None else f"   {units.format(node.memory_bytes, units.BYTES)}"
        cpus = cpu_list(node.cpus)
        shown = cpus if len(cpus) <= CPU_CHARS else f"{len(node.cpus)} in {cpus[: CPU_CHARS - 8]}..."
        words = f"NUMA node {number}{memory}\nCPUs {shown}"
    axes.text(column, -1.05, words, ha="center", va="center", fontsize=6.5)


def _draw_box(axes: Axes, box: Box, *, is_bad: bool) -> None:
    from matplotlib.patches import FancyBboxPatch

    axes.add_patch(
        FancyBboxPatch(
            (box.x - BOX_WIDTH / 2, box.y - BOX_HEIGHT / 2), BOX_WIDTH, BOX_HEIGHT,
            boxstyle="round,pad=0,rounding_size=0.02", facecolor="white", zorder=3,
            edgecolor=BAD_COLOUR if is_bad else box.colour, linewidth=1.8 if is_bad else 0.9,
        )
    )  # fmt: skip
    axes.text(box.x, box.y, box.words, ha="center", va="center", fontsize=5.5, zorder=4)


def _draw_connections(
    axes: Axes, topology: Topology, placed: dict[str, Box], joined: str | None, num_rows: float
) -> None:
    """Lines from GPUs to their nearest ports. Between GPUs: one bar if all pairs are alike, else fast pairs only."""
    for gpu in topology.gpus:
        for nic in nearest_nics(topology, gpu):
            _line(axes, placed[gpu.label], placed[nic.name], NIC_COLOUR, 0.6)
    if joined is not None:
        _draw_bar(axes, topology, placed, joined, num_rows)
        return
    for one, other in ((a, b) for a in topology.gpus for b in topology.gpus if a.number < b.number):
        connection = topology.connection(one.label, other.label) or ""
        if connection.startswith(("NV", "XGMI")):
            lanes = int(connection[2:]) if connection[2:].isdigit() else 4
            _arc(axes, placed[one.label], placed[other.label], 0.4 + 0.12 * lanes)


def _line(axes: Axes, one: Box, other: Box, colour: str, width: float) -> None:
    axes.plot([one.x, other.x], [one.y, other.y], color=colour, linewidth=width, zorder=1, solid_capstyle="round")


def _arc(axes: Axes, one: Box, other: Box, width: float) -> None:
    """A bent line, so that pairs in one row do not hide each other. It is drawn in front of the ports."""
    from matplotlib.patches import FancyArrowPatch

    left, right = sorted((one, other), key=lambda box: (box.x, box.y))
    bend = -0.18 if left.x == right.x else 0.22 / max(1.0, right.x - left.x)
    arc = FancyArrowPatch(
        (left.x, left.y), (right.x, right.y), arrowstyle="-", connectionstyle=f"arc3,rad={bend}", color=LINK_COLOUR,
        linewidth=width, alpha=0.85, zorder=2.5,
    )  # fmt: skip
    axes.add_patch(arc)


def _draw_bar(axes: Axes, topology: Topology, placed: dict[str, Box], joined: str, num_rows: float) -> None:
    """One bar below the columns, a vertical line beside each column, and a short line to each GPU."""
    ends = sorted({placed[gpu.label].x - BOX_WIDTH / 2 - 0.015 for gpu in topology.gpus})
    y = num_rows - 0.2
    right = max(placed[gpu.label].x for gpu in topology.gpus) + BOX_WIDTH / 2
    axes.plot([ends[0], right], [y, y], linewidth=3.0, zorder=2, color=LINK_COLOUR, solid_capstyle="butt")
    axes.text((ends[0] + right) / 2, y + 0.34, f"every pair of GPUs: {joined}", ha="center", va="center", fontsize=6)
    for gpu in topology.gpus:
        box = placed[gpu.label]
        x = box.x - BOX_WIDTH / 2 - 0.015
        axes.plot([x, x, box.x], [y, box.y, box.y], linewidth=1.0, zorder=1, color=LINK_COLOUR)
