"""The parts of a step by a sweep over traces that are made by hand, so that every part is known."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.observe.trace_maker import ADAM, Event, collective, kernel, launch, read, span, step, written

from scalewright.observe.breakdown.sweep import rank_times
from scalewright.observe.breakdown.timeline import TimelineBuilder
from scalewright.observe.evidence.facts import RankTime, Spot

PARTS = (
    "compute_s", "exposed_communication_s", "data_s", "idle_s", "memory_copy_s", "checkpoint_s", "validation_s",
)  # fmt: skip


def swept(events: list[Event]) -> list[RankTime]:
    builder = TimelineBuilder()
    for event in events:
        builder.take(event)
    return rank_times(builder.end(), rank=0, spot=Spot(file="made"))


def milliseconds(time: RankTime, *names: str) -> dict[str, float]:
    return {name: round(getattr(time, name) * 1e3, 6) for name in names}


def test_compute_exposed_and_overlapped_communication() -> None:
    # 0..100: compute 0..60; all-reduce 40..80 on another stream; idle 80..100
    (time,) = swept([step(0, 100), kernel(0, 60), collective(40, 80)])
    assert milliseconds(time, *PARTS) == {
        "compute_s": 60, "exposed_communication_s": 20, "data_s": 0, "idle_s": 20, "memory_copy_s": 0,
        "checkpoint_s": 0, "validation_s": 0,
    }  # fmt: skip
    assert milliseconds(time, "step_s", "overlapped_communication_s") == {
        "step_s": 100,
        "overlapped_communication_s": 20,
    }
    assert time.step == 3
    assert time.num_kernels == 1
    assert time.on_device
    assert time.by_collective_s == pytest.approx({"all_reduce/mesh_dp": 0.040})
    assert time.exposed_by_collective_s == pytest.approx({"all_reduce/mesh_dp": 0.020})


def test_kernels_that_overlap_on_streams_count_once() -> None:
    (time,) = swept([step(0, 100), kernel(0, 50), kernel(20, 60, stream=8), kernel(30, 40, stream=9)])
    assert milliseconds(time, "compute_s", "idle_s") == {"compute_s": 60, "idle_s": 40}


def test_a_damaged_number_of_a_device_takes_no_memory() -> None:
    damaged = span("kernel", "gemm", 60, 70, tid=7, device=2**31 - 1, stream=7)
    (time,) = swept([step(0, 100), kernel(0, 50), damaged])
    assert milliseconds(time, "compute_s") == {"compute_s": 50}


def test_two_exposed_collectives_share_the_time_evenly() -> None:
    events = [step(0, 100), kernel(0, 50), collective(50, 90, group="tp"), collective(70, 90, stream=21, group="dp")]
    (time,) = swept(events)
    assert time.exposed_by_collective_s == pytest.approx({"all_reduce/tp": 0.030, "all_reduce/dp": 0.010})
    assert sum(time.exposed_by_collective_s.values()) == pytest.approx(time.exposed_communication_s)


def test_waiting_for_data_copies_checkpoint_and_validation() -> None:
    (time,) = swept([
        step(0, 100),
        span("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 0, 10),
        span("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 10, 15, tid=7, device=0, stream=7),
        kernel(15, 50), kernel(45, 55, name=ADAM),
        span("user_annotation", "save_checkpoint", 52, 70),
        span("user_annotation", "validation", 80, 95), kernel(82, 90),
    ])  # fmt: skip
    assert milliseconds(time, *PARTS) == {
        "compute_s": 40, "exposed_communication_s": 0, "data_s": 10, "idle_s": 15, "memory_copy_s": 5,
        "checkpoint_s": 15, "validation_s": 15,
    }  # fmt: skip
    assert milliseconds(time, "optimizer_s") == {"optimizer_s": 10}


def test_the_optimizer_is_what_its_annotation_launched() -> None:
    events = [
        step(0, 100), launch(1, 1), kernel(2, 50, link=1),
        span("user_annotation", "Optimizer.step#AdamW.step", 10, 12), launch(11, 2), kernel(50, 70, link=2),
        launch(13, 3), kernel(70, 80, link=3, name=ADAM),
    ]  # fmt: skip
    (time,) = swept(events)
    assert time.optimizer_s == pytest.approx(0.020)
    assert time.by_kind_s == pytest.approx({"matmul": 0.048, "optimizer": 0.020, "elementwise": 0.010})


def test_a_device_behind_its_host_keeps_its_work_in_the_step_that_launched_it() -> None:
    # The host ends step 1 at 20 and runs ahead; the device computes 10..100 for step 1 and 100..190 for step 2.
    events = [
        step(0, 20, 1), step(20, 40, 2), launch(5, 1), launch(25, 2), kernel(10, 100, link=1), kernel(100, 190, link=2)
    ]  # fmt: skip
    first, second = swept(events)
    assert milliseconds(first, "step_s", "compute_s", "idle_s") == {"step_s": 100, "compute_s": 90, "idle_s": 10}
    assert milliseconds(second, "step_s", "compute_s", "idle_s") == {"step_s": 90, "compute_s": 90, "idle_s": 0}


def test_idle_time_before_a_late_launch_is_the_hosts() -> None:
    events = [
        step(0, 100), launch(0, 1), kernel(0, 20, link=1),
        launch(39, 2), kernel(40, 60, link=2),  # launched while the device had nothing to do
        launch(50, 3), kernel(80, 100, link=3),  # launched in time: it waited for something else
    ]  # fmt: skip
    (time,) = swept(events)
    assert time.launch_idle_s == pytest.approx(0.020)
    assert time.idle_s == pytest.approx(0.040)


def test_kernels_of_one_graph_launch() -> None:
    events = [step(0, 100), launch(5, 9, "cudaGraphLaunch"), *(kernel(10 + i, 10.9 + i, link=9) for i in range(50))]
    (time,) = swept(events)
    assert time.num_kernels == 50
    assert milliseconds(time, "compute_s", "launch_idle_s") == {"compute_s": 45, "launch_idle_s": 50.1}
    # 10 before the first kernel and 40.1 after the last; gaps inside of the graph are not the host's


def test_no_annotation_is_one_step_and_optimizer_calls_bound_several() -> None:
    (whole,) = swept([kernel(10, 20), kernel(30, 40)])
    assert whole.step is None
    assert milliseconds(whole, "step_s", "idle_s") == {"step_s": 30, "idle_s": 10}
    calls = [span("user_annotation", "Optimizer.step#SGD.step", at, at + 1) for at in (9, 19, 29, 39)]
    times = swept([*calls, *(kernel(at, at + 5) for at in (2, 12, 22, 32))])
    assert [milliseconds(time, "step_s", "compute_s") for time in times] == [{"step_s": 10, "compute_s": 5}] * 3


def test_nested_and_repeated_annotations_count_once() -> None:
    events = [step(0, 100, 7), step(10, 30, 7), step(100, 150, 8), kernel(0, 150)]
    assert [(time.step, round(time.step_s, 6)) for time in swept(events)] == [(7, 0.1), (8, 0.05)]


def test_a_pause_between_profiled_steps_belongs_to_none() -> None:
    events = [
        step(0, 100, 1),
        step(5000, 5100, 11),
        launch(1, 1),
        kernel(2, 90, link=1),
        launch(5001, 2),
        kernel(5002, 5090, link=2),
    ]
    assert [round(time.step_s, 6) for time in swept(events)] == [0.1, 0.1]


def test_begin_and_end_pairs_and_events_without_duration() -> None:
    pair = [
        {"ph": "B", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 10_000},
        {"ph": "B", "cat": "kernel", "name": "inner", "pid": 0, "tid": 7, "ts": 12_000},
        {"ph": "E", "pid": 0, "tid": 7, "ts": 14_000},
        {"ph": "E", "pid": 0, "tid": 7, "ts": "30000"},
        {"ph": "E", "pid": 0, "tid": 9, "ts": 31_000},
        {"ph": "B", "cat": "kernel", "name": "open", "pid": 0, "tid": 7, "ts": 40_000},
        {"ph": "X", "cat": "kernel", "name": "no length", "pid": 0, "tid": 7, "ts": 50_000},
        {"ph": "X", "cat": "kernel", "name": "no time", "pid": 0, "tid": 7, "dur": 4},
        {"ph": "X", "cat": "kernel", "name": "negative", "pid": 0, "tid": 7, "ts": 50_000, "dur": -4},
    ]
    builder = TimelineBuilder()
    for event in [step(0, 100), *pair]:
        builder.take(event)
    line = builder.end()
    (time,) = rank_times(line, rank=0, spot=Spot(file="made"))
    assert milliseconds(time, "compute_s") == {"compute_s": 20}
    assert (line.num_without_time, line.num_unclosed) == (4, 1)


def test_rccl_and_generic_kernels_are_named_by_their_arguments() -> None:
    generic = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"
    args = {"Collective name": "_allgather_base", "Process Group Ranks": "[0, 1, 2, 3]"}
    old = kernel(60, 70, name="ncclKernel_ReduceScatter_RING_LL_Sum_half", stream=30)
    sent = collective(
        80, 90, name="ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", group="pp", **{"Collective name": "send"}
    )
    (time,) = swept([step(0, 100), kernel(0, 30), collective(30, 50, name=generic, group="fsdp", **args), old, sent])
    assert time.exposed_by_collective_s == pytest.approx(
        {"all_gather/fsdp": 0.02, "reduce_scatter/stream 30": 0.01, "send/pp": 0.01}
    )
    assert time.group_ranks == {"fsdp": (0, 1, 2, 3)}


def test_a_trace_of_a_cpu() -> None:
    (time,) = swept([
        step(0, 100),
        span("cpu_op", "aten::linear", 0, 40), span("cpu_op", "aten::addmm", 5, 35),
        span("cpu_op", "aten::gelu", 40, 60),
        span("user_annotation", "gloo:all_reduce", 50, 80, tid=99),
        span("cpu_op", "_c10d_functional::wait_tensor", 62, 80),
        span("cpu_op", "aten::copy_", 70, 75),
    ])  # fmt: skip
    assert not time.on_device
    assert time.launch_idle_s is None
    assert milliseconds(time, *PARTS[:4], "overlapped_communication_s") == {
        "compute_s": 60, "exposed_communication_s": 20, "data_s": 0, "idle_s": 20, "overlapped_communication_s": 10,
    }  # fmt: skip
    assert time.by_kind_s == pytest.approx({"matmul": 0.040, "elementwise": 0.020})


def test_calls_are_kept_in_order() -> None:
    (time,) = swept([step(0, 100), kernel(0, 1), collective(50, 58), collective(10, 13), collective(30, 35)])
    assert time.calls_s["all_reduce/mesh_dp"] == pytest.approx((0.003, 0.005, 0.008))


TIMES = st.integers(0, 100)


@st.composite
def random_events(draw: st.DrawFn) -> list[Event]:
    makers: list[Any] = [
        lambda a, b: kernel(a, b, stream=7 + a % 3),
        lambda a, b: collective(a, b, group=("tp", "dp")[a % 2], stream=20 + a % 2),
        lambda a, b: span("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", a, b, tid=9, device=0, stream=9),
        lambda a, b: span("user_annotation", "enumerate(DataLoader)#x.__next__", a, b),
        lambda a, b: span("user_annotation", "save_checkpoint", a, b),
        lambda a, b: span("user_annotation", "evaluate", a, b),
    ]
    rows = draw(st.lists(st.tuples(st.integers(0, len(makers) - 1), TIMES, TIMES), max_size=25))
    return [step(0, 40, 1), step(40, 100, 2), kernel(0, 1)] + [
        makers[which](min(a, b), max(a, b)) for which, a, b in rows
    ]


@given(events=random_events(), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_parts_add_up_and_the_order_of_events_does_not_matter(events: list[Event], seed: int) -> None:
    times = swept(events)
    for time in times:
        assert sum(getattr(time, name) for name in PARTS) == pytest.approx(time.step_s, abs=1e-9)
        assert sum(time.exposed_by_collective_s.values()) == pytest.approx(time.exposed_communication_s, abs=1e-9)
        assert sum(time.by_kind_s.values()) == pytest.approx(time.compute_s, abs=1e-9)
        assert 0.0 <= time.optimizer_s <= time.compute_s + 1e-9
    random.Random(seed).shuffle(events)
    for one, other in zip(times, swept(events), strict=True):
        assert [getattr(one, name) for name in PARTS] == pytest.approx([getattr(other, name) for name in PARTS])


def test_clocks_of_ranks_that_disagree_change_nothing(tmp_path: Path) -> None:
    for rank, offset in enumerate((0.0, 7_200_000.0)):
        events = [step(offset, offset + 100), kernel(offset, offset + 60), collective(offset + 40, offset + 80)]
        written(tmp_path / f"{rank}.json", events, rank=rank, packed=rank == 1)
    times = read(tmp_path).rank_times
    assert [time.rank for time in times] == [0, 1]
    assert [round(time.exposed_communication_s, 6) for time in times] == [0.02, 0.02]
