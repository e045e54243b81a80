"""Which tier of a fabric a group spans, what it costs there, and what other traffic takes; worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs.collectives import all_to_all_time_s, group_path
from scalewright.costs.machine import Machine, machine_from_system, with_network
from scalewright.costs.machine.network import (
    TIERS,
    Network,
    exit_frac,
    hops_latency_s,
    slowdown,
    tier_of,
)
from scalewright.errors import UnknownNameError

CATALOG = Catalog((packaged_data(),))
SEEN_FRAC = 0.1
FABRIC = Network(
    fabric="test",
    hop_latency_s=100e-9,
    num_hops=(1.0, 3.0, 5.0),
    num_leaf_nodes=16.0,
    num_group_nodes=128.0,
    num_nodes=1024.0,
    exit_frac=0.5,
    collisions=1.0,
    congestion=9.0,
    congestion_high=17.0,
    congestion_frac=SEEN_FRAC,
    congestion_basis="",
    is_shared=True,
    is_compact=True,
    is_rail_optimised=False,
    reduces=False,
)


def tier(network: Network, nodes: float, *, job: float | None = None, one_per_node: bool = False) -> str:
    tier_number = tier_of(network, num_span_nodes=nodes, num_job_nodes=job or nodes, one_per_node=one_per_node)
    return str(TIERS[tier_number])


@pytest.mark.parametrize(
    ("nodes", "name"), [(1, "node"), (2, "leaf"), (16, "leaf"), (17, "group"), (128, "group"), (129, "machine")]
)
def test_compact_group_spans_the_first_tier_that_holds_it(nodes: int, name: str) -> None:
    assert tier(FABRIC, nodes, job=1024) == name


def test_one_device_a_node_on_rails_stays_on_its_rail_within_a_leaf_set() -> None:
    rails = replace(FABRIC, is_rail_optimised=True)
    assert tier(rails, 16, one_per_node=True) == "rail"
    assert tier(rails, 16, one_per_node=False) == "leaf"
    assert tier(rails, 17, one_per_node=True) == "group"


def test_group_of_a_scattered_job_spans_what_its_job_spans() -> None:
    scattered = replace(FABRIC, is_compact=False)
    assert tier(scattered, 4, job=512) == "machine"
    assert tier(scattered, 4, job=100) == "group"
    assert tier(scattered, 1, job=512) == "node"


def test_one_switch_has_no_tier_beyond_its_leaf() -> None:
    switch = replace(FABRIC, num_leaf_nodes=math.inf, num_group_nodes=math.inf)
    assert tier(switch, 1000) == "leaf"


def test_every_switch_on_the_way_adds_its_latency() -> None:
    latencies_s = hops_latency_s(FABRIC, np.arange(5))
    assert latencies_s == pytest.approx([0.0, 100e-9, 100e-9, 300e-9, 500e-9])


@pytest.mark.parametrize(
    ("share", "factor"),
    [(0.0, 1.0), (0.05, 1.0 + 8.0 * 0.125), (0.1, 9.0), (0.55, 9.0), (1.0, 9.0), (2.0, 9.0)],
)
def test_other_jobs_slow_down_a_job_by_its_share_of_the_machine(share: float, factor: float) -> None:
    """Nothing for a small job, all of it from the share on where it was seen: efficiency never rises with nodes."""
    nodes = share * 1024
    slowdowns = slowdown(FABRIC, tier=np.array([0, 1, 2, 3, 4]), num_job_nodes=nodes)
    assert slowdowns == pytest.approx([1.0, 1.0, 1.0, factor, factor])


def test_quiet_network_has_no_other_jobs() -> None:
    quiet = replace(FABRIC, is_shared=False)
    assert slowdown(quiet, tier=np.array([4]), num_job_nodes=102.4) == 1.0


@pytest.mark.parametrize("is_shared", [True, False])
def test_own_flows_collide_beyond_a_leaf_whatever_the_share(is_shared: bool) -> None:
    hashed = replace(FABRIC, collisions=1.4, congestion=1.0, is_shared=is_shared)
    slowdowns = slowdown(hashed, tier=np.array([2, 3]), num_job_nodes=1.0)
    assert slowdowns == pytest.approx([1.0, 1.4])


def test_figure_of_a_machine_replaces_the_general_one_of_its_fabric() -> None:
    """LUMI has one of its own, seen on 512 of 2,978 nodes; Frontier has the same fabric and none."""
    lumi, frontier = (machine_from_system(CATALOG, name).network for name in ("lumi", "frontier"))
    assert lumi is not None
    assert frontier is not None
    assert lumi.fabric == frontier.fabric
    assert lumi.congestion > 5 * frontier.congestion
    assert slowdown(lumi, tier=np.array(4), num_job_nodes=512) == pytest.approx(lumi.congestion)
    usual = machine_from_system(CATALOG, "frontier").constants.congestion_share.value
    assert slowdown(frontier, tier=np.array(4), num_job_nodes=usual * frontier.num_nodes) == pytest.approx(
        frontier.congestion
    )


def test_network_is_as_the_systems_entry_says_unless_it_is_given() -> None:
    own, production = (machine_from_system(CATALOG, name) for name in ("generic-a100", "leonardo"))
    assert [is_shared(machine) for machine in (own, production)] == [False, True]
    assert is_shared(with_network(own, "shared"))
    assert not is_shared(with_network(production, "quiet"))
    assert with_network(production, None) is production
    with pytest.raises(UnknownNameError, match="choose quiet or shared"):
        with_network(own, "busy")


def is_shared(machine: Machine) -> bool:
    assert machine.network is not None
    return machine.network.is_shared


def test_what_leaves_a_group() -> None:
    """Frontier: four 25 GB/s links to each of 73 groups over 128 nodes x 100 GB/s are 0.57."""
    frontier = machine_from_system(CATALOG, "frontier").network
    assert frontier is not None
    assert frontier.exit_frac == pytest.approx(73 * 4 * 25 / (128 * 100), abs=0.02)
    assert exit_frac(topology="fat-tree", bisection_frac=0.67) == 0.67
    assert exit_frac(topology="dragonfly", bisection_frac=0.8) == 1.0


@pytest.mark.parametrize(
    ("system", "ranks", "stride", "devices", "span"),
    [
        ("frontier", 8, 1, 8, "node"),
        ("frontier", 16, 8, 128, "leaf"),
        ("frontier", 16, 8, 1024, "group"),
        ("frontier", 16, 8, 2048, "machine"),
        ("selene", 16, 8, 3072, "rail"),
        ("selene", 384, 8, 3072, "machine"),
        ("deucalion", 8, 1, 8, "leaf"),
        ("deucalion", 16, 1, 16, "group"),
        ("pinnacles", 8, 1, 8, "leaf"),
    ],
)
def test_groups_on_real_machines(system: str, ranks: int, stride: int, devices: int, span: str) -> None:
    path = group_path(machine_from_system(CATALOG, system), num_ranks=ranks, stride=stride, num_job_devices=devices)
    assert path.span == span


def test_all_to_all_pays_each_tier_its_own_rate() -> None:
    machine = replace(machine_from_system(CATALOG, "frontier"), network=FABRIC, network_bytes_per_s_per_gpu=10e9)
    start = machine.constants.collective_offset.value
    ranks = 8 * 256  # 16 nodes of the leaf, 128 of the group, 256 in all
    slow = 9.0
    expected = 7 / machine.scale_up_bytes_per_s + (128 - 8) / 10e9 + (1024 - 128) * slow / 10e9 + 1024 * slow / 5e9
    time = all_to_all_time_s(size_bytes=1e9, machine=machine, num_ranks=ranks)
    assert time == pytest.approx(start + 1e9 / ranks * expected)
    scattered = replace(machine, network=replace(FABRIC, is_compact=False))
    assert all_to_all_time_s(size_bytes=1e9, machine=scattered, num_ranks=ranks) > time
