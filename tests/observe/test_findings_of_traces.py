"""Rules that read traces: each fires on what it is for, and not on a near miss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.observe.trace_maker import ADAM, Event, collective, kernel, launch, read, span, step, written

from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import RankTime, Spot
from scalewright.observe.findings.order import explain
from scalewright.observe.findings.rule import Explained

SPOT = Spot(file="log", line=1)


def findings(tmp_path: Path, events: list[Event]) -> dict[str, Explained]:
    written(tmp_path / "trace.json", [step(0, 100), *events])
    return {one.rule.id: one for one in explain(read(tmp_path))}


def launched(start: float, end: float, number: int, *, ahead: float = 5.0, **args: Any) -> list[Event]:
    return [launch(start - ahead, number), kernel(start, end, link=number, **args)]


def test_an_exchange_that_runs_alone(tmp_path: Path) -> None:
    alone = findings(tmp_path, [kernel(0, 60), collective(60, 100, group="mesh_dp")])["poor-overlap"]
    assert alone.severity == "warning"
    assert "all_reduce of mesh_dp runs alone for 40 % of a step" in alone.seen.message
    assert alone.seen.gain is not None
    assert alone.seen.gain.step_time_frac == pytest.approx(0.4)


@pytest.mark.parametrize(
    "exchange",
    [
        collective(30, 68, group="mesh_dp"),  # 30 of 38 ms are hidden
        collective(60, 100, group="TENSOR_MODEL_PARALLEL_GROUP"),  # the next layer needs it
        collective(60, 68, group="mesh_dp"),  # 8 % of the step
        collective(
            60, 100, name="ncclDevKernel_SendRecv", group="", **{"Collective name": "all_to_all"}
        ),  # data of layers
    ],
)
def test_near_misses_of_overlap(tmp_path: Path, exchange: Event) -> None:
    assert "poor-overlap" not in findings(tmp_path, [kernel(0, 60), exchange])


def ranks(tmp_path: Path, ready_ms: list[list[float]]) -> dict[str, Explained]:
    """Ranks that compute until they are ready, step by step, and leave the all-reduce together."""
    for rank, times in enumerate(ready_ms):
        events = []
        for number, ready in enumerate(times):
            at = 1e6 * rank + 100.0 * number
            events += [step(at, at + 100, number), kernel(at, at + ready), collective(at + ready, at + 95)]
        written(tmp_path / f"{rank}.json", events, rank=rank, num_ranks=len(ready_ms))
    return {one.rule.id: one for one in explain(read(tmp_path))}


def test_waiting_for_a_slow_rank_is_no_missing_overlap(tmp_path: Path) -> None:
    seen = ranks(tmp_path, [[50, 50, 50], [90, 90, 90], [50, 50, 50]])
    late = seen["critical-rank"]
    assert late.severity == "warning"
    assert late.seen.ranks == (1,)
    assert "wait 40.0 ms of a step in collectives (40 %) for rank 1, which computes 40.0 ms longer" in late.seen.message
    assert late.seen.gain is not None
    assert late.seen.gain.step_time_frac == pytest.approx(0.4)
    assert "poor-overlap" not in seen


@pytest.mark.parametrize(
    "ready_ms",
    [
        [[50, 50, 50], [58, 58, 58], [50, 50, 50]],  # 8 % of a step
        [[90, 50, 50], [50, 90, 50], [50, 50, 90]],  # another rank each time
        [[50, 50, 50]],
    ],
)
def test_near_misses_of_a_late_rank(tmp_path: Path, ready_ms: list[list[float]]) -> None:
    assert "critical-rank" not in ranks(tmp_path, ready_ms)


def test_short_kernels_that_wait_for_their_launches(tmp_path: Path) -> None:
    events = [event for n in range(100) for event in launched(n + 0.2, n + 0.215, n, ahead=0.006)]
    bound = findings(tmp_path, events)["launch-bound"]
    assert bound.severity == "warning"
    assert bound.seen.certainty == "certain"
    assert "100 kernels a step of 15.0 us" in bound.seen.message
    assert "CUDA graphs" in bound.seen.next_step


def test_a_host_that_stops(tmp_path: Path) -> None:
    events = [*launched(5, 45, 1), *launched(75, 100, 2, ahead=0.01)]
    assert "look for what stops the host" in findings(tmp_path, events)["launch-bound"].seen.next_step


def test_near_miss_of_launches(tmp_path: Path) -> None:
    # Kernels were launched long before: the device waits for something else.
    events = [event for n in range(10) for event in launched(10 * n + 5, 10 * n + 10, n, ahead=10 * n + 5)]
    assert "launch-bound" not in findings(tmp_path, events)


def test_a_large_and_a_small_optimizer(tmp_path: Path) -> None:
    large = findings(tmp_path, [kernel(0, 60), kernel(60, 100, name=ADAM)])["optimizer-share"]
    assert large.severity == "warning"
    assert "40 % of a step (40.0 ms), most of it on the device" in large.seen.message
    noted = findings(tmp_path, [kernel(0, 80), kernel(80, 100, name=ADAM)])["optimizer-share"]
    assert noted.severity == "info"
    assert "optimizer-share" not in findings(tmp_path, [kernel(0, 90), kernel(90, 100, name=ADAM)])


def test_an_optimizer_on_the_host(tmp_path: Path) -> None:
    events = [*launched(1, 50, 1, ahead=1), span("user_annotation", "Optimizer.step#CPUAdam.step", 50, 99)]
    ids = findings(tmp_path, events)
    assert "on the host, while the device waits" in ids["optimizer-share"].seen.message
    assert "launch-bound" not in ids


def test_copies(tmp_path: Path) -> None:
    def copied(until: float) -> list[Event]:
        return [
            kernel(until, 100),
            span("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 0, until, device=0, stream=7),
        ]

    loud = findings(tmp_path, copied(20))["memory-copies"]
    assert loud.severity == "warning"
    assert "20 % of a step, most of them from the device to the host" in loud.seen.message
    assert findings(tmp_path, copied(7))["memory-copies"].severity == "info"
    assert "memory-copies" not in findings(tmp_path, copied(3))


def test_a_term_that_the_prediction_missed() -> None:
    def run(idle_s: float) -> Evidence:
        parts = [{"name": "matmul_forward", "total_s": 0.8}, {"name": "host", "total_s": 0.2}]
        evidence = Evidence(prediction={"time": {"name": "step", "total_s": 1.0, "parts": parts}})
        evidence.add([RankTime(rank=0, spot=SPOT, step=1, step_s=0.8 + idle_s, compute_s=0.8, idle_s=idle_s)])
        return evidence

    (missed,) = [one for one in explain(run(0.6)) if one.rule.id == "prediction-differs"]
    assert missed.severity == "info"
    assert "host and bubble takes 600 ms of a step, 400 ms more than predicted (200 ms)" in missed.seen.message
    assert "prediction-differs" not in [one.rule.id for one in explain(run(0.3))]
