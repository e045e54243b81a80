"""The timeline as a picture: a lane for each rank, a bar for its steps, a mark for each event."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scalewright import units
from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.postmortem import Postmortem
from scalewright.observe.timeline import Moment
from scalewright.report.postmortem.rows import short

MOST_LANES = 24
JOB = -1
"""The lane of events without a rank."""
LEAST_SPAN_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    at_frac: float
    role: str
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndLane:
    """One rank: where its steps begin and end, and its events, as shares of the width."""

    title: str
    first_frac: float
    last_frac: float
    marks: tuple[Mark, ...]
    has_steps: bool


def end_lanes(postmortem: Postmortem, evidence: Evidence) -> tuple[list[EndLane], list[dict[str, float | str]], int]:
    """Lanes, ticks of the time axis, and how many ranks are left out. Empty if nothing has a time."""
    timed = [one for one in postmortem.timeline.moments if one.at_s is not None]
    spans: dict[int, tuple[float, float]] = {}
    for step in evidence.steps:
        if step.at_s is not None and step.rank is not None:
            low, high = spans.get(step.rank, (step.at_s, step.at_s))
            spans[step.rank] = (min(low, step.at_s - (step.time_s or 0.0)), max(high, step.at_s))
    times = [*(one.at_s for one in timed if one.at_s is not None), *(t for span in spans.values() for t in span)]
    if not timed or max(times) <= min(times):
        return [], [], 0  # one moment makes no picture
    start_s, end_s = min(times), max(times)
    span_s = max(end_s - start_s, LEAST_SPAN_S)

    def frac(at_s: float) -> float:
        return (at_s - start_s) / span_s

    ranks = _chosen(timed, set(spans))
    lanes = []
    for rank in ranks[:MOST_LANES]:
        low_s, high_s = spans.get(rank, (start_s, start_s))
        lanes.append(EndLane(
            title="job" if rank == JOB else f"rank {rank}", first_frac=frac(low_s), last_frac=frac(high_s),
            has_steps=rank in spans, marks=tuple(_marks(rank, timed, frac)),
        ))  # fmt: skip
    ticks: list[dict[str, float | str]] = [
        {"at_frac": part / 4, "text": units.format(part / 4 * span_s, units.SECONDS)} for part in range(4)
    ]
    return lanes, ticks, max(len(ranks) - MOST_LANES, 0)


def _marks(rank: int, timed: list[Moment], frac: Callable[[float], float]) -> list[Mark]:
    return [
        Mark(at_frac=frac(one.at_s), role=one.role,
             words=f"{one.role}: {one.happening.kind.replace('_', ' ')}: {short(one.happening.message)}")
        for one in timed
        if one.at_s is not None and (JOB if one.happening.rank is None else one.happening.rank) == rank
    ]  # fmt: skip


def _chosen(timed: list[Moment], with_steps: set[int]) -> list[int]:
    """Ranks of the initiating event first, then all others in order."""
    first = [JOB if one.happening.rank is None else one.happening.rank for one in timed if one.role == "initiating"]
    others = {JOB if one.happening.rank is None else one.happening.rank for one in timed} | with_steps
    return list(dict.fromkeys([*first, *sorted(others)]))
