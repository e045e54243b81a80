"""Which links a group of ranks crosses, and how much of them it has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from properties.cases import MACHINES
from scalewright.costs.breakdown import Words
from scalewright.costs.collectives import (
    LIBRARIES,
    all_reduce_algorithm,
    all_reduce_time_s,
    all_to_all_time_s,
    distinct_frac,
    group_path,
)
from scalewright.costs.machine import Machine
from scalewright.errors import NotExpressedError

# Eight devices a node; round numbers so that every expectation can be worked out by hand.
MACHINE = replace(
    MACHINES["selene"],
    gpus_per_node=8,
    scale_up_bytes_per_s=200e9,
    scale_up_latency_s=2e-6,
    network_bytes_per_s_per_gpu=20e9,
    network_latency_s=10e-6,
    network=None,
)
FACTOR = MACHINE.constants.latency_factor.value


def test_tensor_parallel_inside_a_node_has_the_scale_up_link() -> None:
    for num_ranks in (2, 4, 8):
        path = group_path(MACHINE, num_ranks=num_ranks, stride=1)
        assert path.bytes_per_s == 200e9
        assert path.spans_nodes == 0
        assert path.ring_latency_s == pytest.approx((num_ranks - 1) * 2e-6 * FACTOR)


def test_tensor_parallel_across_nodes_has_all_of_a_nodes_network() -> None:
    path = group_path(MACHINE, num_ranks=16, stride=1)
    assert path.spans_nodes == 1
    assert path.bytes_per_s == 8 * 20e9
    # 14 steps inside nodes and 2 between them; a tree goes up one level between nodes and through one node.
    assert path.ring_latency_s == pytest.approx((14 * 2e-6 + 2 * 10e-6) * FACTOR)
    assert path.tree_latency_s == pytest.approx((1 * 10e-6 + 7 * 2e-6) * FACTOR)


def test_a_network_faster_than_the_scale_up_link_does_not_lift_it() -> None:
    fast = replace(MACHINE, network_bytes_per_s_per_gpu=100e9)
    assert group_path(fast, num_ranks=16, stride=1).bytes_per_s == 200e9


@pytest.mark.parametrize(("tp", "members_a_node"), [(1, 8), (2, 4), (4, 2), (8, 1), (16, 1)])
def test_data_parallel_across_nodes_has_a_share_for_each_member_in_a_node(tp: int, members_a_node: int) -> None:
    path = group_path(MACHINE, num_ranks=64, stride=tp)
    assert path.spans_nodes == 1
    assert path.bytes_per_s == members_a_node * 20e9


@pytest.mark.parametrize(("tp", "dp"), [(1, 8), (2, 4), (4, 2)])
def test_data_parallel_inside_a_node_has_the_scale_up_link(tp: int, dp: int) -> None:
    path = group_path(MACHINE, num_ranks=dp, stride=tp)
    assert path.spans_nodes == 0
    assert path.bytes_per_s == 200e9


def test_columns_of_groups_give_what_each_gives_alone() -> None:
    ranks, strides = np.array([1, 8, 16, 64, 4]), np.array([1, 1, 1, 4, 8])
    together = group_path(MACHINE, num_ranks=ranks, stride=strides)
    for index, (num_ranks, stride) in enumerate(zip(ranks, strides, strict=True)):
        alone = group_path(MACHINE, num_ranks=int(num_ranks), stride=int(stride))
        for name in ("bytes_per_s", "ring_latency_s", "tree_latency_s", "hop_latency_s", "spans_nodes", "is_real"):
            assert getattr(together, name)[index] == getattr(alone, name), name


def test_machine_without_a_network_refuses_what_leaves_the_node() -> None:
    alone = replace(MACHINE, network_bytes_per_s_per_gpu=None)
    assert group_path(alone, num_ranks=8, stride=1).bytes_per_s == 200e9
    with pytest.raises(NotExpressedError, match="no network"):
        group_path(alone, num_ranks=16, stride=1)
    with pytest.raises(NotExpressedError, match="experts"):
        all_to_all_time_s(size_bytes=1e6, machine=alone, num_ranks=16)


def test_all_to_all_sends_each_part_over_its_own_link() -> None:
    time = all_to_all_time_s(size_bytes=16e9, machine=MACHINE, num_ranks=16)
    start = MACHINE.constants.collective_offset.value
    assert time == pytest.approx(start + 7e9 / 200e9 + 8e9 / 20e9)


def start_s(machine: Machine) -> float:
    return machine.constants.collective_offset.value


def test_small_sums_go_up_a_tree_and_the_library_says_so() -> None:
    path = group_path(MACHINE, num_ranks=64, stride=8)
    names = [all_reduce_algorithm(size_bytes=size, path=path) for size in (8.0, 1e9)]
    assert names == ["tree", "tree"]  # same wire time as a ring, six steps instead of 64
    assert all_reduce_algorithm(size_bytes=8.0, path=group_path(MACHINE, num_ranks=8, stride=1)) == "ring"
    assert all_reduce_algorithm(size_bytes=8.0, path=group_path(MACHINE, num_ranks=1, stride=1)) == "none"


def test_switch_of_a_node_sums_for_all_of_its_devices_only() -> None:
    summing = replace(MACHINE, in_switch_bytes_per_s=275e9)
    whole, half = (group_path(summing, num_ranks=n, stride=1) for n in (8, 4))
    assert all_reduce_algorithm(size_bytes=1e9, path=whole) == "in-switch"
    assert all_reduce_time_s(size_bytes=1e9, path=whole) == pytest.approx(
        start_s(summing) + 1e9 / 275e9 + 2 * 2e-6 * FACTOR
    )
    assert all_reduce_algorithm(size_bytes=1e9, path=half) == "ring"
    assert all_reduce_algorithm(size_bytes=1e9, path=whole, in_pieces=True) == "ring"
    assert all_reduce_algorithm(size_bytes=1e9, path=replace(whole, library="rccl")) == "ring"


def test_switches_between_nodes_halve_what_crosses_the_network() -> None:
    summing = replace(MACHINES["selene"], scale_up_bytes_per_s=200e9, network_bytes_per_s_per_gpu=20e9)
    path = group_path(summing, num_ranks=64, stride=8)  # one device a node
    plain = replace(path, reduces=False)
    assert all_reduce_algorithm(size_bytes=1e9, path=path) == "in-network"
    ratio = all_reduce_time_s(size_bytes=1e9, path=plain) / all_reduce_time_s(size_bytes=1e9, path=path)
    assert ratio == pytest.approx(2.0 * 63 / 64, rel=0.01)


def test_gloo_works_node_by_node_where_steps_are_dear() -> None:
    """8 nodes of 8: 2 x 7/8 S / 200 GB/s inside, 2 x 7/8 S / (8 x 20 GB/s) between, and 2 x (3 + 7) steps."""
    cpu = replace(MACHINE, library="gloo")
    path = group_path(cpu, num_ranks=64, stride=1)
    assert all_reduce_algorithm(size_bytes=8.0, path=path) == "hierarchical"
    assert all_reduce_algorithm(size_bytes=1e10, path=path) == "ring"
    steps = 2 * (3 * 10e-6 + 7 * 2e-6) * FACTOR
    expected = start_s(cpu) + 2 * 7 / 8 * 1e6 / 200e9 + 2 * 7 / 8 * 1e6 / 160e9 + steps
    assert all_reduce_time_s(size_bytes=1e6, path=path) == pytest.approx(expected)


def test_algorithms_of_a_column_are_those_of_each() -> None:
    ranks, sizes = np.array([1, 8, 64, 64]), np.array([1e6, 1e6, 8.0, 1e10])
    for library in LIBRARIES:
        machine = replace(MACHINE, library=library)
        together = all_reduce_algorithm(size_bytes=sizes, path=group_path(machine, num_ranks=ranks, stride=1))
        assert isinstance(together, Words)
        for index, (num_ranks, size) in enumerate(zip(ranks, sizes, strict=True)):
            alone = group_path(machine, num_ranks=int(num_ranks), stride=1)
            assert together.at(index) == all_reduce_algorithm(size_bytes=float(size), path=alone)


def test_distinct_places_among_draws() -> None:
    assert distinct_frac(num_places=8, num_draws=1) == pytest.approx(1.0)
    assert distinct_frac(num_places=1, num_draws=8) == pytest.approx(1 / 8)
    assert distinct_frac(num_places=8, num_draws=8) == pytest.approx(0.656, abs=1e-3)
    assert np.all(np.diff(distinct_frac(num_places=np.array([1, 2, 8, 64]), num_draws=8)) > 0)


def test_a_token_that_is_sent_once_to_a_node_leaves_less_for_the_network_only() -> None:
    for ranks, is_less in ((8, False), (64, True)):
        whole, once = (
            all_to_all_time_s(size_bytes=1e9, machine=MACHINE, num_ranks=ranks, sent_frac=frac) for frac in (1.0, 0.5)
        )
        assert (once < whole) == is_less
