"""Plots of a pipeline for a paper: accuracy, time and energy by part, roofline and curves, as in the page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from scalewright import units
from scalewright.records.pipeline_report import PipelineShown, StageShown
from scalewright.report.figure_file import LINE_COLOURS
from scalewright.report.pipeline.figures import (
    CURVE_TITLES,
    PART_COLOURS,
    PERCENT,
    colour_index,
    curve_groups,
    label,
    part_title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_INCH = 6.6
ROW_INCH = 0.24
PANEL_INCH = (2.2, 1.6)
MAX_COLUMNS = 3
COLOURS = (LINE_COLOURS[0], LINE_COLOURS[4], LINE_COLOURS[2], LINE_COLOURS[3], LINE_COLOURS[1], LINE_COLOURS[5])
SHAPES = {"prefill": "o", "decode": "s", "training": "^", "log_probs": "D"}
LOG_SPAN = 50.0
"""Curves of KL and gradients that span more have a logarithmic axis, as in pipeline.js."""


def pipeline_figures(pipeline: PipelineShown) -> Iterator[tuple[str, Figure]]:
    """Every plot of a pipeline, with the name of its files."""
    done = [stage for stage in pipeline.stages if stage.took_s is not None]
    if any(stage.accuracy for stage in done):
        yield "stages_accuracy", _accuracy([stage for stage in done if stage.accuracy])
    if any(stage.seconds_by_part for stage in done):
        yield "stages_time", _stacked(pipeline, done, lambda stage: stage.seconds_by_part, units.SECONDS, "time")
    if any(stage.energy_j for stage in done):
        yield "stages_energy", _stacked(pipeline, done, lambda stage: stage.energy_by_part, units.JOULES, "energy")
    if any(stage.roofline for stage in done):
        yield "stages_roofline", _roofline(done)
    for title, stages in curve_groups(pipeline):
        words = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
        yield f"curves_{words}", _curves(title, stages)


def _one(height_inch: float) -> tuple[Figure, Axes]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_INCH, height_inch), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def _accuracy(stages: Sequence[StageShown]) -> Figure:
    """A row for each stage, a dot for each seed, with its 95 % interval."""
    names = list(dict.fromkeys(stage.name for stage in stages))
    figure, axes = _one(0.7 + ROW_INCH * len(names))
    for at, name in enumerate(names):
        seeds = [stage for stage in stages if stage.name == name]
        for number, stage in enumerate(seeds):
            assert stage.accuracy is not None
            y = at + 0.18 * (number - (len(seeds) - 1) / 2.0)
            value, low, high = (
                PERCENT * end for end in (stage.accuracy.value, stage.accuracy.low, stage.accuracy.high)
            )
            axes.plot([low, high], [y, y], color=COLOURS[0], linewidth=1.2, solid_capstyle="butt")
            axes.plot([value], [y], "o", color=COLOURS[0], markersize=4 if len(seeds) == 1 else 3)
    _rows(axes, names)
    axes.set_xlim(left=0.0)
    axes.set_xlabel("greedy accuracy on the test set (%), 95 % intervals")
    return figure


def _rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="x", linewidth=0.3, color="#dddddd")
    axes.set_axisbelow(True)


def _stacked(
    pipeline: PipelineShown, stages: Sequence[StageShown], values_of: Callable[[StageShown], Mapping[str, float]],
    dimension: units.Dimension, word: str,
) -> Figure:  # fmt: skip
    """A bar for each stage: shares of its parts, and the total beside it."""
    rows = [(stage, values) for stage in stages if sum((values := values_of(stage)).values()) > 0]
    figure, axes = _one(1.0 + ROW_INCH * len(rows))
    start = [0.0] * len(rows)
    for name, colour in PART_COLOURS.items():
        shares = [PERCENT * values.get(name, 0.0) / sum(values.values()) for _, values in rows]
        if any(shares):
            axes.barh(range(len(rows)), shares, left=start, height=0.7, color=colour, label=part_title(name))
        start = [a + b for a, b in zip(start, shares, strict=True)]
    for at, (_, values) in enumerate(rows):
        total = units.format(sum(values.values()), dimension)
        axes.annotate(total, (PERCENT, at), xytext=(3, 0), textcoords="offset points", va="center", fontsize=6.5)
    _rows(axes, [label(stage, pipeline) for stage, _ in rows])
    axes.set_xlim(0.0, PERCENT)
    axes.set_xlabel(f"share of the {word} (%)" + ("; split by time" if word == "energy" else ""))
    figure.legend(loc="outside lower center", ncols=5, frameon=False, handlelength=1.0, columnspacing=1.2)
    return figure


def _roofline(stages: Sequence[StageShown]) -> Figure:
    """Work of every stage under the roofs of the device, where they are known."""
    from matplotlib.ticker import EngFormatter

    figure, axes = _one(3.2)
    axes.set(xscale="log", yscale="log", xlabel="arithmetic intensity (FLOP per byte)", ylabel="rate (FLOP/s)")
    names = [stage.name for stage in stages if stage.roofline]
    names = list(dict.fromkeys(names))
    for stage in stages:
        for point in stage.roofline:
            axes.plot(
                [point.flop_per_byte], [point.flop_per_s], SHAPES[point.name], markersize=4.5, markeredgecolor="white",
                markeredgewidth=0.4, color=COLOURS[names.index(stage.name) % len(COLOURS)],
            )  # fmt: skip
    roofed = next((s for s in stages if s.peak_flop_per_s and s.memory_bytes_per_s), None)
    if roofed is not None and roofed.peak_flop_per_s and roofed.memory_bytes_per_s:
        peak, slope = roofed.peak_flop_per_s, roofed.memory_bytes_per_s
        ridge = peak / slope
        low, high = min(axes.get_xlim()[0], ridge / 2.0), max(axes.get_xlim()[1], ridge * 4.0)
        axes.plot([low, ridge, high], [low * slope, peak, peak], color="black", linewidth=1.0, zorder=1)
    axes.yaxis.set_major_formatter(EngFormatter(sep=" "))
    axes.xaxis.set_major_formatter("{x:,g}")
    marks = {shape for stage in stages for shape in (point.name for point in stage.roofline)}
    for number, name in enumerate(names):
        axes.plot([], [], "s", color=COLOURS[number % len(COLOURS)], label=name)
    for name in (name for name in SHAPES if name in marks):
        axes.plot([], [], SHAPES[name], color="#555555", label=part_title(name))
    figure.legend(loc="outside right center", frameon=False, handlelength=1.0)
    return figure


def _curves(title: str, stages: Sequence[StageShown]) -> Figure:
    """A panel for each figure of the steps; stages of the group over each other."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = [name for name in CURVE_TITLES if any(name in stage.curve for stage in stages)]
    num_columns = min(len(names), MAX_COLUMNS)
    num_rows = -(-len(names) // num_columns)
    figure = Figure(figsize=(PANEL_INCH[0] * num_columns, 0.4 + PANEL_INCH[1] * num_rows), layout="constrained")
    FigureCanvasAgg(figure)
    panels = list(figure.subplots(num_rows, num_columns, squeeze=False).ravel())
    colours = colour_index(list(stages))
    for axes, name in zip(panels, names, strict=False):
        _panel(axes, name, [(stage, COLOURS[at % len(COLOURS)]) for stage, at in zip(stages, colours, strict=True)])
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    figure.suptitle(title, fontsize=7.5, x=0.01, ha="left")
    handles = {stage.name: panels[0].plot([], [], color=COLOURS[at % len(COLOURS)])[0]
               for stage, at in zip(stages, colours, strict=True)}  # fmt: skip
    if len(handles) > 1:
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def _panel(axes: Axes, name: str, lines: Sequence[tuple[StageShown, str]]) -> None:
    factor = PERCENT if name.endswith("_frac") else 1.0
    drawn: list[float] = []
    for stage, colour in lines:
        pairs = [
            (step + 1.0, factor * value)
            for step, value in zip(stage.curve.get("step", ()), stage.curve.get(name, ()), strict=False)
            if value is not None and step is not None
        ]
        drawn += [value for _, value in pairs]
        style = "o-" if len(pairs) == 1 else "-"
        axes.plot([x for x, _ in pairs], [y for _, y in pairs], style, color=colour, linewidth=0.9, markersize=3)
    positive = [value for value in drawn if value > 0.0]
    if name.startswith(("kl_", "grad")) and positive and max(drawn) / min(positive) > LOG_SPAN:
        axes.set_yscale("log")
    axes.set_title(CURVE_TITLES[name] + (" (%)" if factor == PERCENT else ""), fontsize=7.0, loc="left")
    axes.set_xlabel("step")
