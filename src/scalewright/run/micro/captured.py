"""The device's own time of calls that are shorter than launching them: many in one CUDA graph, timed as it replays."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from scalewright import units
from scalewright.run.micro.session import Session
from scalewright.run.micro.timing import Timing, Work

WARM_UP_CALLS = 3
CAPTURED_S = 5e-4
"""A graph holds calls for about so long: starting to replay it takes a hundredth of that."""
MOST_CALLS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A call that is warm: kernels are chosen, and on a GPU as many calls as make a sample are recorded."""

    work: Work
    num_calls: int = 1


def prepared(work: Work, session: Session) -> Prepared:
    """Warm up, which is when libraries search for their kernels; then record."""
    with session.watchdog.suspended():
        if session.device.type != "cuda":
            work()
            return Prepared(work=work)
        num_calls = max(1, min(MOST_CALLS, math.ceil(CAPTURED_S / max(_queued_s(work), 1e-7))))
        try:
            graph = captured(work, num_calls=num_calls)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            first = (str(error).strip().splitlines() or [""])[0][:120]
            session.note(f"what no CUDA graph could record is timed with its launches ({first})")
            return Prepared(work=work)
        return Prepared(work=graph.replay, num_calls=num_calls)


def time_prepared(call: Prepared, session: Session, *, share_s: float) -> Timing:
    """What one call takes, within its share of the time."""
    timing = session.time(call.work, share_s=share_s)
    return replace(
        timing,
        time_s=timing.time_s / call.num_calls,
        time_low_s=timing.time_low_s / call.num_calls,
        time_high_s=timing.time_high_s / call.num_calls,
        calls_per_repeat=timing.calls_per_repeat * call.num_calls,
    )


def captured(work: Work, *, num_calls: int) -> torch.cuda.CUDAGraph:
    """A graph of many calls in a row."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # warm up off the main stream, as capturing asks for
        for _ in range(WARM_UP_CALLS):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(num_calls):
            work()
    return graph


def _queued_s(work: Work) -> float:
    """Seconds of a warm call among others, launching included."""
    work()
    torch.cuda.synchronize()
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begun.record()
    for _ in range(WARM_UP_CALLS):
        work()
    ended.record()
    torch.cuda.synchronize()
    return float(begun.elapsed_time(ended)) * units.MILLI / WARM_UP_CALLS
