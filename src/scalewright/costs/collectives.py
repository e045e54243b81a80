"""Collectives by alpha-beta: which links a group crosses, and the fastest algorithm its library has for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scalewright.costs.breakdown import FloatLike, Words
from scalewright.costs.machine import Machine
from scalewright.costs.machine.collective_lines import MeasuredLine, measured_time_s
from scalewright.costs.machine.network import (
    GROUP,
    LEAF,
    TIERS,
    WHOLE,
    Tier,
    hops_latency_s,
    slowdown,
    tier_frac,
    tier_of,
)
from scalewright.errors import NotExpressedError

LIBRARIES: dict[str, tuple[str, ...]] = {
    "nccl": ("ring", "tree", "in-switch", "in-network"),
    "rccl": ("ring", "tree"),
    "gloo": ("ring", "hierarchical"),
}
"""Algorithms for a sum, by library; each takes the fastest. NCCL's and RCCL's tree is a chain inside a node and a
double binary tree between nodes; Gloo's cube of cubes works node by node."""
HALF_SUM = "half of a sum"
IN_PIECES = ("ring", "tree")
"""What remains of them where a sum is split into a reduce-scatter and an all-gather, for which switches do not sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """What a group of ranks has between its members."""

    num_ranks: FloatLike
    num_here: FloatLike
    """Members that share a node."""
    num_nodes: FloatLike
    """Nodes with members."""
    spans_nodes: FloatLike
    """1 where the group leaves a node, else 0."""
    tier: Tier
    """How far apart they are: a place in `network.TIERS`."""
    inside_bytes_per_s: float
    quiet_bytes_per_s: FloatLike
    """Between nodes, per member, without other traffic."""
    slowdown: FloatLike
    """Of bulk exchange between nodes, by collisions and congestion."""
    offset_s: float
    """To start one collective."""
    inside_latency_s: float
    between_latency_s: FloatLike
    library: str
    reduces: bool
    """Switches between nodes sum."""
    in_switch_bytes_per_s: float
    """Data summed per second by the switch between all devices of a node; 0 where there is none that sums."""
    num_in_switch: float
    """Devices of a node."""
    measured: tuple[MeasuredLine, ...] = ()
    """Where collectives were timed on this machine, what that gave."""

    @property
    def is_real(self) -> FloatLike:
        """1 where there is anybody to talk to."""
        return np.asarray(np.asarray(self.num_ranks) > 1, dtype=np.float64)[()]

    @property
    def span(self) -> str | Words:
        """The tier's name, for people."""
        return str(TIERS[self.tier]) if np.ndim(self.tier) == 0 else Words(TIERS, self.tier)

    @property
    def network_bytes_per_s(self) -> FloatLike:
        """Between nodes, per member, in bulk."""
        return self.quiet_bytes_per_s / self.slowdown

    @property
    def bytes_per_s(self) -> FloatLike:
        """Of a ring through all of them, in bulk, while all other groups do the same."""
        across = np.minimum(self.inside_bytes_per_s, self.num_here * self.network_bytes_per_s)
        return np.where(np.asarray(self.spans_nodes) > 0, across, self.inside_bytes_per_s)[()]

    @property
    def message_bytes_per_s(self) -> FloatLike:
        """Of single messages between neighbours, which congestion spares."""
        across = np.minimum(self.inside_bytes_per_s, self.num_here * self.quiet_bytes_per_s)
        return np.where(np.asarray(self.spans_nodes) > 0, across, self.inside_bytes_per_s)[()]

    @property
    def ring_latency_s(self) -> FloatLike:
        """Once around the ring; inside one node the last step back is not waited for."""
        between = self.num_nodes * self.between_latency_s * self.spans_nodes
        return (self.num_ranks - self.num_nodes) * self.inside_latency_s + between

    @property
    def tree_latency_s(self) -> FloatLike:
        """Once up a tree: across nodes by halves, inside a node in turn."""
        up = np.ceil(np.log2(self.num_nodes)) * self.between_latency_s
        return up + (self.num_here - 1.0) * self.inside_latency_s

    @property
    def hop_latency_s(self) -> FloatLike:
        """Between two neighbours."""
        return np.where(np.asarray(self.spans_nodes) > 0, self.between_latency_s, self.inside_latency_s)[()]


