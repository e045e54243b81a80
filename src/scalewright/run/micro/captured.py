"""Device time of calls that are shorter than their launch: many calls in one CUDA graph, timed as it replays."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from scalewright import units
from scalewright.run.micro.session import BenchSession
from scalewright.run.micro.timing import Timing, Work

WARM_UP_CALLS = 3
CAPTURED_S = 5e-4
"""A graph contains calls for about this long. Starting its replay takes a hundredth of that."""
MAX_CALLS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCall:
    """A warm call: kernels are chosen, and on a GPU the calls of one sample are recorded."""

    work: Work
    num_calls: int = 1


def prepared(work: Work, session: BenchSession) -> PreparedCall:
    """Warm up, so that libraries search for their kernels; then record."""
    with session.watchdog.suspended():
        if session.device.type != "cuda":
            work()
            return PreparedCall(work=work)
        num_calls = max(1, min(MAX_CALLS, math.ceil(CAPTURED_S / max(_queued_s(work), 1e-7))))
        try:
            graph = captured(work, num_calls=num_calls)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            first = (str(error).strip().splitlines() or [""])[0][:120]
            session.note(f"calls that a CUDA graph cannot record are timed with their launches ({first})")
            return PreparedCall(work=work)
        return PreparedCall(work=graph.replay, num_calls=num_calls)


def time_prepared(call: PreparedCall, session: BenchSession, *, share_s: float) -> Timing:
    """Time of one call, measured within its share of the budget."""
    timing = session.time(call.work, share_s=share_s)
    return replace(
        timing,
        time_s=timing.time_s / call.num_calls,
        time_low_s=timing.time_low_s / call.num_calls,
        time_high_s=timing.time_high_s / call.num_calls,
        calls_per_repeat=timing.calls_per_repeat * call.num_calls,
    )


def captured(work: Work, *, num_calls: int) -> torch.cuda.CUDAGraph:
    """A graph of `num_calls` consecutive calls."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # warm up off the main stream, as capturing requires
        for _ in range(WARM_UP_CALLS):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(num_calls):
            work()
    return graph


def _queued_s(work: Work) -> float:
    """Time of a warm call among others, with its launch."""
    work()
    torch.cuda.synchronize()
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begun.record()
    for _ in range(WARM_UP_CALLS):
        work()
    ended.record()
    torch.cuda.synchronize()
    return float(begun.elapsed_time(ended)) * units.MILLI / WARM_UP_CALLS
