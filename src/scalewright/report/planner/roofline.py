"""A prediction as a figure: the largest operations under the device's roofs, and where time and memory go."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalewright import units
from scalewright.costs.roofline import Roof, roofs
from scalewright.planner.answer import Answer
from scalewright.report.figure_file import COLOURS, MEMORY_COLOURS, REST, figure_bytes, write_figure
from scalewright.report.pictures import MIN_SHARE_FRAC, Picture, RooflinePoint, Terms, picture_of, points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox


SIZE_INCH = (7.0, 3.5)
POINTS_PER_INCH = 72.0
LABEL_STEP = 8.0
"""Between two names of a stair, in points."""
LABEL_ROOM = 45.0
"""Width of a name, in points."""
NUM_SEGMENTS = 7
LEGEND_MARGIN = 0.015
"""Room beside a legend, as a share of the figure's width: a file's letters may be wider than those measured here."""
KIND_COLOURS = {
    **dict(zip(("matmul", "attention", "elementwise", "head", "optimizer"), COLOURS, strict=False)),
    "convolution": COLOURS[0], "norm_and_activation": COLOURS[2], "layout": COLOURS[4], "layout_change": COLOURS[4],
    "weights": COLOURS[0], "cache": COLOURS[1],
}  # fmt: skip
"""The same in both panels; the head's term of the step has its loss in it."""
LEVEL_STYLES = {"memory": ("black", 1.0), "last-level cache": ("#7a7a7a", 0.8), "L2": ("#7a7a7a", 0.8)}
"""Colour and width of each level's slope."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A piece of a stacked bar."""

    name: str
    value: float
    colour: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A point's name and its position."""

    point: RooflinePoint
    words: str
    direction: int
    """-1: it ends at the point's position, 1: it starts there."""
    offset: tuple[float, float]
    """From the point, in points."""
    box: Bbox
    """In pixels."""
    leader: Bbox
    """The line from the point, in pixels."""


def plot_prediction(path: Path, answer: Answer) -> None:
    """Draw a prediction into a PNG, SVG or PDF file."""
    write_figure(path, lambda: draw(picture_of(answer)))


def prediction_drawing(answer: Answer, kind: str) -> bytes:
    """A prediction drawn as png, svg or pdf; the same answer gives the same bytes."""
    return figure_bytes(lambda: draw(picture_of(answer)), kind)


def time_segments(picture: Picture) -> list[Segment]:
    """The terms of the time; those that are operations have the colour of their points, others a colour of no point."""
    drawn = {KIND_COLOURS[point.kind] for point in points(picture)}
    return _segments(picture.time_terms, KIND_COLOURS, sorted(COLOURS, key=lambda colour: colour in drawn))


def memory_segments(picture: Picture) -> list[Segment]:
    """The allocated terms, and what the allocator and the libraries hold beside them."""
    return _segments(picture.memory_terms, {}, MEMORY_COLOURS)


def _segments(terms: Terms, fixed: dict[str, str], colours: Sequence[str]) -> list[Segment]:
    """The largest terms in colours, the rest as one."""
    ranked = sorted(((value, name) for name, value in terms if value > 0.0), reverse=True)
    visible = MIN_SHARE_FRAC * sum(value for value, _ in ranked)
    num_shown = min(sum(value >= visible for value, _ in ranked), NUM_SEGMENTS)
    shown = [(name, value, fixed.get(name.removesuffix("_and_loss"))) for value, name in ranked[:num_shown]]
    free = iter([colour for colour in colours if colour not in {c for _, _, c in shown}])
    segments = [Segment(name=n.replace("_", " "), value=value, colour=c or next(free)) for n, value, c in shown]
    rest = sum(value for value, _ in ranked[num_shown:])
    return [*segments, Segment(name="other", value=rest, colour=REST)] if rest > 0.0 else segments