def group_path(
    machine: Machine, *, num_ranks: FloatLike, stride: FloatLike, num_job_devices: FloatLike | None = None
) -> Path:
    """Bandwidth and latency inside a group whose members are `stride` devices apart.

    Equation  inside a node: the scale-up link; across nodes: min(scale-up, q x network per device x tier / slowdown),
              q members a node
    Source    nccl2019 (Massively Scale Your Deep Learning Training with NCCL 2.4), rings over all NICs of a node
    Assumes   devices numbered tensor first, then context, data, pipeline; all groups of a node are busy at once and
              share its NICs equally; latencies of a running job are a constant times those of a quiet link; without
              `num_job_devices` the group is the job
    Checked   tests/costs/test_collectives.py: tensor parallel inside and across nodes, data parallel of both kinds
    """
    n = np.asarray(num_ranks, dtype=np.float64)
    here = np.clip(machine.gpus_per_node // np.asarray(stride), 1, n)
    spans = here < n
    rate = machine.network_bytes_per_s_per_gpu
    if rate is None and np.any(spans):
        raise NotExpressedError(f"{machine.name} has no network, but the layout needs more than one node")
    quiet: FloatLike = 0.0 if rate is None else rate
    slow: FloatLike = 1.0
    between: FloatLike = machine.network_latency_s
    tier = WHOLE * spans
    if machine.network is not None:
        network, per_node = machine.network, float(machine.gpus_per_node)
        extent = np.ceil(((n - 1.0) * stride + 1.0) / per_node)
        job = extent if num_job_devices is None else np.ceil(num_job_devices / per_node)
        reach = np.where(spans, np.maximum(extent, 2.0), 1.0)
        tier = tier_of(network, num_span_nodes=reach, num_job_nodes=job, one_per_node=here == 1)
        slow = slowdown(network, tier=tier, num_job_nodes=job)
        quiet = quiet * tier_frac(network, tier)
        between = between + hops_latency_s(network, tier)
    factor, switch = machine.constants.latency_factor.value, machine.in_switch_bytes_per_s
    return Path(
        num_ranks=n[()],
        num_here=here[()],
        num_nodes=np.ceil(n / here)[()],
        spans_nodes=np.asarray(spans, dtype=np.float64)[()],
        tier=tier,
        inside_bytes_per_s=machine.scale_up_bytes_per_s,
        quiet_bytes_per_s=quiet,
        slowdown=slow,
        offset_s=machine.constants.collective_offset.value,
        inside_latency_s=machine.scale_up_latency_s * factor,
        between_latency_s=between * factor,
        library=machine.library,
        reduces=machine.network is not None and machine.network.reduces,
        in_switch_bytes_per_s=0.0 if switch is None else switch,
        num_in_switch=float(machine.gpus_per_node),
        measured=machine.measured_collectives,
    )


def _measured_s(path: Path, op: str, size_bytes: FloatLike, *, num_calls: FloatLike = 1.0) -> FloatLike:
    """What was measured of an operation in this group; NaN where nothing was."""
    once = measured_time_s(
        path.measured, op=op, size_bytes=size_bytes / num_calls, num_ranks=path.num_ranks, num_nodes=path.num_nodes
    )
    return num_calls * once


def _measured_or(measured_s: FloatLike, time_s: FloatLike) -> FloatLike:
    return np.where(np.isnan(measured_s), time_s, measured_s)[()]


def _measured_sum_s(size_bytes: FloatLike, path: Path, *, in_pieces: bool) -> FloatLike:
    whole = _measured_s(path, "all-reduce", size_bytes)
    if not in_pieces:
        return whole
    pieces = _measured_s(path, "reduce-scatter", size_bytes) + _measured_s(path, "all-gather", size_bytes)
    return _measured_or(pieces, whole)


def all_reduce_time_s(*, size_bytes: FloatLike, path: Path, in_pieces: bool = False) -> FloatLike:
    """Sum on every rank, by the fastest algorithm the library has; `in_pieces` as reduce-scatter and all-gather.

    Equation  ring, tree     t = a0 + 2 (n-1)/n S/B + 2 latency of the ring, of the tree
              hierarchical   t = a0 + 2 (q-1)/q S/B_in + 2 (m-1)/m S/(q B_net) + 2 tree latency
              in-switch      t = a0 + S/A + 2 latency,  A what the node's switch sums
              in-network     t = a0 + max(2 (q-1)/q S/B_in, S/(q B_net)) + 2 latency of the node and of one hop
    Source    thakur2005 (Optimization of Collective Communication Operations in MPICH), section 4.5; nccl2019 for
              trees; graham2016 (SHARP) for sums in switches
    Assumes   n ranks, q in each of m nodes; phases of the hierarchical one follow one another, those in the network
              overlap; libraries choose right; where this machine's collectives were measured, they take what that gave
    Checked   tests/golden/test_all_reduce_tables.py: 7 tables of 2 to 8 A100 and one of 8 H100 on two nodes
    """
    times = _all_reduce_times(size_bytes, path, in_pieces=in_pieces)
    best = times[0][1]
    for _, time in times[1:]:
        best = np.minimum(best, time)
    if path.measured:
        best = _measured_or(_measured_sum_s(size_bytes, path, in_pieces=in_pieces), best)
    return best * path.is_real


def all_reduce_algorithm(*, size_bytes: FloatLike, path: Path, in_pieces: bool = False) -> str | Words:
    """Name of the algorithm that `all_reduce_time_s` took, or `measured`; `none` for one rank."""
    times = _all_reduce_times(size_bytes, path, in_pieces=in_pieces)
    together = np.stack(np.broadcast_arrays(*(time for _, time in times)))
    names = np.array(["none", *(name for name, _ in times), "measured"])
    places = np.where(np.asarray(path.num_ranks) > 1, 1 + np.argmin(together, axis=0), 0)
    if path.measured:
        known = ~np.isnan(_measured_sum_s(size_bytes, path, in_pieces=in_pieces))
        places = np.where(known, len(names) - 1, places)
    return str(names[places]) if places.ndim == 0 else Words(names, places)


def _all_reduce_times(size: FloatLike, path: Path, *, in_pieces: bool) -> list[tuple[str, FloatLike]]:
    n, q, m = path.num_ranks, path.num_here, path.num_nodes
    ring = path.offset_s + 2.0 * (n - 1.0) / n * size / path.bytes_per_s
    inside = 2.0 * (q - 1.0) / q * size / path.inside_bytes_per_s
    times: list[tuple[str, FloatLike]] = []
    for name in LIBRARIES[path.library]:
        if in_pieces and name not in IN_PIECES:
            continue
        if name == "ring":
            times.append((name, ring + 2.0 * path.ring_latency_s))
        elif name == "tree":
            times.append((name, ring + 2.0 * path.tree_latency_s))
        elif name == "hierarchical":
            between = 2.0 * (m - 1.0) / m * size / np.maximum(q * path.network_bytes_per_s, 1.0)
            times.append((name, path.offset_s + inside + between + 2.0 * path.tree_latency_s))
        elif name == "in-switch":
            if path.in_switch_bytes_per_s:
                sums = path.offset_s + size / path.in_switch_bytes_per_s + 2.0 * path.inside_latency_s
                whole = (np.asarray(q) == path.num_in_switch) & (np.asarray(n) == q)
                times.append((name, np.where(whole, sums, np.inf)))
        elif path.reduces:
            shard = size / np.maximum(q * path.network_bytes_per_s, 1.0)
            latency = (q - 1.0) * path.inside_latency_s + path.between_latency_s
            sums = path.offset_s + np.maximum(inside, shard) + 2.0 * latency
            times.append((name, np.where(np.asarray(path.spans_nodes) > 0, sums, np.inf)))
    return times


def gather_time_s(*, size_bytes: FloatLike, path: Path, num_calls: FloatLike = 1.0, op: str = HALF_SUM) -> FloatLike:
    """All-gather or reduce-scatter of `size_bytes` in total, in `num_calls` pieces.

    `op` says which, for machines whose collectives were measured; a `HALF_SUM` is half of what an all-reduce takes.

    Equation  t = (n-1)/n S/B + c (a0 + ring latency)
    Source    thakur2005 (Optimization of Collective Communication Operations in MPICH), sections 4.1 and 4.2
    Assumes   ring only, as NCCL has no tree for these
    Checked   tests/properties/test_collectives.py: half an all-reduce's bandwidth term; nothing for one rank
    """
    n = path.num_ranks
    time = (n - 1.0) / n * size_bytes / path.bytes_per_s + num_calls * (path.offset_s + path.ring_latency_s)
    if path.measured:
        half = 0.5 * _measured_s(path, "all-reduce", size_bytes, num_calls=num_calls)
        known = half if op == HALF_SUM else _measured_or(_measured_s(path, op, size_bytes, num_calls=num_calls), half)
        time = _measured_or(known, time)
    return time * path.is_real


def distinct_frac(*, num_places: FloatLike, num_draws: int) -> FloatLike:
    """Distinct places among independent draws, over the draws.

    Equation  N/k (1 - (1 - 1/N)^k)
    Source    the expected number of occupied cells, feller1968 (An Introduction to Probability Theory, IV.2)
    Assumes   every place is as likely as any other: routers that are limited to few nodes visit fewer
    Checked   tests/costs/test_collectives.py: 1 for one draw, 1/k for one place
    """
    n, k = np.asarray(num_places, dtype=np.float64), float(num_draws)
    return (n / k * (1.0 - (1.0 - 1.0 / n) ** k))[()]


def all_to_all_time_s(
    *, size_bytes: FloatLike, machine: Machine, num_ranks: FloatLike, num_job_devices: FloatLike | None = None,
    sent_frac: FloatLike = 1.0,
) -> FloatLike:  # fmt: skip
    """Every rank sends an equal part of `size_bytes` to every other.

    Equation  t = a0 + S/n ((r_0 - 1) / B_in + sum over tiers of (r_i - r_(i-1)) k_i / (B_net s_i)),  r_i ranks within
              tier i (node, leaf, group, machine), of which s_i of the injection and 1/k_i of that is left; of what
              leaves a node only `sent_frac` is sent, where the rest is a copy of it
    Source    thakur2005 (Optimization of Collective Communication Operations in MPICH), section 4.4
    Assumes   the group fills nodes in turn, and where jobs are compact leaves and groups as well; what leaves a node of
              a scattered job goes as far as the job does; traffic of the tiers follows one another
    Checked   tests/properties/test_collectives.py: nothing for one rank; more when it leaves the node
    """
    time = _all_to_all_by_links_s(
        size_bytes=size_bytes, machine=machine, num_ranks=num_ranks, num_job_devices=num_job_devices,
        sent_frac=sent_frac,
    )  # fmt: skip
    if machine.measured_collectives:
        n = np.asarray(num_ranks, dtype=np.float64)
        known = measured_time_s(
            machine.measured_collectives, op="all-to-all", size_bytes=size_bytes, num_ranks=n,
            num_nodes=np.ceil(n / machine.gpus_per_node),
        )  # fmt: skip
        time = _measured_or(known, time)
    return time


def _all_to_all_by_links_s(
    *, size_bytes: FloatLike, machine: Machine, num_ranks: FloatLike, num_job_devices: FloatLike | None,
    sent_frac: FloatLike,
) -> FloatLike:  # fmt: skip
    n = np.asarray(num_ranks, dtype=np.float64)
    here = np.minimum(n, machine.gpus_per_node)
    rate, network = machine.network_bytes_per_s_per_gpu, machine.network
    if rate is None and np.any(n > here):
        raise NotExpressedError(f"{machine.name} has no network, but the layout spreads experts over several nodes")
    time = machine.constants.collective_offset.value + size_bytes / n * (here - 1.0) / machine.scale_up_bytes_per_s
    if rate is None:
        return (time * (n > 1))[()]
    if network is None:
        return ((time + sent_frac * size_bytes / n * (n - here) / rate) * (n > 1))[()]
    per_node = float(machine.gpus_per_node)
    extent = np.ceil(n / per_node)
    job = extent if num_job_devices is None else np.maximum(np.ceil(np.asarray(num_job_devices) / per_node), extent)
    if network.is_compact:
        leaf = np.maximum(np.minimum(n, network.num_leaf_nodes * per_node), here)
        group = np.maximum(np.minimum(n, network.num_group_nodes * per_node), leaf)
        parts: list[tuple[FloatLike, Tier]] = [
            (leaf - here, np.full((), LEAF)), (group - leaf, np.full((), GROUP)), (n - group, np.full((), WHOLE)),
        ]  # fmt: skip
    else:
        wide = tier_of(network, num_span_nodes=np.maximum(extent, 2.0), num_job_nodes=job, one_per_node=False)
        parts = [(n - here, wide)]
    for ranks, tier in parts:
        slow = slowdown(network, tier=tier, num_job_nodes=job)
        time = time + sent_frac * size_bytes / n * ranks * slow / (rate * tier_frac(network, tier))
    return (time * (n > 1))[()]


def send_time_s(*, size_bytes: FloatLike, path: Path) -> FloatLike:
    """One message to a neighbour.

    Equation  t = a0 + alpha + S/B
    Source    hockney1994 (The communication challenge for MPP, Parallel Computing 20)
    Assumes   nothing else on the wire
    Checked   tests/properties/test_collectives.py: linear in size, never below the latency
    """
    time = path.offset_s + path.hop_latency_s + size_bytes / path.message_bytes_per_s
    if path.measured:
        time = _measured_or(_measured_s(path, "send-recv", size_bytes), time)
    return time * path.is_real
