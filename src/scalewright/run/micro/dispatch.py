"""`bench dispatch`: the shortest time between two kernels, which limits small models.

Rows: op, mode (eager, compiled, graph), time_s (per launch), time_low_s, time_high_s, repeats.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from scalewright.records.types import ExitCode
from scalewright.run.micro.captured import captured
from scalewright.run.micro.session import BenchSession, run_micro
from scalewright.run.micro.time_limit import TooLong, at_most
from scalewright.run.micro.timing import Timing, synchronise, timing_of
from scalewright.run.rank_context import RankContext
from scalewright.workload.micro_run import DispatchRun

LAUNCHES = 200
"""Launches in one sample, between two waits. The queue of a GPU holds a thousand before a launch has to wait."""
GRAPH_LAUNCHES = 100
WIDTH = 16
"""Elements per side: too few for the work itself to matter."""
LONGEST_POINT_S = 1.0
LONGEST_COMPILE_S = 60.0
"""Time limit of compiling where it is not part of the budget."""
MIN_SAMPLES, MAX_SAMPLES = 9, 400

Op = Callable[[], object]


def run(rank: RankContext) -> ExitCode:
    return run_micro("dispatch", DispatchRun, measure_dispatch, rank)


def measure_dispatch(config: DispatchRun, session: BenchSession) -> None:
    ops = _ops(session.device)
    has_graphs = session.device.type == "cuda"
    num_left = len(ops) * (2 if has_graphs else 1) + (1 if config.compiles else 0) + (1 if has_graphs else 0)
    for name, op in ops.items():
        session.part(f"{name}, eager")
        num_left = _add_row(session, name, "eager", _launches(op, session.device), LAUNCHES, num_left)
    if has_graphs:
        session.part("launch and wait")
        num_left = _add_row(session, "add_and_wait", "eager", _launch_and_wait(ops["add"], session.device), 1, num_left)
    for name, op in ops.items() if has_graphs else ():
        session.part(f"{name}, CUDA graph")
        graph = captured(op, num_calls=GRAPH_LAUNCHES)
        replay = _launches(graph.replay, session.device, num=1)
        num_left = _add_row(session, name, "graph", replay, GRAPH_LAUNCHES, num_left)
    if config.compiles:
        session.part("compiled")
        limit_s = session.budget.left_s if config.budgets_compiling else LONGEST_COMPILE_S
        _add_compiled_row(session, num_left, limit_s=limit_s)
    _summarise(session)


def _ops(device: torch.device) -> dict[str, Op]:
    x = torch.ones(WIDTH, WIDTH, device=device)
    w, b = torch.ones(WIDTH, device=device), torch.zeros(WIDTH, device=device)
    out = torch.empty_like(x)
    return {
        "add": lambda: torch.add(x, 1.0, out=out),
        "mm": lambda: torch.mm(x, x, out=out),
        "layer_norm": lambda: torch.nn.functional.layer_norm(x, (WIDTH,), w, b),
    }


def _launches(op: Op, device: torch.device, *, num: int = LAUNCHES) -> Callable[[], float]:
    """A function that times `num` launches until the device has finished them all."""

    def sample_s() -> float:
        synchronise(device)
        begun_s = time.perf_counter()
        for _ in range(num):
            op()
        synchronise(device)
        return time.perf_counter() - begun_s

    return sample_s


def _launch_and_wait(op: Op, device: torch.device) -> Callable[[], float]:
    """A function that times one launch and the wait for it, as when a loss is read."""
    return _launches(op, device, num=1)


def _add_row(
    session: BenchSession, op: str, mode: str, sample_s: Callable[[], float], launches: int, num_left: int
) -> int:
    """Measure and add a row; returns how many are left."""
    share_s = min(LONGEST_POINT_S, max(0.0, session.budget.left_s / max(num_left, 1)))
    timing = session.watch.steadily(lambda: _timing(sample_s, launches, share_s))
    session.beat(share_s)
    row: dict[str, Any] = {"op": op, "mode": mode, **timing.row()}
    session.rows.append(row)
    return num_left - 1


def _timing(sample_s: Callable[[], float], launches: int, budget_s: float) -> Timing:
    ends_s = time.perf_counter() + budget_s
    sample_s()
    sample_s()
    samples_s: list[float] = []
    while len(samples_s) < MIN_SAMPLES or (len(samples_s) < MAX_SAMPLES and time.perf_counter() < ends_s):
        samples_s.append(sample_s() / launches)
    return timing_of(samples_s, calls_per_repeat=launches)


def _add_compiled_row(session: BenchSession, num_left: int, *, limit_s: float) -> None:
    """Measure one fused kernel of torch.compile, with its guards. It is left out, with a note, if compiling fails."""
    x = torch.ones(WIDTH, WIDTH, device=session.device)

    def fused(values: Tensor) -> Tensor:
        return torch.relu(values * 2.0 + 1.0)

    with session.watchdog.suspended():
        begun_s = time.monotonic()
        try:
            with at_most(limit_s):
                compiled = torch.compile(fused)
                compiled(x)
        except TooLong:
            session.leave_out("compiled", "torch.compile did not finish within the budget; give a longer --budget")
            return
        except Exception as error:  # no compiler, no Triton, no headers: each raises its own error
            first = (str(error).strip().splitlines() or [""])[0][:120]
            session.note(f"torch.compile does not work here and was left out ({type(error).__name__}: {first})")
            return
        session.summary["compile_s"] = time.monotonic() - begun_s
    _add_row(session, "fused", "compiled", _launches(lambda: compiled(x), session.device), LAUNCHES, num_left)


def _summarise(session: BenchSession) -> None:
    by_mode: dict[str, list[float]] = {}
    for row in session.rows:
        if row["op"] != "add_and_wait":
            by_mode.setdefault(row["mode"], []).append(row["time_s"])
    for mode, times_s in by_mode.items():
        session.summary[f"{mode}_launch_s"] = min(times_s)
