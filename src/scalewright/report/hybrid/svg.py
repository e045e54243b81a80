"""Charts of a page as SVG text, without any script. Every text is escaped."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from scalewright import units
from scalewright.records.hybrid_report import HybridShown, LaneSegment, LaneShown, TimeWindow
from scalewright.report.hybrid.figures import KIND_COLOURS, IterationBar, kind_title, seconds

WIDTH, HEIGHT = 520.0, 210.0
LEFT, RIGHT, TOP, BOTTOM = 62.0, 10.0, 10.0, 40.0
LANE_WIDTH, LANE_HEIGHT = 1000.0, 24.0
IDLE = "var(--line)"
NUM_TICKS = 5
MOST_DOTS = 40
"""A line of more points has no dots."""
MOST_TICK_FRAC = 0.9
"""A tick further right would be cut off."""
NICE = (1.0, 2.0, 2.5, 5.0, 10.0)
"""Steps between ticks, times a power of ten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A mark of an axis: where, as a share of its length, and its words."""

    at_frac: float
    text: str


def element(name: str, text: str = "", **attributes: object) -> str:
    """An element with a text; `class_` is the attribute class, and _ stands for -."""
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_short(value))}"' for key, value in attributes.items()
    )
    return f"<{name}{words}>{escape(text)}</{name}>"


def _short(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _rect(x: float, y: float, width: float, height: float, fill: str, title: str = "") -> str:
    inner = f"<title>{escape(title)}</title>" if title else ""
    box = f'x="{x:.6g}" y="{y:.6g}" width="{width:.6g}" height="{height:.6g}"'
    return f'<rect {box} fill="{fill}">{inner}</rect>'


def colour(kind: str) -> str:
    return IDLE if kind == "idle" else KIND_COLOURS[kind]  # type: ignore[index]


def strip(lane: LaneShown, shown: HybridShown) -> str:
    """A rank through the whole run: shares of each kind in slices of time, waiting on top, white where it was away."""
    marks, scale = [], LANE_WIDTH / shown.total_s
    for (start_s, end_s), shares in zip(itertools.pairwise(shown.slice_edges), lane.shares, strict=True):
        y = LANE_HEIGHT
        for kind in (kind for kind in KIND_COLOURS if kind in shares):
            height = LANE_HEIGHT * min(shares[kind], 1.0)
            y -= height
            marks.append(_rect(scale * start_s, y, scale * (end_s - start_s) + 0.3, height, colour(kind)))
    for at_s, _ in shown.pauses:
        marks.append(_upright(at_s / shown.total_s, "pause"))
    for one in shown.restarts:
        if one.of in (lane.role, f"{lane.role}-{lane.rank}"):
            marks.append(_upright(one.at_s / shown.total_s, "restart"))
    return _lane(lane, marks)


def window_lane(lane: LaneShown, window: TimeWindow) -> str:
    """A rank in the window: a bar for each thing that it did."""
    length_s = window.end_s - window.start_s
    marks = []
    for one in lane.segments:
        x = LANE_WIDTH * (one.start_s - window.start_s) / length_s
        width = LANE_WIDTH * (one.end_s - one.start_s) / length_s
        y, height = (LANE_HEIGHT * 0.35, LANE_HEIGHT * 0.3) if one.kind == "idle" else (0.0, LANE_HEIGHT)
        marks.append(_rect(x, y, width, height, colour(one.kind), _segment_words(one)))
    for _, start_s in window.step_starts[1:]:
        marks.append(_upright((start_s - window.start_s) / length_s, "step"))
    return _lane(lane, marks)


def _segment_words(one: LaneSegment) -> str:
    words = f"{kind_title(one.kind)} {seconds(one.end_s - one.start_s)}"
    if one.kind == "idle":
        return f"{words}, for {one.waits_for}" if one.waits_for else words
    if one.step >= 0:
        words += f", step {one.step + 1}"
    if one.version >= 0:
        words += f", version {one.version}"
    return words + (f", {one.num_tokens:,} tokens" if one.num_tokens else "")


def _upright(share: float, name: str) -> str:
    x = LANE_WIDTH * share
    return f'<path class="{name}" d="M{x:.6g},0V{LANE_HEIGHT:g}" vector-effect="non-scaling-stroke"/>'


def _lane(lane: LaneShown, marks: Sequence[str]) -> str:
    parts = sorted(lane.seconds_by_kind.items(), key=lambda item: -item[1])
    words = ", ".join(f"{kind_title(kind)} {value / lane.present_s:.0%}" for kind, value in parts if lane.present_s)
    return (
        f'<svg class="lane-bar" viewBox="0 0 {LANE_WIDTH:g} {LANE_HEIGHT:g}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(lane.title)}: {escape(words)}">{"".join(marks)}</svg>'
    )


def time_ticks(start_s: float, end_s: float) -> list[Tick]:
    """Round times of an axis."""
    length_s = end_s - start_s
    step_s = nice_step(length_s / NUM_TICKS)
    number, ticks = -(-start_s // step_s), []
    while number * step_s <= end_s:
        at_s = number * step_s
        ticks.append(Tick(at_frac=(at_s - start_s) / length_s, text="0" if at_s == 0 else seconds(at_s)))
        number += 1
    return [tick for tick in ticks if tick.at_frac <= MOST_TICK_FRAC]


def nice_step(value: float) -> float:
    """The round step between ticks that is at least so large."""
    power = 1.0
    while power * NICE[-1] < value:
        power *= 10.0
    while power > value:
        power /= 10.0
    return next(power * step for step in NICE if power * step >= value)


def stacked_bars(caption: str, bars: Sequence[IterationBar], colours: Sequence[str], names: Sequence[str]) -> str:
    """Bars of iterations, each a stack; `names` are those of the parts of a stack."""
    most = max((sum(bar.values.values()) for bar in bars), default=0.0) or 1.0
    marks = _values_axis(most)
    top = _top(most)
    width = (WIDTH - LEFT - RIGHT) / max(len(bars), 1)
    for place, bar in enumerate(bars):
        y, x = HEIGHT - BOTTOM, LEFT + width * place
        total = ", ".join(
            f"{_count(value)} {names[min(key, len(names) - 1)]}" for key, value in bar.values.items() if value
        )
        for key, value in bar.values.items():
            height = value / top * (HEIGHT - TOP - BOTTOM)
            y -= height
            fill = colours[min(key, len(colours) - 1)]
            marks.append(_rect(x + width * 0.06, y, max(width * 0.88, 0.5), height, fill, f"{bar.title}: {total}"))
    if bars:
        marks += _ends(f"{bars[0].first_step + 1}", f"{bars[-1].last_step + 1}", "iteration")
    return _chart(caption, marks)


def histogram(caption: str, counts: dict[int, int], *, bound: int | None, fill: str, over: str) -> str:
    """Shares of rollouts by whole numbers; those beyond the bound have another colour."""
    last = max([*counts, bound or 0])
    num = sum(counts.values())
    marks = _values_axis(100.0, unit=" %")
    width = (WIDTH - LEFT - RIGHT) / (last + 1)
    for value in range(last + 1):
        share = counts.get(value, 0) / num
        height, x = share * (HEIGHT - TOP - BOTTOM), LEFT + width * value
        is_over = bound is not None and value > bound
        words = f"{counts.get(value, 0):,} rollouts, {share:.1%}, {value} version{'s' if value != 1 else ''} old"
        marks.append(
            _rect(x + width * 0.15, HEIGHT - BOTTOM - height, width * 0.7, height, over if is_over else fill, words)
        )
        marks.append(_text(x + width / 2, HEIGHT - BOTTOM + 17, str(value), anchor="middle"))
        if share:
            marks.append(
                _text(x + width / 2, HEIGHT - BOTTOM - height - 4, f"{share:.0%}", anchor="middle", kind="halo")
            )
    if bound is not None:
        x = LEFT + width * (bound + 1)
        marks.append(f'<path class="bound" d="M{x:.5g},{TOP:g}V{HEIGHT - BOTTOM:g}"/>')
        marks.append(_text(x - 5, TOP + 12, f"bound {bound}", anchor="end", kind="halo"))
    marks.append(_text(WIDTH - RIGHT, HEIGHT - 4, "versions old", anchor="end", kind="soft"))
    return _chart(caption, marks)


def line(caption: str, points: Sequence[tuple[int, float]], *, num_steps: int, stroke: str, is_share: bool) -> str:
    """A figure of a stage over its steps; one that only some steps have is a row of dots on a line."""
    unit, scale = (" %", 100.0) if is_share else ("", 1.0)
    values = [scale * value for _, value in points]
    least, most = min(0.0, *values), max(0.0, *values)
    step = nice_step((most - least) / 4) if most > least else 1.0
    bottom = math.floor(least / step + 1e-9) * step if least < 0 else 0.0
    top = max(math.ceil(most / step - 1e-9) * step, bottom + step)

    def px(number: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (number / (num_steps - 1) if num_steps > 1 else 0.5)

    def py(value: float) -> float:
        return HEIGHT - BOTTOM - (value - bottom) / (top - bottom) * (HEIGHT - TOP - BOTTOM)

    marks = []
    for number in range(round((top - bottom) / step) + 1):
        value = bottom + number * step
        marks.append(f'<path class="grid" d="M{LEFT:g},{py(value):.5g}H{WIDTH - RIGHT:g}"/>')
        marks.append(_text(LEFT - 6, py(value) + 4, f"{_count(value) if value else '0'}{unit}", anchor="end"))
    places = [(px(number), py(value)) for (number, _), value in zip(points, values, strict=True)]
    path = "L".join(f"{x:.5g},{y:.5g}" for x, y in places)
    marks.append(f'<path d="M{path}" fill="none" stroke="{stroke}" stroke-width="2" stroke-linejoin="round"/>')
    if len(points) <= MOST_DOTS:
        for (number, _), value, (x, y) in zip(points, values, places, strict=True):
            words = escape(f"step {number + 1}: {value:.3g}{unit}")
            dot = f'cx="{x:.5g}" cy="{y:.5g}" r="3" fill="var(--paper)" stroke="{stroke}" stroke-width="2"'
            marks.append(f"<circle {dot}><title>{words}</title></circle>")
    return _chart(caption, [*marks, *_ends("1", f"{num_steps:,}", "step")])


def _values_axis(most: float, unit: str = "") -> list[str]:
    top, step = _top(most), nice_step(most / 4)
    marks, value = [], 0.0
    while value <= top * 1.001:
        y = HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM)
        marks.append(f'<path class="grid" d="M{LEFT:g},{y:.5g}H{WIDTH - RIGHT:g}"/>')
        marks.append(_text(LEFT - 6, y + 4, f"{_count(value)}{unit}", anchor="end"))
        value += step
    return marks


def _top(most: float) -> float:
    step = nice_step(most / 4)
    return -(-most // step) * step


def _count(value: float) -> str:
    return f"{value:.3g}" if abs(value) < units.KILO else units.format(value, units.COUNT).replace(".0 ", " ")


def _ends(first: str, last: str, word: str) -> list[str]:
    y = HEIGHT - BOTTOM + 17
    return [
        _text(LEFT, y, first), _text(WIDTH - RIGHT, y, last, anchor="end"),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, word, anchor="middle", kind="soft"),
    ]  # fmt: skip


def _text(x: float, y: float, text: str, *, anchor: str = "start", kind: str = "") -> str:
    named = {"class_": kind} if kind else {}
    return element("text", text, x=x, y=y, text_anchor=anchor, **named)


def _chart(caption: str, marks: Sequence[str]) -> str:
    return (
        f'<figure><figcaption>{escape(caption)}</figcaption><svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" '
        f'aria-label="Chart of {escape(caption)}">{"".join(marks)}</svg></figure>'
    )