def draw(picture: Picture) -> Figure:
    """The figure: roofline to the left, bars of time and memory to the right."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_INCH)
    FigureCanvasAgg(figure)
    _draw_roofline(figure.add_axes((0.078, 0.13, 0.47, 0.84)), picture)
    _draw_time(figure.add_axes((0.60, 0.66, 0.385, 0.14)), picture)
    _draw_memory(figure.add_axes((0.60, 0.13, 0.385, 0.14)), picture)
    return figure


def _draw_roofline(axes: Axes, picture: Picture) -> None:
    from matplotlib.ticker import EngFormatter

    machine, precision = picture.machine, picture.precision
    peak, best = machine.peak_flop_per_s(precision), machine.matmul_flop_per_s(precision)
    shown, levels = points(picture), roofs(machine)
    ridge = peak / machine.hbm_bytes_per_s
    intensities = [p.intensity_flop_per_byte for p in shown]
    x_low, x_high = min(*intensities, ridge) / 3.0, max(*intensities, ridge) * 4.0
    lowest = min(p.achieved_flop_per_s for p in shown)
    axes.set(xscale="log", yscale="log", xlim=(x_low, x_high), ylim=(lowest / 6.0, peak * 2.5))
    for level in levels:
        top = peak / level.bytes_per_s
        if top > x_low:
            style = LEVEL_STYLES[level.name]
            axes.plot([x_low, top], [x_low * level.bytes_per_s, peak], color=style[0], linewidth=style[1], zorder=1.5)
    axes.plot([x_low, x_high], [peak, peak], color="black", linewidth=1.0)
    axes.plot([x_low, x_high], [best, best], color="black", linewidth=0.8, linestyle=(0, (4, 2)))
    axes.set_xlabel("arithmetic intensity (FLOP per byte)")
    axes.set_ylabel("attainable and predicted rate (FLOP/s)")
    axes.yaxis.set_major_formatter(EngFormatter(sep=" "))
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.tick_params(which="minor", length=1.5, width=0.4)
    _name_flat_roofs(axes, picture, peak=peak, best=best)
    _name_rings(axes, shown)
    _name_slopes(axes, levels, peak=peak)
    _draw_points(axes, shown)
    taken = [box for level in levels for box in _slope_boxes(axes, level.bytes_per_s)]
    _place_labels(axes, shown, [_above(axes, best), *taken], ridge_flop_per_byte=ridge)


def _name_flat_roofs(axes: Axes, picture: Picture, *, peak: float, best: float) -> None:
    """Both named above the upper one, where nothing else can be."""
    machine, precision = picture.machine, picture.precision
    published = "best" if machine.matmul_is_published(precision) else "assumed best"
    dense = f"dense {precision} peak {units.format(peak, units.FLOP_PER_S)}"
    matmul = f"dashed: {published} matmul {units.format(best, units.FLOP_PER_S)}"
    axes.annotate(
        f"{dense}; {matmul}", (axes.get_xlim()[1], peak), xytext=(-2, 2), textcoords="offset points", ha="right",
        va="bottom", fontsize=6.0,
    )  # fmt: skip


def _name_rings(axes: Axes, shown: list[RooflinePoint]) -> None:
    if any(_has_ring(point) for point in shown):
        axes.annotate(
            "rings: bytes through L2", (1.0, 0.0), xycoords="axes fraction", xytext=(-2, 3), fontsize=6.0,
            textcoords="offset points", ha="right", va="bottom", color="#555555",
        )  # fmt: skip


def _name_slopes(axes: Axes, levels: Sequence[Roof], *, peak: float) -> None:
    """Each slope carries its name above it, a third of the way up, where slopes are apart."""
    x_low, y_low = axes.get_xlim()[0], axes.get_ylim()[0]
    for level in levels:
        top = peak / level.bytes_per_s
        left = max(x_low, y_low / level.bytes_per_s)
        if top < left * 4.0:
            continue
        (x0, y0), (x1, y1) = (axes.transData.transform((x, x * level.bytes_per_s)) for x in (left, top))
        at = left * (top / left) ** 0.45
        axes.annotate(
            f"{level.name} {units.format(level.bytes_per_s, units.BYTES_PER_S)}", (at, at * level.bytes_per_s),
            xytext=(-2.5, 2.5), textcoords="offset points", fontsize=6.0, color=LEVEL_STYLES[level.name][0],
            rotation=math.degrees(math.atan2(y1 - y0, x1 - x0)), rotation_mode="anchor", ha="center", va="bottom",
        )  # fmt: skip


def _draw_points(axes: Axes, shown: list[RooflinePoint]) -> None:
    """A point at its intensity over memory; a small ring at that over the second-level cache, where it differs."""
    for point in shown:
        if _has_ring(point):
            axes.scatter(
                [point.cache_intensity_flop_per_byte], [point.achieved_flop_per_s], s=7.0, facecolors="white",
                edgecolors=KIND_COLOURS[point.kind], linewidths=0.7, zorder=2.5,
            )  # fmt: skip
        axes.scatter(
            [point.intensity_flop_per_byte], [point.achieved_flop_per_s],
            s=(2.0 * _radius(point)) ** 2, color=KIND_COLOURS[point.kind], alpha=0.85, linewidths=0.4,
            edgecolors="white", zorder=3,
        )  # fmt: skip


def _has_ring(point: RooflinePoint) -> bool:
    return point.cache_intensity_flop_per_byte < 0.8 * point.intensity_flop_per_byte


def _radius(point: RooflinePoint) -> float:
    """Of a marker, in points."""
    return float((12.0 + 280.0 * point.share_frac) ** 0.5 / 2.0)


def _place_labels(axes: Axes, shown: list[RooflinePoint], roofs: list[Bbox], *, ridge_flop_per_byte: float) -> None:
    """Names of neighbouring points stand in a stair below them, so that no line to a point crosses a name."""
    dots = axes.figure.dpi / POINTS_PER_INCH
    taken = [*roofs, *(text.get_window_extent() for text in axes.texts)]
    for point in shown:
        side = 2.0 * (_radius(point) + 0.5) * dots
        taken.append(_box(_position(axes, point), side, side))
    written: list[Bbox] = []
    for cluster in _clusters(axes, shown):
        # beside the slope there is room to the right only
        near_slope = all(p.intensity_flop_per_byte < 0.2 * ridge_flop_per_byte for p in cluster)
        stair = _free_stair(axes, cluster, 1 if near_slope else -1, taken, written)
        taken += [box for label in stair for box in (label.box, label.leader)]
        written += [label.box for label in stair]
        for label in stair:
            _draw_label(axes, label)


def _draw_label(axes: Axes, label: Label) -> None:
    point = label.point
    place = point.intensity_flop_per_byte, point.achieved_flop_per_s
    flat: dict[str, Any] = {"textcoords": "offset points", "fontsize": 6.0}
    side, (across, down) = "right" if label.direction < 0 else "left", label.offset
    axes.annotate(label.words, place, xytext=(across, down), ha=side, va="center", zorder=4, **flat)
    if down:
        line = {"arrowstyle": "-", "linewidth": 0.4, "color": "#777777", "shrinkA": 0.0, "shrinkB": 0.0}
        axes.annotate("", place, xytext=(0.0, down - 2.0), arrowprops=line, zorder=2, **flat)


def _clusters(axes: Axes, shown: list[RooflinePoint]) -> list[list[RooflinePoint]]:
    """Neighbours, from right to left, then from top to bottom; apart where a name has room between them."""
    dots, columns = axes.figure.dpi / POINTS_PER_INCH, list[list[RooflinePoint]]()
    for point in sorted(shown, key=lambda p: p.intensity_flop_per_byte, reverse=True):
        x = _position(axes, point)[0]
        if columns and _position(axes, columns[-1][-1])[0] - x < LABEL_ROOM * dots:
            columns[-1].append(point)
        else:
            columns.append([point])
    groups: list[list[RooflinePoint]] = []
    for column in columns:
        groups.append([])
        for point in sorted(column, key=lambda p: p.achieved_flop_per_s, reverse=True):
            above = _position(axes, groups[-1][-1])[1] if groups[-1] else math.inf
            room = (above - _position(axes, point)[1]) / dots
            if groups[-1] and room > LABEL_STEP * len(groups[-1]) + 20.0:
                groups.append([])
            groups[-1].append(point)
    return groups


def _free_stair(
    axes: Axes, cluster: list[RooflinePoint], direction: int, taken: list[Bbox], written: list[Bbox]
) -> list[Label]:
    """The highest stair below a cluster that covers nothing; a point alone has its name beside it if that is free."""
    dots, inside = axes.figure.dpi / POINTS_PER_INCH, axes.get_window_extent()
    ordered = sorted(cluster, key=lambda p: -direction * p.intensity_flop_per_byte)
    lowest = min(_position(axes, p)[1] - _radius(p) * dots for p in cluster)
    tries = [] if len(cluster) > 1 else [[_label(axes, cluster[0], side, None)] for side in (1, -1)]
    for drop in range(4, 120, 2):
        top = lowest - drop * dots
        tries.append([_label(axes, p, direction, top - i * LABEL_STEP * dots) for i, p in enumerate(ordered)])

    def cost(stair: list[Label]) -> int:
        boxes = [label.box for label in stair]
        outside = sum(bool(b.x0 < inside.x0 or b.x1 > inside.x1 or b.y0 < inside.y0) for b in boxes)
        covered = sum(bool(b.overlaps(other)) for b in boxes for other in taken)
        crossed = sum(bool(label.leader.overlaps(text)) for label in stair for text in written)
        return 100 * outside + covered + crossed

    return min(tries, key=cost)


def _label(axes: Axes, point: RooflinePoint, direction: int, height: float | None) -> Label:
    """A name at a height in pixels to one side of its point; None: beside it."""
    dots, (x, y) = axes.figure.dpi / POINTS_PER_INCH, _position(axes, point)
    words = f"{point.name} {_percent(point.share_frac)}"
    probe = axes.text(0.5, 0.5, words, fontsize=6.0)
    size = probe.get_window_extent()
    probe.remove()
    gap = 1.5 if height is not None else _radius(point) + 2.0
    level = y if height is None else height
    centre = x + direction * (gap * dots + size.width / 2.0), level
    offset = direction * gap, (level - y) / dots
    box, leader = _box(centre, size.width, 8.0 * dots), _box((x, (level + y) / 2.0), 1.0, abs(level - y))
    return Label(point=point, words=words, direction=direction, offset=offset, box=box, leader=leader)


def _percent(share_frac: float) -> str:
    return f"{share_frac:.0%}" if share_frac >= 0.01 else "<1%"


def _position(axes: Axes, point: RooflinePoint) -> tuple[float, float]:
    x, y = axes.transData.transform((point.intensity_flop_per_byte, point.achieved_flop_per_s))
    return float(x), float(y)


def _box(centre: tuple[float, float], width: float, height: float) -> Bbox:
    from matplotlib.transforms import Bbox

    return Bbox.from_bounds(centre[0] - width / 2.0, centre[1] - height / 2.0, width, height)


def _above(axes: Axes, best: float) -> Bbox:
    """All that is above the best product, for the labels to keep clear of."""
    from matplotlib.transforms import Bbox

    inside = axes.get_window_extent()
    roof = float(axes.transData.transform((axes.get_xlim()[0], best))[1])
    return Bbox.from_extents(inside.x0, roof - 3.0, inside.x1, inside.y1)


def _slope_boxes(axes: Axes, bytes_per_s: float) -> list[Bbox]:
    """A slope as small boxes, for the labels to keep clear of."""
    (x_low, x_high), boxes = axes.get_xlim(), []
    for step in range(101):
        x = x_low * (x_high / x_low) ** (step / 100.0)
        across, up = axes.transData.transform((x, x * bytes_per_s))
        boxes.append(_box((float(across), float(up)), 4.0, 4.0))
    return boxes


def _draw_time(axes: Axes, picture: Picture) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    _draw_bar(axes, time_segments(picture), picture.total_s)
    axes.set_xlim(0.0, picture.total_s)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(EngFormatter(unit="s", sep=" "))
    axes.set_xlabel(f"{picture.time_title}: {units.format(picture.total_s, units.SECONDS)}")


def _draw_memory(axes: Axes, picture: Picture) -> None:
    segments, device, shown = memory_segments(picture), picture.machine.memory_bytes, picture.device_bytes
    widest = max(shown, device)
    prefix = max((p for p, scale in units.BINARY.items() if widest >= scale), key=units.BINARY.__getitem__)
    scale = units.BINARY[prefix]
    _draw_bar(axes, [replace(s, value=s.value / scale) for s in segments], shown / scale)
    axes.axvline(device / scale, color="black", linewidth=1.0, linestyle=(0, (4, 2)))
    side = "right" if device > 0.5 * widest else "left"
    axes.annotate(
        f"device {units.format(device, units.BYTES)}", (device / scale, 1.0), xycoords=("data", "axes fraction"),
        xytext=(0, 1), textcoords="offset points", ha=side, va="bottom", fontsize=6.0,
    )  # fmt: skip
    axes.set_xlim(0.0, 1.02 * widest / scale)
    axes.set_xlabel(f"memory of the worst device ({prefix}B): {units.format(shown, units.BYTES)}, {picture.verdict}")


def _draw_bar(axes: Axes, segments: list[Segment], total: float) -> None:
    """One stacked bar with its legend above: names with shares, in the order of the bar."""
    start = 0.0
    for segment in segments:
        label = f"{segment.name} {_percent(segment.value / total)}"
        axes.barh(
            [0.0], [segment.value], left=start, height=1.0, color=segment.colour, edgecolor="white", linewidth=0.5,
            label=label,
        )  # fmt: skip
        start += segment.value
    axes.set_yticks([])
    axes.set_ylim(-0.5, 0.5)
    axes.spines["left"].set_visible(False)
    for columns in (3, 2, 1):  # as many as the names leave room for
        legend = axes.legend(
            loc="lower left", bbox_to_anchor=(-0.02, 1.28), ncols=columns, frameon=False, fontsize=6.0,
            handlelength=0.9, handleheight=0.9, columnspacing=0.9, handletextpad=0.4, borderaxespad=0.0,
            labelspacing=0.35,
        )  # fmt: skip
        axes.figure.draw_without_rendering()  # type: ignore[union-attr]
        if legend.get_window_extent().x1 <= axes.figure.bbox.x1 - LEGEND_MARGIN * axes.figure.bbox.width:
            break
