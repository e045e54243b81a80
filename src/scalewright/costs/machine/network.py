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
    congestion: float
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


def congestion_of_machine(*, congestion: float, num_nodes: float, num_half_nodes: float) -> float:
    """Slowdown that a whole machine's bulk exchange sees, by how many nodes share its fabric.

    Equation  c_m = 1 + (c - 1) m / (m + m0),  m nodes
    Source    epicure2026: the tenfold losses behind c were seen on machines of 1,120 and 2,978 nodes, none on 72
    Assumes   a small machine has few other jobs and short paths, so that fewer flows meet
    Checked   tests/costs/test_network.py: next to nothing on 17 nodes, nearly all of c on 3,000
    """
    return 1.0 + (congestion - 1.0) * num_nodes / (num_nodes + num_half_nodes)


def slowdown(network: Network, *, tier: Tier, num_job_nodes: FloatLike, half_frac: float) -> FloatLike:
    """How much slower bulk exchange is than on a quiet network, by tier and by the job's share of the machine.

    Equation  beyond a leaf: k (1 + (c - 1) x^3 / (x^3 + x0^3)),  x = job's nodes / machine's; else 1
    Source    desensi2024 (arXiv:2408.14090) for noise by other jobs; epicure2026 for its growth with the part of the
              machine in use
    Assumes   one curve for all fabrics, each with its own k (flows that collide) and c (at the whole machine); all
              nodes of the job exchange at once, as gradients do; single messages between neighbours are spared
    Checked   tests/properties/test_collectives.py: never less for more nodes or a wider tier;
              tests/golden/test_scaling_efficiency.py: the figures of EPICURE and Frontier
    """
    if network.collisions == network.congestion == 1.0:
        return 1.0
    x = np.asarray(num_job_nodes, dtype=np.float64) / network.num_nodes
    cube = x * x * x
    grown = 1.0 + (network.congestion - 1.0) * cube / (cube + half_frac**3)
    return np.where(np.asarray(tier) > LEAF, network.collisions * grown, 1.0)[()]
