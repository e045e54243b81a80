"""A plan as a figure: where time and memory of the best layouts go, and the step time over the number of nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalewright import units
from scalewright.errors import ConfigError
from scalewright.report.figure_file import COLOURS, MEMORY_COLOURS, check_plot, write_figure
from scalewright.workload.layout import Layout

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_INCH = 7.0
ROW_INCH = 0.36
"""Of one layout's bar."""
CURVE_INCH = 2.3
LABEL_CHARS = 66
"""Of a layout, that fit beside the other panel."""
NUM_TERMS = 6
PASSES = ("_forward", "_backward")
OTHER = "other"
RESERVE = "reserve"
LINE = "#00204d"
BAND = "#b9c3d6"
INK = "#222222"
MUTED = "#777777"

Terms = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One layout: a label, and its terms of time and of memory."""

    label: str
    time: Terms
    memory: Terms
    time_s: float
    interval_s: tuple[float, float]
    shown_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPoint:
    """The best layout on so many nodes."""

    num_nodes: int
    step_time_s: float
    interval_s: tuple[float, float]


def plot_plan(path: Path, plan_document: dict[str, Any]) -> None:
    """Draw a `plan/1` document into a PNG, SVG or PDF file."""
    check_plot(path)
    if plan_document["best"] is None:
        raise ConfigError(f"plan {plan_document['id']} has no layout that fits: there is nothing to draw in {path}")
    write_figure(path, lambda: draw(plan_document), style={"hatch.linewidth": 0.4})


def bars(plan_document: dict[str, Any]) -> list[Bar]:
    """The best layout and its alternatives, the best first."""
    return [_bar(body) for body in (plan_document["best"], *plan_document["alternatives"])]


def _bar(body: dict[str, Any]) -> Bar:
    low, high = body["step_time_interval_s"]
    memory = _leaves(body["memory"], "total_bytes")
    memory[RESERVE] = max(body.get("device_bytes", body["reserved_bytes"]) - body["memory_bytes"], 0.0)
    return Bar(
        label=_label(body["layout"]),
        time=_leaves(body["time"], "total_s"),
        memory=memory,
        time_s=body["step_time_s"],
        interval_s=(low, high),
        shown_bytes=body.get("device_bytes", body["reserved_bytes"]),
    )


def _label(layout: dict[str, Any]) -> str:
    """A layout without its batch, which all of them share."""
    return Layout(**layout).brief.replace(f",gbs={layout['gbs']}", "")


def _leaves(term: dict[str, Any], key: str) -> Terms:
    """The innermost terms; forward and backward of one kind are one."""
    if not term.get("parts"):
        name = str(term["name"])
        for suffix in PASSES:
            name = name.removesuffix(suffix)
        return {name: float(term[key])}
    by_name: Terms = {}
    for part in term["parts"]:
        for name, value in _leaves(part, key).items():
            by_name[name] = by_name.get(name, 0.0) + value
    return by_name


def scaling_points(plan_document: dict[str, Any]) -> list[ScalingPoint]:
    """Node counts at which something fits, fewest first."""
    points = []
    for row in plan_document["scaling"]:
        if row["fits"]:
            low, high = row["step_time_interval_s"]
            point = ScalingPoint(num_nodes=row["num_nodes"], step_time_s=row["step_time_s"], interval_s=(low, high))
            points.append(point)
    return sorted(points, key=lambda point: point.num_nodes)


def largest_terms(rows: Sequence[Terms]) -> list[str]:
    """The terms that matter most in any of the bars, in the same order for all; the rest is one more."""
    peak: Terms = {}
    for row in rows:
        for name, value in row.items():
            peak[name] = max(peak.get(name, 0.0), value)
    named = [name for name, value in peak.items() if value > 0.0 and name != RESERVE]
    return sorted(named, key=lambda name: (-peak[name], name))[:NUM_TERMS]


def draw(plan_document: dict[str, Any]) -> Figure:
    """Bars above, one row per layout; the scaling curve below where there is more than one node count."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown, points = bars(plan_document), scaling_points(plan_document)
    has_curve = len(points) > 1
    above = 0.62 + ROW_INCH * len(shown)
    height = above + 0.4 + (CURVE_INCH if has_curve else 0.0)
    figure = Figure(figsize=(WIDTH_INCH, height))
    FigureCanvasAgg(figure)
    figure.text(0.02, 1.0 - 0.06 / height, heading(plan_document), fontsize=7.0, va="top", color=INK)
    bottom, size = 1.0 - above / height, ROW_INCH * len(shown) / height
    _draw_time(figure.add_axes((0.02, bottom, 0.46, size)), shown)
    _draw_memory(figure.add_axes((0.54, bottom, 0.44, size)), shown, plan_document["device_memory_bytes"])
    if has_curve:
        curve = figure.add_axes((0.085, 0.42 / height, 0.895, (CURVE_INCH - 0.55) / height))
        _draw_scaling(curve, points, plan_document)
    return figure


