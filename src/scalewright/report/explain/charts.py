"""Charts of an explanation as SVG text: step times, parts of a step, memory and loss. Findings link to them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from scalewright import units
from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import RankTime, StepFact
from scalewright.observe.evidence.series import step_series
from scalewright.report.figure_file import COLOURS
from scalewright.report.hybrid.svg import nice_step

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 560, 220, 64, 34, 12
MOST_POINTS = 400
ROUNDING = 1e-9
MOST_RANKS = 8
PARTS = ("compute", "exposed communication", "data wait", "idle")
LEGEND = (0, 90, 300, 400)
"""Where the names of the parts begin, in letters of a phone's size."""
PLOT_OF = {
    "steps": "step-time", "stragglers": "step-time", "host": "step-time", "checkpoints": "step-time",
    "clocks": "step-time",
    "communication": "parts", "transport": "parts", "data_loading": "parts", "pipeline": "parts", "batch": "parts",
    "traces": "parts", "memory": "memory", "ends/out_of_memory": "memory", "ends/loss": "loss", "rl": "step-time",
    "reported": "step-time", "precision": "step-time",
}  # fmt: skip
"""The chart that shows what a theme is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    id: str
    title: str
    svg: str


def charts(evidence: Evidence) -> list[Chart]:
    """Those that there are numbers for."""
    series = step_series(evidence)
    ranks = {rank: series.by_rank[rank] for rank in series.ranks[:MOST_RANKS]}
    drawn = [
        _lines("step-time", "Time of each step (s)", ranks, lambda one: one.time_s, starts_at_zero=True),
        _parts(evidence),
        _lines("memory", "Peak memory (GiB)", ranks, _gib, starts_at_zero=True),
        _lines("loss", "Loss", dict(list(ranks.items())[:1]), lambda one: one.loss),
    ]
    return [chart for chart in drawn if chart is not None]


def _gib(one: StepFact) -> float | None:
    return None if one.memory_bytes is None else one.memory_bytes / units.BINARY["Gi"]


def _lines(
    id: str, title: str, ranks: Mapping[int, Sequence[StepFact]], value: Callable[[StepFact], float | None],
    *, starts_at_zero: bool = False,
) -> Chart | None:  # fmt: skip
    points = {
        rank: [(one.step, number) for one in steps if (number := value(one)) is not None and math.isfinite(number)]
        for rank, steps in ranks.items()
    }
    points = {rank: own for rank, own in points.items() if len(own) >= 2}
    if not points:
        return None
    every = [point for own in points.values() for point in own]
    first, last = min(x for x, _ in every), max(x for x, _ in every)
    low, high = (0.0 if starts_at_zero else min(y for _, y in every)), max(y for _, y in every)
    step = nice_step((high - low) / 3) if high > low else 1.0
    low, high = math.floor(low / step + ROUNDING) * step, math.ceil(high / step - ROUNDING) * step
    high = high if high > low else low + step

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (WIDTH - LEFT - 10) * (x - first) / max(last - first, 1)
        return across, HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (y - low) / (high - low)

    pieces = [
        _axis(low, high, step),
        _label(LEFT, HEIGHT - 16, f"step {first}"),
        _label(WIDTH - 10, HEIGHT - 16, f"{last}", "end"),
    ]
    for number, (rank, own) in enumerate(points.items()):
        shown = _thinned(own)
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in shown))
        colour = COLOURS[number % len(COLOURS)]
        pieces.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5">'
            f"<title>rank {rank}</title></polyline>"
        )
        if len(points) > 1:
            pieces.append(_label(LEFT + 62 * number, HEIGHT - 2, f"rank {rank}", colour=colour))
    return Chart(id=id, title=title, svg=_svg(title, pieces))


def _thinned(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """At most `MOST_POINTS`; of each group the largest, so that slow steps stay."""
    if len(points) <= MOST_POINTS:
        return list(points)
    group = math.ceil(len(points) / MOST_POINTS)
    return [max(points[at : at + group], key=lambda point: point[1]) for at in range(0, len(points), group)]


def _parts(evidence: Evidence) -> Chart | None:
    """A bar for each rank: the mean of its profiled steps."""
    by_rank: dict[int, list[RankTime]] = {}
    for one in evidence.rank_times:
        by_rank.setdefault(one.rank, []).append(one)
    if not by_rank:
        return None
    ranks = sorted(by_rank)[:MOST_RANKS]
    rows = {rank: [_mean(by_rank[rank], part) for part in range(len(PARTS))] for rank in ranks}
    longest = max(sum(row) for row in rows.values()) or 1.0
    height = min(26.0, (HEIGHT - BOTTOM - TOP) / len(rows))
    pieces = []
    for number, (rank, row) in enumerate(rows.items()):
        y, x = TOP + number * height, float(LEFT)
        pieces.append(_label(LEFT - 6, y + height / 2 + 4, f"rank {rank}", "end"))
        for part, value in enumerate(row):
            width = (WIDTH - LEFT - 10) * value / longest
            title = f"rank {rank}: {PARTS[part]} {units.format(value, units.SECONDS)}"
            pieces.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height - 4:.1f}" fill="{COLOURS[part]}">'
                f"<title>{escape(title)}</title></rect>"
            )
            x += width
    bottom = TOP + len(rows) * height
    for part, name in enumerate(PARTS):
        pieces.append(_label(LEFT + LEGEND[part], bottom + 20, name, colour=COLOURS[part]))
    return Chart(id="parts", title="Parts of a step", svg=_svg("Parts of a step of each rank", pieces, bottom + 28))


def _mean(times: Sequence[RankTime], part: int) -> float:
    values = [(one.compute_s, one.exposed_communication_s, one.data_s, one.idle_s + one.memory_copy_s) for one in times]
    return sum(value[part] for value in values) / len(values)


def _axis(low: float, high: float, step: float) -> str:
    ticks, num_steps = [], round((high - low) / step)
    for at in range(num_steps + 1):
        value = low + step * at
        y = HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * at / num_steps
        ticks.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - 10}" y1="{y:.1f}" y2="{y:.1f}"/>')
        ticks.append(_label(LEFT - 6, y + 4, f"{value:.3g}", "end"))
    return "".join(ticks)


def _label(x: float, y: float, text: str, anchor: str = "start", colour: str = "") -> str:
    fill = f' style="fill:{colour}"' if colour else ' class="soft"'
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{fill}>{escape(text)}</text>'


def _svg(title: str, pieces: Sequence[str], height: float = HEIGHT) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(title)}">{"".join(pieces)}</svg>'
