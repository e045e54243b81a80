"""What must hold of every collective, whatever the group and the size."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from properties.cases import MACHINES, cost_of, setting
from scalewright.costs.collectives import (
    LIBRARIES,
    Path,
    all_reduce_time_s,
    all_to_all_time_s,
    gather_time_s,
    group_path,
    send_time_s,
)
from scalewright.costs.machine import Machine

MANY = settings(deadline=None, max_examples=100)
SIZES = st.floats(1.0, 1e11)
RANKS = st.integers(2, 512)
NAMES = st.sampled_from(sorted(MACHINES))
CONGESTED: dict[str, Machine] = {
    name: replace(
        machine,
        network=replace(
            machine.network, congestion=8.0, collisions=1.2, is_shared=True, num_nodes=60_000, congestion_frac=0.5
        ),
    )
    for name, machine in MACHINES.items()
    if machine.network is not None
}
"""The same machines with other jobs around, which not all of the catalogue's have, and so large that no job of these
tests has half of them: beyond that there are fewer others, and a larger job may be faster."""


def path_of(name: str, num_ranks: int, stride: int = 1) -> Path:
    return group_path(MACHINES[name], num_ranks=num_ranks, stride=stride)


def silent(path: Path) -> Path:
    """Without starts and latencies, and without switches that sum."""
    return replace(path, offset_s=0.0, inside_latency_s=0.0, between_latency_s=0.0, library="rccl")


@given(name=NAMES, num_ranks=RANKS, stride=st.integers(1, 16), size=SIZES, more=SIZES)
@MANY
def test_gather_moves_half_of_what_an_all_reduce_moves(
    name: str, num_ranks: int, stride: int, size: float, more: float
) -> None:
    path = path_of(name, num_ranks, stride)
    quiet = silent(path)
    gathered, reduced = gather_time_s(size_bytes=size, path=quiet), all_reduce_time_s(size_bytes=size, path=quiet)
    assert gathered == pytest.approx(reduced / 2)
    assert gathered == pytest.approx((num_ranks - 1) / num_ranks * size / path.bytes_per_s)
    grown = gather_time_s(size_bytes=size + more, path=path) - gather_time_s(size_bytes=size, path=path)
    assert grown == pytest.approx(gather_time_s(size_bytes=more, path=quiet), rel=1e-3, abs=1e-9)


@given(name=NAMES, num_ranks=RANKS, size=SIZES, calls=st.integers(1, 200))
@MANY
def test_gather_in_pieces_pays_each_start(name: str, num_ranks: int, size: float, calls: int) -> None:
    path = path_of(name, num_ranks)
    once = gather_time_s(size_bytes=size, path=path)
    pieces = gather_time_s(size_bytes=size, path=path, num_calls=calls)
    assert pieces == pytest.approx(once + (calls - 1) * (path.offset_s + path.ring_latency_s))


@given(name=NAMES, size=SIZES, stride=st.integers(1, 16))
@MANY
def test_one_rank_exchanges_nothing(name: str, size: float, stride: int) -> None:
    path = path_of(name, 1, stride)
    assert path.is_real == 0
    assert all_reduce_time_s(size_bytes=size, path=path) == 0
    assert gather_time_s(size_bytes=size, path=path) == 0
    assert send_time_s(size_bytes=size, path=path) == 0
    assert all_to_all_time_s(size_bytes=size, machine=MACHINES[name], num_ranks=1) == 0


@given(name=NAMES, size=st.floats(1e6, 1e11), factor=st.integers(2, 8))
@MANY
def test_all_to_all_costs_more_when_it_leaves_the_node(name: str, size: float, factor: int) -> None:
    machine = MACHINES[name]
    inside = all_to_all_time_s(size_bytes=size, machine=machine, num_ranks=machine.gpus_per_node)
    outside = all_to_all_time_s(size_bytes=size, machine=machine, num_ranks=machine.gpus_per_node * factor)
    assert outside > inside > 0


@given(name=NAMES, num_ranks=RANKS, size=SIZES, more=SIZES)
@MANY
def test_message_is_linear_in_size_and_never_below_the_latency(
    name: str, num_ranks: int, size: float, more: float
) -> None:
    path = path_of(name, num_ranks)
    time = send_time_s(size_bytes=size, path=path)
    assert time >= path.offset_s + path.hop_latency_s
    grown = send_time_s(size_bytes=size + more, path=path) - time
    assert grown == pytest.approx(more / path.bytes_per_s, rel=1e-3, abs=1e-9)


@given(name=NAMES, num_ranks=RANKS, size=SIZES, more=SIZES)
@MANY
def test_larger_messages_never_take_less(name: str, num_ranks: int, size: float, more: float) -> None:
    path, machine = path_of(name, num_ranks), MACHINES[name]
    assert all_reduce_time_s(size_bytes=size + more, path=path) >= all_reduce_time_s(size_bytes=size, path=path)
    assert all_to_all_time_s(size_bytes=size + more, machine=machine, num_ranks=num_ranks) >= all_to_all_time_s(
        size_bytes=size, machine=machine, num_ranks=num_ranks
    )


@given(name=NAMES, num_ranks=st.integers(1000, 100_000))
@MANY
def test_ring_all_reduce_tends_to_twice_the_bytes(name: str, num_ranks: int) -> None:
    path = silent(path_of(name, num_ranks))
    moved = all_reduce_time_s(size_bytes=1e9, path=path) * path.bytes_per_s
    assert moved == pytest.approx(2e9, rel=2e-3)
    assert moved < 2e9


@given(name=NAMES, num_ranks=RANKS, stride=st.integers(1, 16), size=SIZES)
@MANY
def test_every_further_algorithm_is_only_ever_a_help(name: str, num_ranks: int, stride: int, size: float) -> None:
    path = path_of(name, num_ranks, stride)
    ring_s = 2.0 * gather_time_s(size_bytes=size, path=path) - path.offset_s
    for library in LIBRARIES:
        time = all_reduce_time_s(size_bytes=size, path=replace(path, library=library))
        assert time <= ring_s * (1 + 1e-12)
        assert time > path.offset_s


JOBS = st.integers(1, 100_000)


@given(name=NAMES, num_ranks=RANKS, stride=st.integers(1, 16), job=JOBS, more=JOBS, size=SIZES)
@MANY
def test_larger_jobs_and_wider_groups_are_never_faster(
    name: str, num_ranks: int, stride: int, job: int, more: int, size: float
) -> None:
    machine = CONGESTED[name]

    def path(ranks: int, devices: int) -> Path:
        return group_path(machine, num_ranks=ranks, stride=stride, num_job_devices=max(devices, ranks * stride))

    small, large = path(num_ranks, job), path(num_ranks, job + more)
    assert large.slowdown >= small.slowdown >= 1.0
    assert large.tier >= small.tier
    for cost in (all_reduce_time_s, gather_time_s, send_time_s):
        assert cost(size_bytes=size, path=large) >= cost(size_bytes=size, path=small)
    wide = group_path(machine, num_ranks=num_ranks, stride=2 * stride, num_job_devices=job + 4 * num_ranks * stride)
    near = group_path(machine, num_ranks=num_ranks, stride=stride, num_job_devices=job + 4 * num_ranks * stride)
    assert wide.tier >= near.tier or wide.span == "rail"  # fewer members a node may put them on one rail
    assert gather_time_s(size_bytes=size, path=wide) >= gather_time_s(size_bytes=size, path=near) * (1 - 1e-12)


@given(name=NAMES, share=st.floats(0.0, 2.0))
@MANY
def test_other_jobs_only_ever_slow_down_and_a_larger_job_no_less(name: str, share: float) -> None:
    machine = CONGESTED[name]
    assert machine.network is not None
    nodes = max(2, round(share * machine.network.num_nodes))
    devices = nodes * machine.gpus_per_node
    shared, quiet, larger = (
        group_path(replace(machine, network=network), num_ranks=num, stride=1)
        for network, num in (
            (machine.network, devices),
            (replace(machine.network, is_shared=False), devices),
            (machine.network, devices + machine.gpus_per_node),
        )
    )
    assert 8.0 * quiet.slowdown >= shared.slowdown >= quiet.slowdown >= 1.0
    assert larger.slowdown >= shared.slowdown


@given(name=NAMES, num_ranks=RANKS, job=JOBS, more=JOBS, size=SIZES)
@MANY
def test_all_to_all_is_never_faster_in_a_larger_job(
    name: str, num_ranks: int, job: int, more: int, size: float
) -> None:
    first, second = (
        all_to_all_time_s(size_bytes=size, machine=CONGESTED[name], num_ranks=num_ranks, num_job_devices=devices)
        for devices in (job, job + more)
    )
    assert second >= first


@given(name=NAMES, num_ranks=st.integers(2, 64), job=st.integers(64, 100_000), size=SIZES)
@MANY
def test_inside_a_leaf_nothing_depends_on_the_rest_of_the_machine(
    name: str, num_ranks: int, job: int, size: float
) -> None:
    """Compact jobs only: a scattered job has no leaf of its own."""
    machine = CONGESTED[name]
    assert machine.network is not None
    compact = replace(machine, network=replace(machine.network, is_compact=True))
    path = group_path(compact, num_ranks=num_ranks, stride=1, num_job_devices=max(job, num_ranks))
    assert num_ranks <= machine.gpus_per_node * machine.network.num_leaf_nodes
    assert path.slowdown == 1.0
    quiet = group_path(compact, num_ranks=num_ranks, stride=1)
    assert all_reduce_time_s(size_bytes=size, path=path) == all_reduce_time_s(size_bytes=size, path=quiet)


@given(nodes=st.integers(1, 4096), more=st.integers(1, 4096))
@MANY
def test_more_nodes_wait_longer_for_the_slowest(nodes: int, more: int) -> None:
    """Same work on each device: only what all wait for grows."""
    shares = []
    for count in (nodes, nodes + more):
        time = cost_of(setting(machine="lumi", dp=8 * count, mbs=1, gbs=8 * count)).time
        shares.append(float(time.part("stragglers").total) / float(time.part("compute").total))
    assert 0 <= shares[0] <= shares[1]
