"""Plots of a study for a paper, with the marks of the page.

Line and small circle: predicted; band, or bar of a single point: 90 % interval. Filled dot: measured, with its spread;
pale: in doubt. Diamond: published. Arrow with a number: a bar that goes on beyond the axis, and its end.
Cross: where the tail of a distribution begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scalewright import units
from scalewright.records.documents import write_bytes
from scalewright.records.study_report import RATIO, MetricShown, Number, PointRow, StudyReport
from scalewright.report.figure_file import LINE_COLOURS, STYLE, check_library, encoded
from scalewright.report.pipeline.plots import pipeline_figures
from scalewright.report.study.axes import ValueAxis, value_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

PANEL_INCH = (3.3, 2.4)
MAX_PANELS = 12
MAX_COLUMNS = 3
PALE = 0.45
"""Opacity of a measurement in doubt, as in study.js."""
SIDE_PT = 6.0
"""Distance between predicted single points at the same scale."""
POINTS_PER_INCH = 72.0
CIRCLE: dict[str, Any] = {"marker": "o", "markersize": 3, "markerfacecolor": "white", "markeredgewidth": 0.8}
"""A predicted point, as in study.js."""
MAX_BANDS = 3
"""Series in one panel whose bands can be told apart."""
MAX_BARS = 40
ROW_INCH = 0.2
GREY = "#555555"
DASHES = ("-", "--", "-.", ":")
KINDS = ("svg", "png", "pdf")
MARKS = {"published": ("D", "white"), "measured": ("o", GREY)}
"""Shape and fill of marks in the legend, in grey: their colour is that of their series."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Points of one series in one panel."""

    name: str
    colour: str
    style: str
    rows: tuple[PointRow, ...]


def write_plots(folder: Path, report: StudyReport) -> list[Path]:
    """Draw every metric as SVG, PNG and PDF. Returns the paths."""
    check_library()
    import matplotlib as mpl

    paths = []
    with mpl.rc_context(STYLE):
        drawn = () if report.pipeline is None else pipeline_figures(report.pipeline)
        for name, figure in (*figures(report), *drawn):
            for kind in KINDS:
                paths.append(folder / f"{name}.{kind}")
                write_bytes(paths[-1], encoded(figure, kind))
    return paths


def figures(report: StudyReport) -> Iterator[tuple[str, Figure]]:
    for metric in report.metrics:
        if report.curves:
            yield metric.name, _curves(report, metric)
        else:
            yield metric.name, _bars(report, metric)
    if any("batch_time_s" in row.series for row in report.points):
        yield "batch_time_cdf", _distribution(report)


