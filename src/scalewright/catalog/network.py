"""Networks in the catalogue: links, transports, fabrics, and how nodes sit in them."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field, model_validator

from scalewright.catalog.entry import Entry, require_positive
from scalewright.catalog.facts import BytesPerS, Count, Fact, Fraction, Id, Seconds, Strict, TransfersPerS

NetworkUse = Literal["quiet", "shared"]
"""Whether other jobs exchange over the same fabric."""
NETWORKS: tuple[NetworkUse, ...] = get_args(NetworkUse)
Topology = Literal["fat-tree", "dragonfly", "dragonfly-plus", "torus-3d", "switch"]


class Signalling(Strict):
    """How a serial link makes its rate: transfers x bits x encoding x lanes."""

    rate_per_lane: TransfersPerS
    bits_per_transfer: Count
    """1 for NRZ, 2 for PAM4 when the rate counts symbols."""
    payload_bits: int
    line_bits: int
    num_lanes: Count


class Link(Entry):
    """A wire: one port or one bonded link, one direction."""

    family: Literal[
        "pcie",
        "nvlink",
        "nvlink-c2c",
        "infinity-fabric",
        "infiniband",
        "slingshot",
        "omni-path",
        "ethernet",
        "ici",
        "cpu-socket",
    ]
    span: Literal["node", "network"]
    signalling: Signalling | None = None
    bandwidth: BytesPerS | None = None
    """One direction, one link. Absent where it is computed from `signalling`."""
    latency: Seconds | None = None

    @model_validator(mode="after")
    def _one_rate(self) -> Link:
        if (self.signalling is None) == (self.bandwidth is None):
            raise ValueError("give either bandwidth or [signalling], not both and not neither")
        require_positive("bandwidth", self.bandwidth)
        return self


class Transport(Entry):
    """How bytes cross the network: what software path, and how much of the wire it reaches."""

    families: tuple[str, ...]
    """Link families it runs on."""
    achievable: Fraction
    """Share of the line rate that large collectives reach."""
    latency: Seconds
    """Added to each network hop of a collective step."""
    library: str
    """NCCL, RCCL, Gloo plug-in or setting that selects it."""


class Fabric(Entry):
    """A network: its link, its topology and what it keeps at the middle."""

    topology: Topology
    link: Id
    transports: tuple[Id, ...] = Field(min_length=1)
    """Best first."""
    bisection_share: Fraction
    """Bisection bandwidth over injection bandwidth: 1 for a full fat tree, less when tapered."""
    hop_latency: Seconds
    max_hops: Count
    """Switches between the two nodes that are furthest apart."""
    nodes_per_leaf: Count | None = None
    """Nodes that reach each other through one switch per adapter; absent: all of them, under one switch."""
    rail_optimised: bool = False
    """Adapter i of every node hangs on leaf i, so that devices of one index meet one switch further down."""
    collisions: Count
    """Slowdown of exchange beyond a leaf from flows that share a link by chance: 1 with adaptive routing."""
    congestion: Count
    """Slowdown of exchange beyond a leaf by other jobs, for a job of middling share of a shared machine: 1 for none."""
    congestion_high: Count
    """The same on a bad day: the upper end of a prediction's interval uses it."""

    @model_validator(mode="after")
    def _slowdowns_slow_down(self) -> Fabric:
        require_positive("nodes_per_leaf", self.nodes_per_leaf, whole=True)
        slowdowns = {
            "collisions": self.collisions,
            "congestion": self.congestion,
            "congestion_high": self.congestion_high,
        }
        for name, fact in slowdowns.items():
            require_slowdown(name, fact)
        if self.congestion_high.value < self.congestion.value:
            raise ValueError(
                f"congestion_high is {self.congestion_high.text}, below congestion, {self.congestion.text}: give the "
                "larger one"
            )
        return self


class NodeNetwork(Strict):
    """How nodes of one kind sit in a fabric, and where their part of it differs from the fabric's entry."""

    fabric: Id | None = None
    """Absent for a single machine."""
    nics_per_node: Count | None = None
    nic_link: Id | None = None
    """Where the NIC differs from the fabric's own link."""
    nodes_per_leaf: Count | None = None
    """Where it differs from the fabric's."""
    nodes_per_group: Count | None = None
    """Nodes of one Dragonfly group, island or pod; absent: all."""
    bisection_share: Fraction | None = None
    """Where it differs from the fabric's."""
    collisions: Count | None = None
    """Where it differs from the fabric's: what runs on these nodes lost to their own traffic."""
    congestion: Count | None = None
    """Slowdown by other jobs that runs on these nodes showed, in place of the fabric's general value."""
    congestion_nodes: Count | None = None
    """Nodes of the job that saw this `congestion`."""
    congestion_high: Count | None = None
    """Where these nodes' bad days are known to differ from the fabric's."""
    placement: Literal["compact", "scattered"] = "scattered"
    """compact: consecutive nodes of a job fill leaves and groups in turn; scattered: what the scheduler finds free."""
    in_network_reduction: bool = False
    """The switches sum (SHARP) for every job that asks its library to."""
    in_switch_reduction: BytesPerS | None = None
    """Data summed per second over all devices of a node by the switch between them (NVLS): size over time."""

    @model_validator(mode="after")
    def _network_makes_sense(self) -> NodeNetwork:
        require_positive("nics_per_node", self.nics_per_node)
        require_positive("nodes_per_leaf", self.nodes_per_leaf, whole=True)
        require_positive("nodes_per_group", self.nodes_per_group, whole=True)
        require_slowdown("collisions", self.collisions)
        require_slowdown("congestion", self.congestion)
        require_slowdown("congestion_high", self.congestion_high)
        require_positive("congestion_nodes", self.congestion_nodes, whole=True)
        if (self.congestion is None) != (self.congestion_nodes is None):
            raise ValueError("give congestion and congestion_nodes (of the job that saw it) together, or neither")
        return self


def require_slowdown(name: str, fact: Fact | None) -> None:
    if fact is not None and fact.value < 1:
        raise ValueError(f"{name} is {fact.text}: a slowdown is 1 or more")
