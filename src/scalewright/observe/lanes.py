"""Timelines as lanes: segments that do not overlap, time without pauses, and a typical window of steps."""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TypeVar

from scalewright.records.hybrid import RoleSpan, SpanKind
from scalewright.records.hybrid_report import LaneSegment, LaneShown, TimeWindow

PAUSE_S = 1.0
"""Longer times in which no rank ran are left out of the axis."""
WINDOW_STEPS = 4
NUM_SLICES = 160
"""Slices of the whole run, at most."""
WHOLE_STEPS = 20
"""A run of so many steps has one slice a step; a shorter one has several, so that the parts of a step are seen."""
LEAST_FRAC = 1.0 / 2000.0
"""Share of the window below which a segment is joined with its neighbour."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Seconds of the run without the pauses in which no rank ran."""

    pauses: tuple[tuple[float, float], ...]
    """Start and end of each, on the clock of the run."""
    begins_s: float

    def at(self, time_s: float) -> float:
        left_out = sum(min(time_s, end) - start for start, end in self.pauses if start < time_s)
        return time_s - self.begins_s - left_out

    @property
    def marks(self) -> tuple[tuple[float, float], ...]:
        """When each pause was, on this axis, and how long."""
        return tuple((self.at(start), end - start) for start, end in self.pauses)


def axis_of(spans: Sequence[RoleSpan]) -> Axis:
    lives = sorted(_lives(spans).values())
    pauses, reached = [], lives[0][1]
    for start, end in lives[1:]:
        if start - reached > PAUSE_S:
            pauses.append((reached, start))
        reached = max(reached, end)
    return Axis(pauses=tuple(pauses), begins_s=lives[0][0])


def _lives(spans: Sequence[RoleSpan]) -> dict[tuple[str, int, int], tuple[float, float]]:
    """First start and last end of every attempt of every rank."""
    lives: dict[tuple[str, int, int], tuple[float, float]] = {}
    for span in spans:
        key = (span.role, span.rank, span.attempt)
        start, end = lives.get(key, (span.start_s, span.end_s))
        lives[key] = (min(start, span.start_s), max(end, span.end_s))
    return lives


def on_axis(spans: Sequence[RoleSpan], axis: Axis) -> list[RoleSpan]:
    if not axis.pauses and not axis.begins_s:
        return list(spans)
    return [replace(span, start_s=axis.at(span.start_s), end_s=axis.at(span.end_s)) for span in spans]


def segments_of(spans: Sequence[RoleSpan]) -> list[LaneSegment]:
    """What one rank did, without overlaps: of spans inside each other the innermost counts, and a gap is waiting.

    Time between two attempts is no segment: the rank was not there.
    """
    whole: list[LaneSegment] = []
    for _, own in itertools.groupby(sorted(spans, key=lambda s: s.attempt), key=lambda s: s.attempt):
        whole += _flat(list(own))
    return whole


def _flat(spans: Sequence[RoleSpan]) -> list[LaneSegment]:
    """One attempt."""
    waiting = sorted(spans, key=lambda s: (s.start_s, -s.end_s))
    times = sorted({time for span in spans for time in (span.start_s, span.end_s)})
    active: list[tuple[float, int, RoleSpan]] = []
    flat: list[LaneSegment] = []
    last: RoleSpan | None = None
    place = 0
    for start_s, end_s in itertools.pairwise(times):
        while place < len(waiting) and waiting[place].start_s <= start_s:
            heapq.heappush(active, (-waiting[place].start_s, -place, waiting[place]))
            place += 1
        while active and active[0][2].end_s <= start_s:
            heapq.heappop(active)
        span = active[0][2] if active else None
        if flat and span is last:
            flat[-1] = replace(flat[-1], end_s=end_s)
        else:
            flat.append(_segment(span, start_s, end_s))
        last = span
    return flat


def _segment(span: RoleSpan | None, start_s: float, end_s: float) -> LaneSegment:
    if span is None:
        return LaneSegment(kind="idle", start_s=start_s, end_s=end_s)
    return LaneSegment(
        kind=span.kind, start_s=start_s, end_s=end_s, step=span.step, version=span.version,
        num_tokens=span.num_tokens, waits_for=span.waits_for,
    )  # fmt: skip


Key = TypeVar("Key", bound=str)


def add_to(sums: dict[Key, float], key: Key, value: float) -> None:
    sums[key] = sums.get(key, 0.0) + value


def lane_of(
    role: str, rank: int, segments: Sequence[LaneSegment], *, edges: Sequence[float], window: TimeWindow | None
) -> LaneShown:
    seconds: dict[SpanKind, float] = {}
    waits: dict[str, float] = {}
    for one in segments:
        add_to(seconds, one.kind, one.end_s - one.start_s)
        if one.kind == "idle":
            add_to(waits, one.waits_for, one.end_s - one.start_s)
    return LaneShown(
        role=role, rank=rank, seconds_by_kind=seconds, waits_s=waits,
        segments=() if window is None else _inside(segments, window), shares=_shares(segments, edges),
    )  # fmt: skip