def heading(plan_document: dict[str, Any]) -> str:
    request, best = plan_document["request"], plan_document["best"]
    return (
        f"{request['model']} on {plan_document['system']}: {plan_document['num_nodes']:,} nodes, "
        f"{plan_document['num_gpus']:,} devices, batch {request['global_batch']:,}, {best['input']['precision']}"
    )


def _draw_time(axes: Axes, shown: list[Bar]) -> None:
    _stack(axes, [bar.time for bar in shown], COLOURS)
    longest = max(bar.time_s for bar in shown)
    for row, bar in enumerate(shown):
        size = min(5.5, 5.5 * LABEL_CHARS / len(bar.label))
        axes.annotate(
            bar.label, (0.0, row), xytext=(0, 8.8), textcoords="offset points", fontsize=size, va="center",
            color=INK, fontweight="bold" if row == 0 else "normal",
        )  # fmt: skip
        total = units.format(bar.time_s, units.SECONDS)
        axes.annotate(total, (bar.time_s, row), xytext=(3, 0), textcoords="offset points", fontsize=6.0, va="center")
    axes.set_xlim(0.0, longest * 1.16)
    axes.set_xlabel("predicted step time (s)", labelpad=1.5)


def _draw_memory(axes: Axes, shown: list[Bar], device_bytes: float) -> None:
    gib = float(2**30)
    _stack(axes, [{name: value / gib for name, value in bar.memory.items()} for bar in shown], MEMORY_COLOURS)
    axes.axvline(device_bytes / gib, color=INK, linewidth=0.9, linestyle=(0, (4, 2)))
    axes.annotate(
        "device", (device_bytes / gib, 1.0), xycoords=("data", "axes fraction"), xytext=(-2, 1),
        textcoords="offset points", fontsize=6.0, ha="right", va="bottom", color=INK,
    )  # fmt: skip
    widest = max(device_bytes, *(bar.shown_bytes for bar in shown)) / gib
    for row, bar in enumerate(shown):
        share = f"{bar.shown_bytes / device_bytes:.0%}"
        axes.annotate(share, (widest, row), xytext=(4, 0), textcoords="offset points", fontsize=6.0, va="center")
    axes.set_xlim(0.0, widest * 1.09)
    axes.set_xlabel("memory of the fullest device (GiB)", labelpad=1.5)


