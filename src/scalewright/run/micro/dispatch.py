"""`bench dispatch`: the least time between two kernels, which no small model is faster than.

Rows: op, mode (eager, compiled, graph), time_s (per launch), time_low_s, time_high_s, repeats.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from scalewright.records.run_directory import RunDirectory
from scalewright.records.types import ExitCode
from scalewright.run.metrics import MetricWriter
from scalewright.run.micro.captured import captured
from scalewright.run.micro.session import Session, run_micro
from scalewright.run.micro.time_limit import TooLong, at_most
from scalewright.run.micro.timing import Timing, settle, timing_of
from scalewright.run.signals import StopSignals
from scalewright.run.watchdog import Watchdog
from scalewright.run.world import World
from scalewright.workload.micro_run import DispatchRun

LAUNCHES = 200
"""In one sample, between two waits: the queue of a GPU takes a thousand before launching itself has to wait."""
GRAPH_LAUNCHES = 100
WIDTH = 16
"""Elements to a side: too few for the work itself to matter."""
LONGEST_POINT_S = 1.0
LONGEST_COMPILE_S = 60.0
"""Where compiling is not part of the budget, what still bounds it."""
MIN_SAMPLES, MAX_SAMPLES = 9, 400

Op = Callable[[], object]


def run(
    directory: RunDirectory, world: World, metrics: MetricWriter, stop: StopSignals, watchdog: Watchdog
) -> ExitCode:
    return run_micro("dispatch", DispatchRun, measure_dispatch, directory, world, metrics, stop, watchdog)


def measure_dispatch(config: DispatchRun, session: Session) -> None:
    ops = _ops(session.device)
    has_graphs = session.device.type == "cuda"
    num_left = len(ops) * (2 if has_graphs else 1) + (1 if config.compiles else 0) + (1 if has_graphs else 0)
    for name, op in ops.items():
        session.part(f"{name}, eager")
        num_left = _take(session, name, "eager", _launches(op, session.device), LAUNCHES, num_left)
    if has_graphs:
        session.part("launch and wait")
        num_left = _take(session, "add_and_wait", "eager", _launch_and_wait(ops["add"], session.device), 1, num_left)
    for name, op in ops.items() if has_graphs else ():
        session.part(f"{name}, CUDA graph")
        graph = captured(op, num_calls=GRAPH_LAUNCHES)
        replay = _launches(graph.replay, session.device, num=1)
        num_left = _take(session, name, "graph", replay, GRAPH_LAUNCHES, num_left)
    if config.compiles:
        session.part("compiled")
        limit_s = session.left_s if config.budgets_compiling else LONGEST_COMPILE_S
        _take_compiled(session, num_left, limit_s=limit_s)
    _sum_up(session)


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
    """Seconds of a row of launches until the device has done them all."""

    def sample_s() -> float:
        settle(device)
        begun_s = time.perf_counter()
        for _ in range(num):
            op()
        settle(device)
        return time.perf_counter() - begun_s

    return sample_s


def _launch_and_wait(op: Op, device: torch.device) -> Callable[[], float]:
    """What reading back a loss, or any other wait, costs beside the work."""
    return _launches(op, device, num=1)


def _take(session: Session, op: str, mode: str, sample_s: Callable[[], float], launches: int, num_left: int) -> int:
    """Add a row; returns how many are left."""
    share_s = min(LONGEST_POINT_S, max(0.0, session.left_s / max(num_left, 1)))
    timing = session.watch.steadily(lambda: _repeated(sample_s, launches, share_s))
    session.beat(share_s)
    row: dict[str, Any] = {"op": op, "mode": mode, **timing.row()}
    session.rows.append(row)
    return num_left - 1


def _repeated(sample_s: Callable[[], float], launches: int, budget_s: float) -> Timing:
    ends_s = time.perf_counter() + budget_s
    sample_s()
    sample_s()
    samples_s: list[float] = []
    while len(samples_s) < MIN_SAMPLES or (len(samples_s) < MAX_SAMPLES and time.perf_counter() < ends_s):
        samples_s.append(sample_s() / launches)
    return timing_of(samples_s, calls_per_repeat=launches)


def _take_compiled(session: Session, num_left: int, *, limit_s: float) -> None:
    """One fused kernel behind torch.compile, guards included; noted and left out where nothing compiles in time."""
    x = torch.ones(WIDTH, WIDTH, device=session.device)

    def fused(given: Tensor) -> Tensor:
        return torch.relu(given * 2.0 + 1.0)

    with session.watchdog.suspended():
        begun_s = time.monotonic()
        try:
            with at_most(limit_s):
                compiled = torch.compile(fused)
                compiled(x)
        except TooLong:
            session.leave_out("compiled", "torch.compile had not ended within the budget; give a longer --budget")
            return
        except Exception as error:  # no compiler, no Triton, no headers: each fails in its own way
            first = (str(error).strip().splitlines() or [""])[0][:120]
            session.note(f"torch.compile does not work here and was left out ({type(error).__name__}: {first})")
            return
        session.summary["compile_s"] = time.monotonic() - begun_s
    _take(session, "fused", "compiled", _launches(lambda: compiled(x), session.device), LAUNCHES, num_left)


def _sum_up(session: Session) -> None:
    by_mode: dict[str, list[float]] = {}
    for row in session.rows:
        if row["op"] != "add_and_wait":
            by_mode.setdefault(row["mode"], []).append(row["time_s"])
    for mode, times_s in by_mode.items():
        session.summary[f"{mode}_launch_s"] = min(times_s)