def _inside(segments: Sequence[LaneSegment], window: TimeWindow) -> tuple[LaneSegment, ...]:
    """Segments of the window, cut at its ends; very short ones become part of the one before."""
    least_s = (window.end_s - window.start_s) * LEAST_FRAC
    kept: list[LaneSegment] = []
    for one in segments:
        start_s, end_s = max(one.start_s, window.start_s), min(one.end_s, window.end_s)
        if end_s <= start_s:
            continue
        is_next = bool(kept) and start_s - kept[-1].end_s < least_s
        if is_next and (end_s - start_s < least_s or _is_same(one, kept[-1])):
            kept[-1] = replace(kept[-1], end_s=end_s, num_tokens=kept[-1].num_tokens + one.num_tokens)
        else:
            kept.append(replace(one, start_s=start_s, end_s=end_s))
    return tuple(kept)


def _is_same(one: LaneSegment, other: LaneSegment) -> bool:
    return (one.kind, one.step, one.waits_for) == (other.kind, other.step, other.waits_for)


def _shares(segments: Sequence[LaneSegment], edges: Sequence[float]) -> tuple[dict[SpanKind, float], ...]:
    slices: list[dict[SpanKind, float]] = [{} for _ in edges[1:]]
    for one in segments:
        place = max(bisect_right(edges, one.start_s) - 1, 0)
        while place < len(slices) and edges[place] < one.end_s:
            start_s, end_s = max(one.start_s, edges[place]), min(one.end_s, edges[place + 1])
            add_to(slices[place], one.kind, max(end_s - start_s, 0.0) / (edges[place + 1] - edges[place]))
            place += 1
    return tuple(slices)


def slice_edges(spans: Sequence[RoleSpan], *, total_s: float) -> tuple[float, ...]:
    """Ends of the slices of the whole run. They follow the steps: others would show stripes that are not there."""
    starts = sorted(set(_step_starts(spans).values()))
    if not starts:
        return tuple(total_s * place / NUM_SLICES for place in range(NUM_SLICES + 1))
    size = -(-len(starts) // NUM_SLICES)
    kept = starts[::size]
    num_parts = 1 if len(starts) >= WHOLE_STEPS else NUM_SLICES // len(starts)
    edges = [0.0]
    for start_s, end_s in itertools.pairwise([*kept, total_s]):
        edges += [start_s + (end_s - start_s) * part / num_parts for part in range(num_parts)]
    return tuple(dict.fromkeys([*edges, total_s]))


def window_of(spans: Sequence[RoleSpan], *, total_s: float, restarts: Sequence[float] = ()) -> TimeWindow:
    """Steps in a row that take about as long as most: of all such rows the one nearest to the median.

    A row during which something was restarted is chosen only if there is no other.
    """
    starts = _step_starts(spans)
    steps = sorted(starts)
    ends = {step: starts[after] for step, after in itertools.pairwise(steps) if starts[after] > starts[step]}
    if steps:
        ends.setdefault(steps[-1], total_s)
    num = min(WINDOW_STEPS, len(steps))
    rows = [steps[place : place + num] for place in range(len(steps) - num + 1)] if num else []
    rows = [row for row in rows if row[-1] in ends and ends[row[-1]] > starts[row[0]]]
    if not rows:
        return TimeWindow(start_s=0.0, end_s=total_s)
    calm = [row for row in rows if not any(starts[row[0]] <= at_s <= ends[row[-1]] for at_s in restarts)]
    rows = calm or rows
    lengths = [ends[row[-1]] - starts[row[0]] for row in rows]
    usual_s, middle = median(lengths), len(rows) // 2
    best = min(range(len(rows)), key=lambda i: (round(abs(lengths[i] - usual_s) / usual_s, 2), abs(i - middle)))
    row = rows[best]
    return TimeWindow(
        start_s=starts[row[0]], end_s=ends[row[-1]], first_step=row[0], last_step=row[-1],
        step_starts=tuple((step, starts[step]) for step in row),
    )  # fmt: skip


def _step_starts(spans: Sequence[RoleSpan]) -> dict[int, float]:
    """When the trainer's first rank began each step, in its last attempt at it."""
    attempts: dict[int, tuple[int, float]] = {}
    for span in spans:
        if span.role == "trainer" and span.rank == 0 and span.step >= 0:
            attempt, start_s = attempts.get(span.step, (-1, 0.0))
            if span.attempt > attempt:
                attempts[span.step] = (span.attempt, span.start_s)
            elif span.attempt == attempt:
                attempts[span.step] = (attempt, min(start_s, span.start_s))
    return {step: start_s for step, (_, start_s) in attempts.items()}
