"""Plots of a study for a paper, with the marks of the page.

Line and small circle: predicted; band, or bar of a single point: 90 % interval. Filled dot: measured, with its spread;
pale: in doubt. Diamond: published.
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
from scalewright.records.study_report import MetricShown, Number, PointRow, StudyReport
from scalewright.report.figure_file import COLOURS, STYLE, check_plot, encoded

if TYPE_CHECKING:
    from matplotlib.axes import Axes
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
DASHES = ("-", "--", "-.", ":")
BINARY = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
TIMES = ((86400.0, "d", 172800.0), (3600.0, "h", 7200.0), (60.0, "min", 120.0), (1.0, "s", 1.0), (1e-3, "ms", 1e-3))
DECIMAL = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Points of one series in one panel."""

    name: str
    colour: str
    style: str
    rows: tuple[PointRow, ...]


def axis_unit(metric: MetricShown, highest: float) -> tuple[float, str]:
    """Divisor of the values on an axis, and the unit of the quotient."""
    if metric.quantity == units.FRACTION.name:
        return 0.01, "%"
    if metric.unit == "s":
        return next(((size, name) for size, name, start in TIMES if highest >= start), (1e-6, "µs"))
    if metric.unit == "B":
        return next(((float(size), name) for size, name in BINARY if highest >= size), (1.0, "B"))
    whole = units.BYTES_PER_BIT if metric.quantity == units.LINK_BYTES_PER_S.name else 1.0
    size, prefix = next(((size, name) for size, name in DECIMAL if highest >= size * whole), (1.0, ""))
    if metric.quantity == units.COUNT.name:
        words = {"k": "10³ ", "M": "10⁶ ", "G": "10⁹ ", "T": "10¹² ", "": ""}
        return (size, f"{words[prefix]}{metric.unit}".strip()) if prefix in words else (1.0, metric.unit)
    return size * whole, f"{prefix}{metric.unit}"


