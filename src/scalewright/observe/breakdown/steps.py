"""Which part of a timeline belongs to which step.

Annotations of the host bound the steps. A device lags behind its host: kernels that a step launched may run after the
host began the next step. So a step begins when the host does, but not before the device has ended what was launched
earlier. Without annotations, calls of the optimizer bound the steps; without those, the whole trace is one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scalewright.observe.breakdown.intervals import Floats, Spans, joined
from scalewright.observe.breakdown.timeline import NO_ID, TraceTimeline

LEAST_OPTIMIZER_CALLS = 3
"""Fewer calls bound no step between them with certainty."""
SAME_CALL_FRAC = 0.1
"""Calls closer than this share of the longest pause belong to one step: models may have several optimizers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Disjoint windows in order."""

    windows: Spans
    numbers: tuple[int | None, ...]
    """None: the trace does not say it."""
    marked_by: str
    """annotation, optimizer or nothing."""


def steps_of(line: TraceTimeline) -> Steps:
    if line.last_s <= line.first_s:
        return Steps(windows=Spans(np.empty(0), np.empty(0)), numbers=(), marked_by="nothing")
    marks = line.phases.get("step") or line.device_phases.get("step")
    if marks is not None:
        spans, numbers = _outermost(marks.spans, marks.numbers)
        windows = _on_device(line, spans) if line.has_device and "step" in line.phases else spans
        kept = windows.ends > windows.starts
        return Steps(
            windows=windows.where(kept),
            numbers=tuple(number for number, keep in zip(numbers, kept, strict=True) if keep),
            marked_by="annotation",
        )
    return _by_optimizer(line) or Steps(windows=_whole(line), numbers=(None,), marked_by="nothing")


def _whole(line: TraceTimeline) -> Spans:
    """The trace as one step. With a device, work of the host before its first launch is the start of the program."""
    if not line.has_device:
        return Spans(np.array([line.first_s]), np.array([line.last_s]))
    device = joined(*(one.spans for one in (line.kernels, line.copies, line.collectives)))
    starts = (device.starts, line.launches.spans.starts, line.phase_spans("data").starts)
    first = min(float(np.min(times)) for times in starts if len(times))
    return Spans(np.array([first]), np.array([float(np.max(device.ends))]))


def _outermost(pairs: list[tuple[float, float]], numbers: list[int]) -> tuple[Spans, list[int]]:
    """Marks that are inside no other one, in order; a mark that several threads make counts once."""
    order = sorted(range(len(pairs)), key=lambda i: (pairs[i][0], -pairs[i][1]))
    kept: list[int] = []
    reached = -np.inf
    for place in order:
        _start, end = pairs[place]
        if end <= reached:
            continue
        kept.append(place)
        reached = end
    starts = np.array([pairs[i][0] for i in kept])
    ends = np.array([pairs[i][1] for i in kept])
    ends[:-1] = np.minimum(ends[:-1], starts[1:])
    return Spans(starts, ends), [numbers[i] for i in kept]


def launch_times(line: TraceTimeline, links: NDArray[np.int64]) -> Floats:
    """When each kernel was launched; NaN where the trace does not say it."""
    times = np.full(len(links), np.nan)
    known, starts = line.launches.links, line.launches.spans.starts
    usable = known != NO_ID
    if not usable.any() or not len(links):
        return times
    known, starts = known[usable], starts[usable]
    order = np.argsort(known, kind="stable")
    known, starts = known[order], starts[order]
    place = np.minimum(np.searchsorted(known, links), len(known) - 1)
    match = (known[place] == links) & (links != NO_ID)
    times[match] = starts[place[match]]
    return times


def _on_device(line: TraceTimeline, host: Spans) -> Spans:
    """Windows of the device for those of the host."""
    columns = (line.kernels, line.copies, line.collectives)
    device = joined(*(one.spans for one in columns))
    launched = launch_times(line, np.concatenate([one.links for one in columns]))
    known = ~np.isnan(launched)
    if not known.any():
        return host
    ends, step = device.ends[known], np.searchsorted(host.starts, launched[known], side="right")
    done = np.full(len(host.starts) + 1, -np.inf)
    np.maximum.at(done, step, ends)
    done = np.maximum.accumulate(done)  # [i]: when all that was launched before step i has ended
    starts = np.maximum(host.starts, done[:-1])
    in_last = (step == len(host.starts)) & (launched[known] < host.ends[-1])
    last = np.max(ends[in_last], initial=max(float(host.ends[-1]), float(starts[-1])))
    inner = np.minimum(starts[1:], np.maximum(host.ends[:-1], done[1:-1]))  # a pause between steps belongs to none
    return Spans(starts, np.concatenate((np.maximum(inner, starts[:-1]), [last])))


def _by_optimizer(line: TraceTimeline) -> Steps | None:
    phases = line.phases.get("optimizer") or line.device_phases.get("optimizer")
    if phases is None:
        return None
    spans = _calls(_outermost(phases.spans, phases.numbers)[0])
    if len(spans) < LEAST_OPTIMIZER_CALLS:
        return None
    windows = Spans(spans.ends[:-1], spans.ends[1:])
    if line.has_device and "optimizer" in line.phases:
        windows = _on_device(line, windows)
    return Steps(windows=windows, numbers=(None,) * len(windows), marked_by="optimizer")


def _calls(spans: Spans) -> Spans:
    """Calls of one step as one."""
    pauses = spans.starts[1:] - spans.ends[:-1]
    if not len(pauses):
        return spans
    apart = pauses > SAME_CALL_FRAC * float(np.max(pauses))
    return Spans(spans.starts[np.concatenate(([True], apart))], spans.ends[np.concatenate((apart, [True]))])
