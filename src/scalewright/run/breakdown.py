"""Split the time of a step into parts. They add up to the time of an ordinary step, which no profiler slows down.

- Compute. On a GPU: time in which some kernel ran, from a Kineto profile. On a CPU: CPU time of the thread that trains,
  with Python and dispatch, without the profiler.
- Exposed communication. On a GPU: time in which only collectives ran. On a CPU: the rest of the step, as far as the
  profile shows a collective running and no operator.
- Data wait. Measured at the loader.
- Idle. The rest: the host (on a GPU), pipeline bubbles, slower ranks, and cores used by other processes (on a CPU).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from scalewright import units

Interval = tuple[float, float]
COLLECTIVES = ("nccl", "gloo:", "rccl")
NUM_ORDINARY = 20
"""The median of this many latest steps is the ordinary step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedStep:
    """Measured times of one step."""

    step: int
    wall_s: float
    thread_cpu_s: float
    """CPU time of the thread that trains."""
    data_wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSplit:
    compute_s: float
    communication_s: float
    """Exposed: not hidden behind compute."""
    data_wait_s: float
    idle_s: float


def profiler(device: torch.device, *, records_shapes: bool = False) -> profile:
    """With `records_shapes`, events have the sizes of what they work on."""
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
    return profile(activities=activities, record_shapes=records_shapes)


def split_step(profiled: profile, ordinary: Sequence[TimedStep], *, device: torch.device) -> StepSplit:
    """Split the time of an ordinary step, with the shares that the profiler measured in another step."""
    events = profiled.events()  # type: ignore[no-untyped-call]
    on_gpu = device.type == "cuda"
    compute, communication = busy_intervals(events or [], on_gpu=on_gpu)
    exposed_s = (covered([*compute, *communication]) - covered(compute)) * units.MICRO
    latest = ordinary[-NUM_ORDINARY:]
    compute_s = covered(compute) * units.MICRO if on_gpu else statistics.median(t.thread_cpu_s for t in latest)
    return step_split(
        step_s=statistics.median(t.wall_s for t in latest),
        data_wait_s=statistics.median(t.data_wait_s for t in latest),
        compute_s=compute_s,
        exposed_s=exposed_s,
    )


def step_split(*, step_s: float, data_wait_s: float, compute_s: float, exposed_s: float) -> StepSplit:
    """Parts that add up to `step_s`. If the profiled parts are too long, communication is shortened before compute."""
    data_wait_s = min(data_wait_s, step_s)
    compute_s = min(compute_s, step_s - data_wait_s)
    communication_s = min(exposed_s, step_s - data_wait_s - compute_s)
    return StepSplit(
        compute_s=compute_s,
        communication_s=communication_s,
        data_wait_s=data_wait_s,
        idle_s=max(step_s - data_wait_s - compute_s - communication_s, 0.0),
    )


def busy_intervals(events: Iterable[Any], *, on_gpu: bool) -> tuple[list[Interval], list[Interval]]:
    """Intervals in microseconds in which kernels or operators ran, and in which collectives ran."""
    compute: list[Interval] = []
    communication: list[Interval] = []
    for event in events:
        span = (float(event.time_range.start), float(event.time_range.end))
        is_collective = any(word in event.name.lower() for word in COLLECTIVES)
        if (event.device_type == DeviceType.CUDA) != on_gpu:
            continue
        if is_collective:
            communication.append(span)
        elif on_gpu or (event.name.startswith("aten::") and not event.cpu_children):
            compute.append(span)  # on a CPU, leaves only: an outer operator may contain a collective
    return compute, communication


def covered(intervals: Iterable[Interval]) -> float:
    """Length of the union of intervals."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(intervals):
        if end > until:
            total += end - max(start, until)
            until = end
    return total