def _figure(num_rows: int, num_columns: int) -> tuple[Figure, list[Axes]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(PANEL_INCH[0] * num_columns, PANEL_INCH[1] * num_rows), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(num_rows, num_columns, squeeze=False)
    return figure, list(grid.ravel())


def _curves(report: StudyReport, metric: MetricShown) -> Figure:
    """A panel for every combination of groups. The group with the most values is shown by colour instead.

    Ratios and shares have one axis in all panels, so that panels can be compared.
    """
    groups = list(report.curves[0].group)
    counts = {name: len({curve.group[name] for curve in report.curves}) for name in groups}
    by_colour = max(groups, key=lambda name: (counts[name], name == report.compared_axis), default="")
    others = [name for name in groups if name != by_colour]
    panels: dict[str, dict[str, tuple[int, ...]]] = {}
    for curve in report.curves:
        if _is_drawn(report, metric, curve.points):
            title = ", ".join(curve.group[name] for name in others)
            panels.setdefault(title, {})[curve.group.get(by_colour, report.title)] = curve.points
    names = list(dict.fromkeys(curve.group.get(by_colour, report.title) for curve in report.curves))
    shown = list(panels.items())[:MAX_PANELS]
    num_columns = min(len(shown), MAX_COLUMNS if len(shown) != 4 else 2)
    figure, axes = _figure(-(-len(shown) // num_columns), num_columns)
    drawn = [report.points[i] for _, members in shown for points in members.values() for i in points]
    is_compared = metric.name == RATIO or metric.quantity == units.FRACTION.name
    common = [number for row in drawn for number in _numbers(row, metric.name)] if is_compared else []
    for axis, (title, members) in zip(axes, shown, strict=False):
        lines = [
            Line(
                name=name, colour=LINE_COLOURS[names.index(name) % len(LINE_COLOURS)],
                style=DASHES[names.index(name) // len(LINE_COLOURS) % len(DASHES)],
                rows=tuple(report.points[i] for i in members[name]),
            )
            for name in names if name in members
        ]  # fmt: skip
        _draw_lines(
            axis, lines, value_axis(metric, common or _numbers_of(lines, metric)), report.scale_name, title=title
        )
    for axis in axes[len(shown) :]:
        axis.set_axis_off()
    has_band = any(len(members) <= MAX_BANDS for _, members in shown)
    _legend(figure, axes[: len(shown)], marks=_marks_drawn(report, metric, has_band=has_band))
    return figure


def _is_drawn(report: StudyReport, metric: MetricShown, points: Sequence[int]) -> bool:
    """Whether a curve has something to show. A ratio is 1 at the points that all others are compared with."""
    rows = [report.points[index] for index in points]
    values = [number.value for row in rows for number in _numbers(row, metric.name)]
    return bool(values) and not (metric.name == RATIO and all(value == 1.0 for value in values))


def _marks_drawn(report: StudyReport, metric: MetricShown, *, has_band: bool) -> dict[str, Any]:
    """What the marks of a figure mean, for its legend."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    name, handles_by_name = metric.name, dict[str, Any]()
    if has_band and any(row.predicted[name].low is not None for row in report.points if name in row.predicted):
        handles_by_name["90 % interval"] = Patch(facecolor=GREY, alpha=0.3, linewidth=0)
    has = {
        "measured": any(name in row.measured for row in report.points),
        "published": any(figure.metric == name for row in report.points for figure in row.published),
    }
    for origin, (shape, fill) in MARKS.items():
        if has[origin]:
            handles_by_name[origin] = Line2D(
                [], [], linestyle="none", marker=shape, markerfacecolor=fill, markeredgecolor=GREY, markersize=4
            )
    return handles_by_name


def _legend(figure: Figure, axes: Sequence[Axes], *, marks: dict[str, Any] | None = None) -> None:
    entries: dict[str, Any] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        entries = dict(zip(labels, handles, strict=True)) | entries  # a line before a single point
    entries |= marks or {}
    if len(entries) > 1:
        num_columns = max(2, int(1.8 * figure.get_size_inches()[0] / (0.5 + 0.055 * max(map(len, entries)))) // 2)
        num_rows = -(-len(entries) // num_columns)
        figure.legend(
            entries.values(), entries.keys(), loc="outside lower center", ncols=-(-len(entries) // num_rows),
            frameon=False, columnspacing=1.2, handlelength=1.8,
        )  # fmt: skip


def _numbers_of(lines: Sequence[Line], metric: MetricShown) -> list[Number]:
    return [number for line in lines for row in line.rows for number in _numbers(row, metric.name)]


def _draw_lines(axis: Axes, lines: Sequence[Line], values: ValueAxis, scale_name: str, *, title: str) -> None:
    metric = values.metric
    scales = sorted({row.scale for line in lines for row in line.rows if row.scale is not None})
    by_line = [(line, _predicted(line, metric.name)) for line in lines]
    single = [line for line, predicted in by_line if len(predicted) == 1]
    for line, predicted in by_line:
        if len(predicted) == 1:
            aside_pt = SIDE_PT * (single.index(line) - len(single) / 2 + 0.5)
            _draw_single(axis, line, *predicted[0], values, aside_pt=aside_pt)
        elif predicted:
            _draw_line(axis, line, predicted, values, has_band=len(lines) <= MAX_BANDS)
        _draw_marks(axis, line, values)
    if scales and scales[-1] / scales[0] >= 8:
        axis.set_xscale("log", base=2)
        axis.minorticks_off()
    axis.set_xticks(scales, [f"{scale:,.0f}" for scale in scales])
    axis.set_xlabel(scale_name)
    if values.is_log:
        axis.set_yscale("log")
    axis.set_ylim(values.low, values.high)
    _name_ticks(axis.yaxis, values)
    axis.set_ylabel(values.title)
    axis.set_title(title, fontsize=7.0, loc="left")


def _name_ticks(axis: Axis, values: ValueAxis) -> None:
    """1,000 and 0.1, not 10 to a power."""
    if values.is_log:
        from matplotlib.ticker import LogLocator, NullFormatter

        spans = values.high / values.low
        axis.set_major_locator(LogLocator(subs=(1.0,) if spans > 300 else (1.0, 2.0, 5.0)))
        axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(lambda value, _: f"{value:,.6g}")


def _predicted(line: Line, name: str) -> list[tuple[float, Number]]:
    return [
        (row.scale, row.predicted[name])
        for row in line.rows
        if name in row.predicted and row.scale is not None and not row.problem
    ]


def _draw_line(
    axis: Axes, line: Line, predicted: Sequence[tuple[float, Number]], values: ValueAxis, *, has_band: bool
) -> None:
    x, y = [scale for scale, _ in predicted], [number.value / values.size for _, number in predicted]
    axis.plot(x, y, line.style, color=line.colour, label=line.name, linewidth=1.0, clip_on=False, **CIRCLE)
    if not has_band or any(n.low is None or n.high is None for _, n in predicted):
        return
    low, high = ([float(getattr(n, end)) / values.size for _, n in predicted] for end in ("low", "high"))
    axis.fill_between(x, low, high, color=line.colour, alpha=0.12, linewidth=0)
    scale, furthest = max(predicted, key=lambda one: one[1].high or 0.0)
    _draw_cut(axis, line, scale, furthest, values)


def _draw_cut(
    axis: Axes,
    line: Line,
    scale: float,
    number: Number,
    values: ValueAxis,
    *,
    aside_pt: float = 0.0,
    drop_pt: float = 0.0,
) -> None:
    """An arrow at the end of the axis, and where the bar or band ends that goes on beyond it."""
    if number.high is None or not values.cuts(number.high):
        return
    arrow = {"arrowstyle": "->", "color": line.colour, "linewidth": 0.8, "shrinkA": 0.0, "shrinkB": 0.0}
    flat: dict[str, Any] = {"textcoords": "offset points", "annotation_clip": False}
    axis.annotate("", (scale, values.high), xytext=(aside_pt, -10), arrowprops=arrow, **flat)
    axis.annotate(
        values.words(number.high), (scale, values.high), xytext=(aside_pt + 3.0, -1.0 - drop_pt), va="top", ha="left",
        fontsize=6.0, color=line.colour, **flat,
    )  # fmt: skip


def _draw_single(axis: Axes, line: Line, scale: float, number: Number, values: ValueAxis, *, aside_pt: float) -> None:
    """A series of one predicted point, beside others at the same scale."""
    from matplotlib.transforms import ScaledTranslation

    shift = ScaledTranslation(aside_pt / POINTS_PER_INCH, 0.0, axis.figure.dpi_scale_trans)
    at = number.value / values.size
    low, high = (at if end is None else values.end(end) for end in (number.low, number.high))
    axis.update_datalim([(scale, at)])  # a shifted mark does not widen the axes by itself
    axis.errorbar(
        [scale], [at], yerr=np.array([[at - low], [high - at]]),
        linestyle="none", color=line.colour, label=line.name, elinewidth=0.8, zorder=4, clip_on=False,
        transform=axis.transData + shift, **CIRCLE | {"markersize": 4},
    )  # fmt: skip
    _draw_cut(axis, line, scale, number, values, aside_pt=aside_pt)


def _draw_marks(axis: Axes, line: Line, values: ValueAxis) -> None:
    name = values.metric.name
    for row in line.rows:
        if row.scale is None:
            continue
        measured = row.measured.get(name)
        if measured is not None:
            at = measured.value / values.size
            low, high = (at if end is None else values.end(end) for end in (measured.low, measured.high))
            axis.errorbar(
                [row.scale], [at], yerr=np.array([[max(at - low, 0.0)], [max(high - at, 0.0)]]), fmt="o",
                color=line.colour, markersize=4, lw=0.8, clip_on=False,
                markerfacecolor=(line.colour, PALE if row.doubts else 1.0),
            )  # fmt: skip
            _draw_cut(axis, line, row.scale, measured, values, drop_pt=8.0)
        for figure in row.published:
            if figure.metric == name:
                axis.plot(
                    [row.scale], [figure.number.value / values.size], "D", markerfacecolor="white",
                    markeredgecolor=line.colour, markersize=5, clip_on=False, zorder=5,
                )  # fmt: skip


def _numbers(row: PointRow, name: str) -> list[Number]:
    """What is drawn of a metric: a point that cannot run has no prediction."""
    own = [row.predicted[name]] if name in row.predicted and not row.problem else []
    own += [row.measured[name]] if name in row.measured else []
    return own + [figure.number for figure in row.published if figure.metric == name]


def _bars(report: StudyReport, metric: MetricShown) -> Figure:
    """One row for each point: the prediction with its interval, the measurement as a dot, published as a diamond."""
    rows = [row for row in report.points if _numbers(row, metric.name)][:MAX_BARS]
    figure, axes = _figure(1, 1)
    figure.set_size_inches(6.6, max(1.2, ROW_INCH * len(rows) + 0.7))
    axis = axes[0]
    values = value_axis(metric, (n for row in rows for n in _numbers(row, metric.name)))
    for at, row in enumerate(rows):
        _draw_bar(axis, at, row, values)
    axis.set_yticks(range(len(rows)), _names(rows))
    axis.set_ylim(len(rows) - 0.4, -0.6)
    if values.is_log:
        axis.set_xscale("log")
    axis.set_xlim(values.low, values.high)
    _name_ticks(axis.xaxis, values)
    axis.grid(axis="x", linewidth=0.3, color="#dddddd")
    axis.set_axisbelow(True)
    axis.set_xlabel(values.title)
    _legend(figure, [axis])
    return figure


def _names(rows: Sequence[PointRow]) -> list[str]:
    """The labels in which the points differ."""
    varying = [name for name in rows[0].labels if len({row.labels.get(name) for row in rows}) > 1] if rows else []
    return [", ".join(row.labels[name] for name in varying or row.labels if row.labels.get(name)) for row in rows]


def _draw_bar(axis: Axes, at: int, row: PointRow, values: ValueAxis) -> None:
    name, size = values.metric.name, values.size
    predicted, measured = row.predicted.get(name), row.measured.get(name)
    for number, colour, width in ((predicted, LINE_COLOURS[0], 4.0), (measured, LINE_COLOURS[4], 0.8)):
        if number is None or number.low is None or number.high is None or (number is predicted and row.problem):
            continue
        ends = [values.end(number.low), values.end(number.high)]
        axis.plot(ends, [at, at], color=colour, alpha=0.3 if number is predicted else 1.0, linewidth=width,
                  solid_capstyle="butt")  # fmt: skip
        if values.cuts(number.high):
            axis.plot([values.high], [at], ">", color=colour, markersize=4, clip_on=False)
            axis.annotate(values.words(number.high), (values.high, at), xytext=(4, 0), textcoords="offset points",
                          va="center", fontsize=6.0, annotation_clip=False)  # fmt: skip
    if predicted is not None and not row.problem:
        axis.plot([predicted.value / size], [at], "|", color=LINE_COLOURS[0], markersize=9, label="predicted")
    if measured is not None:
        inner = (LINE_COLOURS[4], PALE if row.doubts else 1.0)
        axis.plot(
            [measured.value / size], [at], "o", color=LINE_COLOURS[4], markerfacecolor=inner, markersize=4,
            label="measured",
        )  # fmt: skip
    for published in row.published:
        if published.metric == name:
            axis.plot(
                [published.number.value / size], [at], "D", markerfacecolor="none", markeredgecolor=LINE_COLOURS[2],
                markersize=5, label="published",
            )  # fmt: skip


def _distribution(report: StudyReport) -> Figure:
    figure, axes = _figure(1, 1)
    for number, row in enumerate(row for row in report.points if "batch_time_s" in row.series):
        values = np.sort(np.asarray(row.series["batch_time_s"]))
        style = DASHES[number // len(LINE_COLOURS) % len(DASHES)]
        axes[0].plot(
            values, np.arange(1, len(values) + 1) / len(values), style, color=LINE_COLOURS[number % len(LINE_COLOURS)],
            label=", ".join(row.labels.values()), linewidth=1.0,
        )  # fmt: skip
        if "batch_time_s" in row.elbows:
            bend = row.elbows["batch_time_s"]
            axes[0].plot(
                [bend.time_s], [bend.share_frac], "+", color=LINE_COLOURS[number % len(LINE_COLOURS)], markersize=8
            )
    axes[0].set_xscale("log")
    axes[0].set_xlabel("batch time (s)")
    axes[0].set_ylabel("share of batches")
    _legend(figure, axes)
    return figure
