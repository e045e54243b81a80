"""Network: which tier of a fabric a group of ranks spans, what it may carry there, and what other traffic takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalewright.costs.breakdown import FloatLike

Tier = NDArray[Any]
"""Numbers of tiers, one or a column."""
TIERS = np.array(["node", "rail", "leaf", "group", "machine"])
"""How far apart members of a group are, nearest first; a tier's number is its place here."""
NODE, RAIL, LEAF, GROUP, WHOLE = range(5)
HOPS_IN_GROUP = {"fat-tree": 3, "dragonfly": 2, "dragonfly-plus": 3, "torus-3d": 3, "switch": 1}
"""Switches between two nodes of a group: leaf, spine, leaf; two neighbours in a Dragonfly group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A fabric as one partition's nodes see it. Unbounded where there is no further tier."""

    fabric: str
    hop_latency_s: float
    num_hops: tuple[float, float, float]
    """Switches passed inside a leaf, inside a group, across the machine."""
    num_leaf_nodes: float
    num_group_nodes: float
    num_nodes: float
    exit_frac: float
    """Share of injection that may leave a group."""
    collisions: float
    """Slowdown of exchange beyond a leaf by the job's own flows."""
    congestion: float
    """Slowdown by other jobs for a job that has `congestion_frac` of the nodes."""
    congestion_high: float
    """The same on a bad day: the upper end of what was published."""
    congestion_frac: float
    congestion_basis: str
    """Where the slowdown by other jobs is known from, in a few words."""
    is_shared: bool
    """Whether other jobs run on the nodes that this job leaves free."""
    is_compact: bool
    """Consecutive nodes of a job are neighbours."""
    is_rail_optimised: bool
    reduces: bool
    """Switches sum on the way."""


def exit_frac(*, topology: str, bisection_frac: float) -> float:
    """Share of injection bandwidth that leaves a group when every node sends to nodes of other groups.

    Equation  fat tree: the bisection share s; all groups joined to all (Dragonfly): min(1, 2 s)
    Source    dally2004 (Principles and Practices of Interconnection Networks), section 3.3
    Assumes   destinations spread evenly: half of what leaves a Dragonfly group crosses the middle, and in a tree the
              taper is on the way out of a group
    Checked   tests/costs/test_network.py: Frontier 0.58, where four links to each of 73 groups give 0.57
    """
    if topology in ("dragonfly", "dragonfly-plus"):
        return min(1.0, 2.0 * bisection_frac)
    return bisection_frac


def tier_of(
    network: Network, *, num_span_nodes: FloatLike, num_job_nodes: FloatLike, one_per_node: Tier | bool
) -> Tier:
    """The widest tier between members of a group that covers `num_span_nodes` consecutive nodes of its job.

    Equation  node, leaf (rail where each node has one member and adapters are on rails), group, machine: the first
              that holds x nodes; x is the group's span where jobs are compact, else its whole job's
    Source    kim2008 (Technology-Driven, Highly-Scalable Dragonfly Topology) for groups; a leaf is one switch
    Assumes   a scattered job's neighbours may sit anywhere in it, so any group beyond a node spans what its job spans
    Checked   tests/costs/test_network.py: hand-counted groups; never narrower for more nodes
    """
    span = np.asarray(num_span_nodes, dtype=np.float64)
    reach = span if network.is_compact else np.maximum(span, num_job_nodes)
    tier = LEAF + (reach > network.num_leaf_nodes) + (reach > network.num_group_nodes)
    if network.is_rail_optimised:
        tier = tier - ((tier == LEAF) & np.asarray(one_per_node, dtype=bool))
    return np.where(span > 1, tier, NODE)


def hops_latency_s(network: Network, tier: Tier) -> FloatLike:
    """Time in switches on the way between two members that are `tier` apart."""
    leaf, group, whole = network.num_hops
    return (np.array([0.0, leaf, leaf, group, whole]) * network.hop_latency_s)[tier]


def tier_frac(network: Network, tier: Tier) -> FloatLike:
    """Share of injection bandwidth that a tier carries for everybody at once."""
    return 1.0 if network.exit_frac == 1.0 else np.array([1.0, 1.0, 1.0, 1.0, network.exit_frac])[tier]


def other_jobs_frac(network: Network, num_job_nodes: FloatLike) -> FloatLike:
    """How much of a network's `congestion` a job sees, by its share of the machine.

    Equation  g = min(x / x0, 1)^3;  x = job's nodes / machine's, x0 the share of the job whose slowdown is known
    Source    epicure2026: jobs on 1 to 4 % of LUMI and MareNostrum 5 lose nothing, jobs on 11 and 17 % do; section 5:
              efficiency falls with nodes on all systems, and ever faster
    Assumes   small jobs find a quiet corner; what was not measured is not extrapolated: no job sees more than the one
              that was measured. A larger job leaves fewer nodes to others, but its own flows take their place on the
              links that all share, so it sees no less either
    Checked   tests/costs/test_network.py: nothing on one node, all of it from x0 on, never less for more nodes
    """
    x = np.minimum(np.asarray(num_job_nodes, dtype=np.float64) / network.num_nodes, 1.0)
    grown = np.minimum(x / network.congestion_frac, 1.0)
    return (grown * grown * grown)[()]


def slowdown(network: Network, *, tier: Tier, num_job_nodes: FloatLike) -> FloatLike:
    """How much slower bulk exchange is than on an empty network, by tier and by the job's share of the machine.

    Equation  beyond a leaf: k (1 + (c - 1) g),  g by other_jobs_frac; c = 1 on a quiet network; inside a leaf: 1
    Source    desensi2024 (arXiv:2408.14090) for noise by other jobs; epicure2026 for its growth with the part of the
              machine in use
    Assumes   one curve for all machines, each with its own k (own flows that collide) and c (other jobs); all nodes of
              the job exchange at once, as gradients do; single messages between neighbours are spared
    Checked   tests/properties/test_collectives.py: never below 1, never less for more nodes, none by others on a quiet
              network; tests/golden/test_scaling_efficiency.py: the figures of EPICURE and Frontier
    """
    congestion = network.congestion if network.is_shared else 1.0
    if network.collisions == congestion == 1.0:
        return 1.0
    others = 1.0 + (congestion - 1.0) * other_jobs_frac(network, num_job_nodes)
    return np.where(np.asarray(tier) > LEAF, network.collisions * others, 1.0)[()]
