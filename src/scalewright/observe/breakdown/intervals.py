"""Sets of time as sorted, disjoint intervals, and the grid on which several of them are swept at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Spans:
    """Intervals, in any order and with overlaps."""

    starts: Floats
    ends: Floats

    def __len__(self) -> int:
        return len(self.starts)

    def where(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> Spans:
        return Spans(self.starts[chosen], self.ends[chosen])

    @property
    def total(self) -> float:
        """Sum of the lengths; overlaps count twice."""
        return float(np.sum(self.ends - self.starts))


EMPTY = Spans(np.empty(0), np.empty(0))


def spans_of(pairs: Sequence[tuple[float, float]]) -> Spans:
    table = np.asarray(pairs, dtype=np.float64).reshape(-1, 2)
    return Spans(table[:, 0].copy(), table[:, 1].copy())


def joined(*sets: Spans) -> Spans:
    return Spans(np.concatenate([one.starts for one in sets]), np.concatenate([one.ends for one in sets]))


def merged(spans: Spans) -> Spans:
    """The same time as disjoint intervals in order."""
    kept = spans.where(spans.ends > spans.starts)
    if not len(kept):
        return EMPTY
    order = np.argsort(kept.starts, kind="stable")
    starts, ends = kept.starts[order], np.maximum.accumulate(kept.ends[order])
    begins = np.concatenate(([True], starts[1:] > ends[:-1]))
    lasts = np.concatenate((begins[1:], [True]))
    return Spans(starts[begins], ends[lasts])


def covered(spans: Spans) -> float:
    """Length of the union."""
    return merged(spans).total


def innermost(spans: Spans, lanes: NDArray[np.int64]) -> tuple[Spans, NDArray[np.int64]]:
    """Calls inside each other as pieces: each moment of a lane belongs to the innermost call. Also the call of each."""
    starts, ends, owners = [], [], []
    order = np.lexsort((-spans.ends, spans.starts, lanes))
    table = zip(
        order.tolist(), lanes[order].tolist(), spans.starts[order].tolist(), spans.ends[order].tolist(), strict=True
    )
    stack: list[tuple[int, float]] = []
    lane_now, at = None, 0.0

    def close(until: float) -> None:
        """Give the time up to here to the calls that are open."""
        nonlocal at
        while stack and at < until:
            owner, end = stack[-1]
            reached = min(end, until)
            if reached > at:
                starts.append(at)
                ends.append(reached)
                owners.append(owner)
                at = reached
            if end <= until:
                stack.pop()
        while stack and stack[-1][1] <= until:
            stack.pop()

    for owner, lane, start, end in table:
        close(np.inf if lane != lane_now else start)
        if lane != lane_now:
            stack.clear()
            lane_now = lane
        at = start
        stack.append((owner, end))
    close(np.inf)
    return Spans(np.array(starts), np.array(ends)), np.array(owners, dtype=np.int64)


class TimeGrid:
    """Every time at which something begins or ends; between two of them nothing changes."""

    def __init__(self, *sets: Spans) -> None:
        self.times: Floats = np.unique(np.concatenate([time for one in sets for time in (one.starts, one.ends)]))
        self.lengths: Floats = np.diff(self.times)

    @property
    def starts(self) -> Floats:
        return self.times[:-1]

    def active(self, spans: Spans) -> Flags:
        """Of each slice: whether one of the intervals covers it."""
        num = len(self.times)
        if not len(spans) or num < 2:
            return np.zeros(max(num - 1, 0), dtype=np.bool_)
        opened = np.bincount(np.searchsorted(self.times, spans.starts), minlength=num)
        closed = np.bincount(np.searchsorted(self.times, spans.ends), minlength=num)
        return np.cumsum(opened - closed)[:-1] > 0

    def windows(self, steps: Spans) -> NDArray[np.int64]:
        """Of each slice: the number of the window it is in, -1 outside. Windows are disjoint and in order."""
        if not len(steps):
            return np.full(len(self.lengths), -1, dtype=np.int64)
        place = np.searchsorted(steps.starts, self.starts, side="right") - 1
        inside = (place >= 0) & (self.starts < steps.ends[np.maximum(place, 0)])
        return np.where(inside, place, -1).astype(np.int64)
