"""What must hold of every collective, whatever the group and the size."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from properties.cases import MACHINES
from scalewright.costs.collectives import (
    Path,
    all_reduce_time_s,
    all_to_all_time_s,
    gather_time_s,
    group_path,
    send_time_s,
)

MANY = settings(deadline=None, max_examples=100)
SIZES = st.floats(1.0, 1e11)
RANKS = st.integers(2, 512)
NAMES = st.sampled_from(sorted(MACHINES))


def path_of(name: str, num_ranks: int, stride: int = 1) -> Path:
    return group_path(MACHINES[name], num_ranks=num_ranks, stride=stride)


@given(name=NAMES, num_ranks=RANKS, stride=st.integers(1, 16), size=SIZES, more=SIZES)
@MANY
def test_gather_moves_half_of_what_an_all_reduce_moves(
    name: str, num_ranks: int, stride: int, size: float, more: float
) -> None:
    path = path_of(name, num_ranks, stride)
    quiet = replace(path, offset_s=0.0, ring_latency_s=0.0, tree_latency_s=0.0)
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
    path = replace(path_of(name, num_ranks), offset_s=0.0, ring_latency_s=0.0, tree_latency_s=0.0)
    moved = all_reduce_time_s(size_bytes=1e9, path=path) * path.bytes_per_s
    assert moved == pytest.approx(2e9, rel=2e-3)
    assert moved < 2e9


@given(name=NAMES, num_ranks=RANKS, stride=st.integers(1, 16))
@MANY
def test_tree_is_only_ever_a_help(name: str, num_ranks: int, stride: int) -> None:
    path = path_of(name, num_ranks, stride)
    ring_only = replace(path, tree_latency_s=path.ring_latency_s)
    assert all_reduce_time_s(size_bytes=1e6, path=path) <= all_reduce_time_s(size_bytes=1e6, path=ring_only)