def write_plots(folder: Path, report: StudyReport) -> list[Path]:
    """Draw every metric as SVG and PNG. Returns the paths."""
    check_plot(folder / "any.svg")
    import matplotlib as mpl

    paths = []
    with mpl.rc_context(STYLE):
        for name, figure in figures(report):
            for kind in ("svg", "png"):
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
    """A panel for every combination of groups. The group with the most values is shown by colour instead."""
    groups = list(report.curves[0].group)
    counts = {name: len({curve.group[name] for curve in report.curves}) for name in groups}
    by_colour = max(groups, key=lambda name: counts[name])
    others = [name for name in groups if name != by_colour]
    panels: dict[str, dict[str, tuple[int, ...]]] = {}
    for curve in report.curves:
        title = ", ".join(curve.group[name] for name in others)
        panels.setdefault(title, {})[curve.group[by_colour]] = curve.points
    names = list(dict.fromkeys(curve.group[by_colour] for curve in report.curves))
    shown = list(panels.items())[:MAX_PANELS]
    num_columns = min(len(shown), MAX_COLUMNS if len(shown) != 4 else 2)
    figure, axes = _figure(-(-len(shown) // num_columns), num_columns)
    for axis, (title, members) in zip(axes, shown, strict=False):
        lines = [
            Line(
                name=name, colour=COLOURS[names.index(name) % len(COLOURS)],
                style=DASHES[names.index(name) // len(COLOURS) % len(DASHES)],
                rows=tuple(report.points[i] for i in members[name]),
            )
            for name in names if name in members
        ]  # fmt: skip
        _draw_lines(axis, lines, metric, report.scale_name, title=title)
    for axis in axes[len(shown) :]:
        axis.set_axis_off()
    _legend(figure, axes[: len(shown)])
    return figure


def _legend(figure: Figure, axes: Sequence[Axes]) -> None:
    entries = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        entries.update(dict(zip(labels, handles, strict=True)))
    if len(entries) > 1:
        figure.legend(
            entries.values(), entries.keys(), loc="outside lower center", ncols=min(len(entries), 5), frameon=False
        )


def _draw_lines(axis: Axes, lines: Sequence[Line], metric: MetricShown, scale_name: str, *, title: str) -> None:
    values = [n.value for line in lines for row in line.rows for n in _numbers(row, metric.name)]
    size, unit = axis_unit(metric, max(values, default=1.0))
    scales = sorted({row.scale for line in lines for row in line.rows if row.scale is not None})
    by_line = [(line, _predicted(line, metric.name)) for line in lines]
    single = [line for line, predicted in by_line if len(predicted) == 1]
    for line, predicted in by_line:
        if len(predicted) == 1:
            _draw_single(
                axis, line, *predicted[0], size, aside_pt=SIDE_PT * (single.index(line) - len(single) / 2 + 0.5)
            )
        elif predicted:
            _draw_line(axis, line, predicted, size, has_band=len(lines) <= 3)
        _draw_marks(axis, line, metric.name, size)
    if scales and scales[-1] / scales[0] >= 8:
        axis.set_xscale("log", base=2)
        axis.minorticks_off()
    axis.set_xticks(scales, [f"{scale:,.0f}" for scale in scales])
    axis.set_ylim(bottom=0)
    axis.set_xlabel(scale_name)
    axis.set_ylabel(f"{metric.title} ({unit})" if unit else metric.title)
    axis.set_title(title, fontsize=7.0, loc="left")


def _predicted(line: Line, name: str) -> list[tuple[float, Number]]:
    return [
        (row.scale, row.predicted[name])
        for row in line.rows
        if name in row.predicted and row.scale is not None and not row.problem
    ]


def _draw_line(
    axis: Axes, line: Line, predicted: Sequence[tuple[float, Number]], size: float, *, has_band: bool
) -> None:
    x, y = [scale for scale, _ in predicted], [number.value / size for _, number in predicted]
    axis.plot(x, y, line.style, color=line.colour, label=line.name, linewidth=1.0, clip_on=False, **CIRCLE)
    if has_band and all(n.low is not None and n.high is not None for _, n in predicted):
        low, high = ([float(getattr(n, end)) / size for _, n in predicted] for end in ("low", "high"))
        axis.fill_between(x, low, high, color=line.colour, alpha=0.12, linewidth=0)


def _draw_single(axis: Axes, line: Line, scale: float, number: Number, size: float, *, aside_pt: float) -> None:
    """A series of one predicted point, beside others at the same scale."""
    from matplotlib.transforms import ScaledTranslation

    shift = ScaledTranslation(aside_pt / POINTS_PER_INCH, 0.0, axis.figure.dpi_scale_trans)
    low, high = (number.value if end is None else end for end in (number.low, number.high))
    axis.update_datalim([(scale, low / size), (scale, high / size)])  # a shifted mark does not widen the axes by itself
    axis.errorbar(
        [scale], [number.value / size], yerr=np.array([[number.value - low], [high - number.value]]) / size,
        linestyle="none", color=line.colour, label=line.name, elinewidth=0.8, zorder=4, clip_on=False,
        transform=axis.transData + shift, **CIRCLE | {"markersize": 4},
    )  # fmt: skip


def _draw_marks(axis: Axes, line: Line, name: str, size: float) -> None:
    for row in line.rows:
        if row.scale is None:
            continue
        measured = row.measured.get(name)
        if measured is not None:
            low, high = (measured.value if end is None else end for end in (measured.low, measured.high))
            spread = np.array([[max(measured.value - low, 0.0)], [max(high - measured.value, 0.0)]]) / size
            axis.errorbar(
                [row.scale],
                [measured.value / size],
                yerr=spread,
                fmt="o",
                color=line.colour,
                markersize=4,
                lw=0.8,
                clip_on=False,
                markerfacecolor=(line.colour, PALE if row.doubts else 1.0),
            )
        for figure in row.published:
            if figure.metric == name:
                axis.plot(
                    [row.scale], [figure.number.value / size], "D", markerfacecolor="white",
                    markeredgecolor=line.colour, markersize=5, clip_on=False, zorder=5,
                )  # fmt: skip


def _numbers(row: PointRow, name: str) -> list[Number]:
    own = [numbers[name] for numbers in (row.predicted, row.measured) if name in numbers]
    return own + [figure.number for figure in row.published if figure.metric == name]


def _bars(report: StudyReport, metric: MetricShown) -> Figure:
    """One row for each point: the prediction with its interval, the measurement as a dot, published as a diamond."""
    rows = [row for row in report.points if _numbers(row, metric.name)][:40]
    figure, axes = _figure(1, 1)
    figure.set_size_inches(6.6, max(1.2, 0.22 * len(rows) + 0.7))
    axis = axes[0]
    size, unit = axis_unit(metric, max((n.value for row in rows for n in _numbers(row, metric.name)), default=1.0))
    for at, row in enumerate(rows):
        predicted, measured = row.predicted.get(metric.name), row.measured.get(metric.name)
        if predicted is not None:
            if predicted.low is not None and predicted.high is not None:
                ends = [predicted.low / size, predicted.high / size]
                axis.plot(ends, [at, at], color=COLOURS[0], alpha=0.3, linewidth=4)
            axis.plot([predicted.value / size], [at], "|", color=COLOURS[0], markersize=9, label="predicted")
        if measured is not None:
            inner = (COLOURS[4], PALE if row.doubts else 1.0)
            axis.plot(
                [measured.value / size],
                [at],
                "o",
                color=COLOURS[4],
                markerfacecolor=inner,
                markersize=4,
                label="measured",
            )
        for published in row.published:
            if published.metric == metric.name:
                axis.plot([published.number.value / size], [at], "D", color=COLOURS[2], markersize=4, label="published")
    axis.set_yticks(range(len(rows)), [", ".join(row.labels.values()) for row in rows])
    axis.invert_yaxis()
    axis.set_xlim(left=0)
    axis.set_xlabel(f"{metric.title} ({unit})" if unit else metric.title)
    _legend(figure, [axis])
    return figure


def _distribution(report: StudyReport) -> Figure:
    figure, axes = _figure(1, 1)
    for number, row in enumerate(row for row in report.points if "batch_time_s" in row.series):
        values = np.sort(np.asarray(row.series["batch_time_s"]))
        style = DASHES[number // len(COLOURS) % len(DASHES)]
        axes[0].plot(
            values, np.arange(1, len(values) + 1) / len(values), style, color=COLOURS[number % len(COLOURS)],
            label=", ".join(row.labels.values()), linewidth=1.0,
        )  # fmt: skip
        if "batch_time_s" in row.elbows:
            bend = row.elbows["batch_time_s"]
            axes[0].plot([bend.time_s], [bend.share_frac], "+", color=COLOURS[number % len(COLOURS)], markersize=8)
    axes[0].set_xscale("log")
    axes[0].set_xlabel("batch time (s)")
    axes[0].set_ylabel("share of batches")
    _legend(figure, axes)
    return figure
