"""A run with rollouts as a figure for a paper: the same lanes and bars as in the page."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scalewright.records.hybrid import HybridStep, SpanKind
from scalewright.records.hybrid_report import HybridShown, TimeWindow
from scalewright.report.figure_file import write_figure
from scalewright.report.hybrid.figures import (
    AGE_COLOURS,
    KIND_COLOURS,
    TRAINED,
    WASTED,
    bars_of,
    carried_by_cuts,
    kind_title,
    tokens,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_INCH = 7.2
LANE_INCH = 0.2
CHARTS_INCH = 1.5
CUTS = ("not cut", "cut once", "cut twice", "cut three times or more")


def plot_hybrid(path: Path, shown: HybridShown) -> None:
    """Draw a run into a PNG, SVG or PDF file: lanes of the run and of a window, carried rollouts, ages, tokens."""
    write_figure(path, lambda: draw(shown))


def draw(shown: HybridShown) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    lanes_inch = 0.35 + LANE_INCH * max(len(shown.lanes), 1)
    figure = Figure(figsize=(WIDTH_INCH, 2 * lanes_inch + CHARTS_INCH + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(3, 3, height_ratios=(lanes_inch, lanes_inch, CHARTS_INCH))
    _draw_strips(figure.add_subplot(grid[0, :]), shown)
    _draw_window(figure.add_subplot(grid[1, :]), shown)
    _draw_bars(figure.add_subplot(grid[2, 0]), shown.iterations, carried_by_cuts, AGE_COLOURS, CUTS, "carried rollouts")
    _draw_ages(figure.add_subplot(grid[2, 1]), shown)
    _draw_bars(
        figure.add_subplot(grid[2, 2]), shown.iterations, tokens, (TRAINED, WASTED), ("trained on", "wasted"), "tokens"
    )
    kinds = [kind for kind in KIND_COLOURS if any(kind in lane.seconds_by_kind for lane in shown.lanes)]
    handles = [Patch(color=KIND_COLOURS[kind], label=kind_title(kind)) for kind in kinds]
    if handles:
        figure.legend(
            handles=handles, loc="outside upper center", ncols=6, frameon=False, fontsize=6.5, handlelength=1.0
        )
    return figure


def _draw_strips(axes: Axes, shown: HybridShown) -> None:
    """Shares of each kind in slices of the whole run."""
    slices = list(itertools.pairwise(shown.slice_edges))
    for at, lane in enumerate(shown.lanes):
        bottoms = [at + 0.42] * len(slices)
        for kind in KIND_COLOURS:
            heights = [-0.84 * min(shares.get(kind, 0.0), 1.0) for shares in lane.shares]
            if any(heights):
                axes.bar(
                    [start for start, _ in slices], heights, width=[end - start for start, end in slices],
                    bottom=bottoms, align="edge", color=KIND_COLOURS[kind], linewidth=0,
                )  # fmt: skip
            bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
        for one in shown.restarts:
            if one.of in (lane.role, f"{lane.role}-{lane.rank}"):
                axes.plot([one.at_s] * 2, [at - 0.42, at + 0.42], color="black", linewidth=2.0)
    for at_s, _ in shown.pauses:
        axes.axvline(at_s, color="black", linewidth=0.6, linestyle=":")
    _name_lanes(axes, shown)
    axes.set_xlim(0.0, shown.total_s or 1.0)
    axes.set_xlabel("time (s)", labelpad=1.0)


def _draw_window(axes: Axes, shown: HybridShown) -> None:
    """What each rank did in a few steps."""
    window = shown.window or TimeWindow(start_s=0.0, end_s=shown.total_s or 1.0)
    for at, lane in enumerate(shown.lanes):
        by_kind: dict[SpanKind, list[tuple[float, float]]] = {}
        for one in lane.segments:
            by_kind.setdefault(one.kind, []).append((one.start_s, one.end_s - one.start_s))
        for kind, pieces in by_kind.items():
            half = 0.15 if kind == "idle" else 0.42
            axes.broken_barh(pieces, (at - half, 2 * half), facecolors=KIND_COLOURS[kind], linewidth=0)
    for step, start_s in window.step_starts:
        axes.axvline(start_s, color="white", linewidth=1.0)
        axes.annotate(
            f"step {step + 1}", (start_s, 1.0), xycoords=("data", "axes fraction"), xytext=(1, 1),
            textcoords="offset points", fontsize=6,
        )  # fmt: skip
    _name_lanes(axes, shown)
    axes.set_xlim(window.start_s, window.end_s)
    axes.set_xlabel("time (s), a typical window", labelpad=1.0)


def _name_lanes(axes: Axes, shown: HybridShown) -> None:
    axes.set_yticks(range(len(shown.lanes)), [lane.title for lane in shown.lanes])
    axes.set_ylim(max(len(shown.lanes), 1) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)


def _draw_bars(
    axes: Axes, steps: Sequence[HybridStep], values_of: Callable[[HybridStep], dict[int, float]],
    colours: Sequence[str], names: Sequence[str], label: str,
) -> None:  # fmt: skip
    bars = bars_of(steps, values_of)
    keys = sorted({key for bar in bars for key, value in bar.values.items() if value})
    bottoms = [0.0] * len(bars)
    places = [bar.first_step + 1 for bar in bars]
    width = (places[1] - places[0]) * 0.9 if len(places) > 1 else 0.9
    for key in keys:
        heights = [bar.values.get(key, 0.0) for bar in bars]
        place = min(key, len(colours) - 1)
        axes.bar(places, heights, bottom=bottoms, width=width, color=colours[place], label=names[place])
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    axes.set(xlabel="iteration", ylabel=label)
    if keys:
        axes.legend(
            frameon=False, fontsize=5.5, handlelength=1.0, ncols=3, loc="lower left", bbox_to_anchor=(-0.05, 0.98),
            columnspacing=0.8,
        )  # fmt: skip
    else:
        axes.text(0.5, 0.5, "none", ha="center", transform=axes.transAxes)


def _draw_ages(axes: Axes, shown: HybridShown) -> None:
    counts, bound = shown.num_by_staleness, shown.settings.staleness
    num = sum(counts.values()) or 1
    over = [WASTED if bound and age > bound else AGE_COLOURS[1] for age in counts]
    axes.bar(list(counts), [100.0 * count / num for count in counts.values()], color=over, width=0.7)
    if bound:
        axes.axvline(bound + 0.5, color="black", linewidth=0.8, linestyle="--")
    axes.set(xlabel="versions old" + (f" (bound {bound})" if bound else ""), ylabel="trained rollouts (%)")
    axes.set_xticks(range(max([*counts, bound]) + 1))