def _stack(axes: Axes, rows: list[Terms], colours: Sequence[str]) -> None:
    """Horizontal bars from the top down, the same colour for a term in every row."""
    named = largest_terms(rows)
    starts = [0.0] * len(rows)
    segments = [(name, colours[i], [row.get(name, 0.0) for row in rows]) for i, name in enumerate(named)]
    rest = [sum(value for name, value in row.items() if name not in (*named, RESERVE)) for row in rows]
    segments.append((OTHER, "white", rest))
    segments.append((RESERVE, "white", [row.get(RESERVE, 0.0) for row in rows]))
    for name, colour, widths in segments:
        if max(widths) > 0.0:
            axes.barh(
                range(len(rows)), widths, left=starts, height=0.42, color=colour, linewidth=0.5,
                edgecolor="white" if name in named else MUTED, hatch="//////" if name == OTHER else "",
                label=name.replace("_", " "),
            )  # fmt: skip
            starts = [start + width for start, width in zip(starts, widths, strict=True)]
    axes.set_ylim(len(rows) - 0.7, -0.78)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.tick_params(length=2.0, width=0.5)
    axes.legend(
        loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=4, fontsize=5.8, frameon=False, handlelength=1.1,
        handleheight=0.8, columnspacing=0.9, handletextpad=0.4, borderaxespad=0.2, labelspacing=0.25,
    )  # fmt: skip


def _draw_scaling(axes: Axes, points: list[ScalingPoint], plan_document: dict[str, Any]) -> None:
    nodes, times = [p.num_nodes for p in points], [p.step_time_s for p in points]
    axes.set(xscale="log", yscale="log")
    low, high = [p.interval_s[0] for p in points], [p.interval_s[1] for p in points]
    axes.fill_between(nodes, low, high, color=BAND, alpha=0.6, linewidth=0.0, label="interval of the prediction")
    ideal = [times[0] * nodes[0] / n for n in nodes]
    axes.plot(nodes, ideal, color=MUTED, linewidth=0.8, linestyle=(0, (2, 2)), label="perfect scaling")
    axes.plot(
        nodes, times, color=LINE, linewidth=1.2, marker="o", markersize=3.2, label="best layout (% of perfect scaling)"
    )
    _ring(axes, points, plan_document["num_nodes"], marker="o", label="planned")
    worth = (plan_document["recommended"] or {}).get("num_nodes")
    if worth != plan_document["num_nodes"]:
        _ring(axes, points, worth, marker="s", label="recommended")
    _name_ticks(axes, nodes, [*low, *high])
    axes.set_xlabel("nodes", labelpad=1.5)
    axes.set_ylabel("predicted step time (s)")
    axes.legend(loc="lower left", fontsize=6.0, frameon=False, handlelength=1.8, labelspacing=0.3, borderaxespad=0.2,
                markerscale=0.8)  # fmt: skip
    _name_efficiencies(axes, points)


def _ring(axes: Axes, points: list[ScalingPoint], num_nodes: int | None, *, marker: str, label: str) -> None:
    for point in points:
        if point.num_nodes == num_nodes:
            axes.plot(
                [num_nodes], [point.step_time_s], linestyle="none", marker=marker, markersize=8.0, label=label,
                markerfacecolor="none", markeredgecolor=INK, markeredgewidth=0.9,
            )  # fmt: skip


def _name_efficiencies(axes: Axes, points: list[ScalingPoint]) -> None:
    """What is left of perfect scaling from the first point on."""
    first = points[0]
    for point in points[1:]:
        kept = first.step_time_s * first.num_nodes / (point.step_time_s * point.num_nodes)
        axes.annotate(
            f"{kept:.0%}", (point.num_nodes, point.step_time_s), xytext=(4, 4), textcoords="offset points", fontsize=6.0
        )


def _name_ticks(axes: Axes, nodes: list[int], times: list[float]) -> None:
    from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

    axes.xaxis.set_major_locator(FixedLocator(nodes))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:,.0f}")
    bottom, top = min(times) / 1.15, max(times) * 1.15
    axes.set_ylim(bottom, top)
    decades = range(math.floor(math.log10(bottom)), math.ceil(math.log10(top)) + 1)
    steps = (1, 2, 5) if top / bottom < 300 else (1,)
    axes.yaxis.set_major_locator(FixedLocator([m * 10.0**d for d in decades for m in steps]))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(which="major", length=2.5, width=0.5)
    axes.tick_params(which="minor", length=1.5, width=0.4)
