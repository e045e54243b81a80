"""Where a step's time went, from a Kineto profile of it.

Compute is the time in which some kernel ran (on a GPU) or some operator was at work (on a CPU). Exposed communication
is the time in which only collectives were under way (NCCL kernels; Gloo operations). Data wait is the time the step
stood waiting for its batch. What is left is idle: bubbles, the host, and the profiler itself, which slows the host.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

Interval = tuple[float, float]
US = 1e-6
COLLECTIVES = ("nccl", "gloo:", "rccl")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSplit:
    compute_s: float
    communication_s: float
    """Exposed: not hidden behind compute."""
    data_wait_s: float
    idle_s: float


def profiler(device: torch.device) -> profile:
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
    return profile(activities=activities)


def split_step(profiled: profile, *, device: torch.device, step_s: float, data_wait_s: float) -> StepSplit:
    """Divide a step's wall time by what the profiler saw in it."""
    events = profiled.events()  # type: ignore[no-untyped-call]
    compute, communication = busy_intervals(events or [], on_gpu=device.type == "cuda")
    compute_s = covered(compute) * US
    communication_s = (covered([*compute, *communication]) - covered(compute)) * US
    known_s = compute_s + communication_s + data_wait_s
    if known_s > step_s:  # clocks of host and device differ a little
        compute_s *= step_s / known_s
        communication_s *= step_s / known_s
        data_wait_s *= step_s / known_s
    return StepSplit(
        compute_s=compute_s,
        communication_s=communication_s,
        data_wait_s=data_wait_s,
        idle_s=max(step_s - compute_s - communication_s - data_wait_s, 0.0),
    )


def busy_intervals(events: Iterable[Any], *, on_gpu: bool) -> tuple[list[Interval], list[Interval]]:
    """Microseconds in which kernels or operators worked, and in which collectives were under way."""
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
    """Length of the union."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(intervals):
        if end > until:
            total += end - max(start, until)
            until = end
    return total
