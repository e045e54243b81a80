"""Which links a group of ranks crosses, and how much of them it has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from properties.cases import MACHINES
from scalewright.costs.collectives import all_to_all_time_s, group_path
from scalewright.errors import NotExpressedError

# Eight devices a node; round numbers so that every expectation can be worked out by hand.
MACHINE = replace(
    MACHINES["selene"],
    gpus_per_node=8,
    scale_up_bytes_per_s=200e9,
    scale_up_latency_s=2e-6,
    network_bytes_per_s_per_gpu=20e9,
    network_latency_s=10e-6,
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
