"""Collectives by alpha-beta: a start, latency per step, and the bandwidth of the slowest link a ring crosses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scalewright.costs.breakdown import FloatLike
from scalewright.costs.machine import Machine
from scalewright.errors import NotExpressedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """What a group of ranks has between its members."""

    num_ranks: FloatLike
    bytes_per_s: FloatLike
    offset_s: float
    """To start one collective."""
    ring_latency_s: FloatLike
    """Once around the ring."""
    tree_latency_s: FloatLike
    """Once up a tree: across nodes by halves, inside a node in turn."""
    hop_latency_s: FloatLike
    """Between two neighbours."""
    spans_nodes: FloatLike
    """1 where the group leaves a node, else 0."""

    @property
    def is_real(self) -> FloatLike:
        """1 where there is anybody to talk to."""
        return np.asarray(np.asarray(self.num_ranks) > 1, dtype=np.float64)[()]


def group_path(machine: Machine, *, num_ranks: FloatLike, stride: FloatLike) -> Path:
    """Bandwidth and latency inside a group whose members are `stride` devices apart.

    Equation  inside a node: the scale-up link; across nodes: min(scale-up, q x network per device), q members a node
    Source    nccl2019 (Massively Scale Your Deep Learning Training with NCCL 2.4), rings over all NICs of a node
    Assumes   devices numbered tensor first, then context, data, pipeline; all groups of a node are busy at once and
              share its NICs equally; latencies of a running job are a constant times those of a quiet link
    Checked   tests/costs/test_collectives.py: tensor parallel inside and across nodes, data parallel of both kinds
    """
    constants, n = machine.constants, np.asarray(num_ranks, dtype=np.float64)
    here = np.clip(machine.gpus_per_node // np.asarray(stride), 1, n)
    spans = np.asarray(here < n, dtype=np.float64)
    across = np.asarray(machine.scale_up_bytes_per_s)
    if machine.network_bytes_per_s_per_gpu is None:
        if np.any(spans):
            raise NotExpressedError(f"{machine.name} has no network, but the layout needs more than one node")
    else:
        across = np.minimum(machine.scale_up_bytes_per_s, here * machine.network_bytes_per_s_per_gpu)
    factor = constants.latency_factor.value
    inside_s, between_s = machine.scale_up_latency_s * factor, machine.network_latency_s * factor
    nodes = np.ceil(n / here)
    ring = np.where(spans > 0, (n - nodes) * inside_s + nodes * between_s, (n - 1.0) * inside_s)
    tree = np.where(spans > 0, np.ceil(np.log2(nodes)) * between_s, 0.0) + (here - 1.0) * inside_s
    return Path(
        num_ranks=n[()],
        bytes_per_s=np.where(spans > 0, across, machine.scale_up_bytes_per_s)[()],
        offset_s=constants.collective_offset.value,
        ring_latency_s=ring[()],
        tree_latency_s=tree[()],
        hop_latency_s=np.where(spans > 0, between_s, inside_s)[()],
        spans_nodes=spans[()],
    )


def all_reduce_time_s(*, size_bytes: FloatLike, path: Path) -> FloatLike:
    """Sum on every rank.

    Equation  t = a0 + 2 (n-1)/n S/B + 2 min(ring, tree) latency
    Source    thakur2005 (Optimization of Collective Communication Operations in MPICH), section 4.5
    Assumes   ring for bandwidth; the library takes a tree where its latency is lower
    Checked   tests/golden/test_all_reduce_tables.py: 7 tables of 2 to 8 A100 and one of 8 H100 on two nodes
    """
    n = path.num_ranks
    latency = np.minimum(path.ring_latency_s, path.tree_latency_s)
    time = path.offset_s + 2.0 * (n - 1.0) / n * size_bytes / path.bytes_per_s + 2.0 * latency
    return time * path.is_real


def gather_time_s(*, size_bytes: FloatLike, path: Path, num_calls: FloatLike = 1.0) -> FloatLike:
    """All-gather or reduce-scatter of `size_bytes` in total, in `num_calls` pieces.

    Equation  t = (n-1)/n S/B + c (a0 + ring latency)
    Source    thakur2005 (Optimization of Collective Communication Operations in MPICH), sections 4.1 and 4.2
    Assumes   ring only, as NCCL has no tree for these
    Checked   tests/properties/test_collectives.py: half an all-reduce's bandwidth term; nothing for one rank
    """
    n = path.num_ranks
    time = (n - 1.0) / n * size_bytes / path.bytes_per_s + num_calls * (path.offset_s + path.ring_latency_s)
    return time * path.is_real


def all_to_all_time_s(*, size_bytes: FloatLike, machine: Machine, num_ranks: FloatLike) -> FloatLike:
    """Every rank sends an equal part of `size_bytes` to every other.

    Equation  t = a0 + S (r-1)/n / B_in + S (n-r)/n / B_out,  r ranks of the group in a node
    Source    thakur2005 (Optimization of Collective Communication Operations in MPICH), section 4.4
    Assumes   the group fills nodes in turn; inside and outside traffic follow one another
    Checked   tests/properties/test_collectives.py: nothing for one rank; more when it leaves the node
    """
    n = np.asarray(num_ranks, dtype=np.float64)
    here = np.minimum(n, machine.gpus_per_node)
    outside = np.maximum(n - here, 0.0) / n
    inside = (here - 1.0) / n
    network = machine.network_bytes_per_s_per_gpu
    if network is None and np.any(outside):
        raise NotExpressedError(f"{machine.name} has no network, but the layout spreads experts over several nodes")
    time = machine.constants.collective_offset.value + size_bytes * inside / machine.scale_up_bytes_per_s
    if network is not None:
        time = time + size_bytes * outside / network
    return (time * (n > 1))[()]


def send_time_s(*, size_bytes: FloatLike, path: Path) -> FloatLike:
    """One message to a neighbour.

    Equation  t = a0 + alpha + S/B
    Source    hockney1994 (The communication challenge for MPP, Parallel Computing 20)
    Assumes   nothing else on the wire
    Checked   tests/properties/test_collectives.py: linear in size, never below the latency
    """
    return (path.offset_s + path.hop_latency_s + size_bytes / path.bytes_per_s) * path.is_real
