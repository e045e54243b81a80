"""Collectives by alpha-beta: latency per step and bandwidth of the slowest link a ring crosses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from scalewright.costs.breakdown import FloatLike
from scalewright.costs.machine import Machine
from scalewright.errors import NotExpressedError

if TYPE_CHECKING:
    from scalewright.workload.layout import IntLike


def all_reduce_time_s(
    *, size_bytes: FloatLike, num_ranks: IntLike, bytes_per_s: FloatLike, latency_s: FloatLike
) -> FloatLike:
    """Sum on every rank.

    Equation  t = 2 (n-1)/n S/B + 2 steps(n) alpha
    Source    thakur2005 (Optimization of Collective Communication Operations in MPICH), section 4.5
    Assumes   ring for bandwidth; the smaller of n-1 (ring) and log2 n (tree) latency steps each way
    Checked   tests/golden/all_reduce_a100.toml: 7 tables of 2 to 8 A100, sizes from 1 MiB to 1 GiB
    """
    return 2.0 * gather_time_s(size_bytes=size_bytes, num_ranks=num_ranks, bytes_per_s=bytes_per_s, latency_s=latency_s)


def gather_time_s(
    *, size_bytes: FloatLike, num_ranks: IntLike, bytes_per_s: FloatLike, latency_s: FloatLike
) -> FloatLike:
    """All-gather or reduce-scatter of `size_bytes` in total.

    Equation  t = (n-1)/n S/B + steps(n) alpha
    Source    thakur2005 (Optimization of Collective Communication Operations in MPICH), sections 4.1 and 4.2
    Assumes   as for all-reduce
    Checked   tests/properties: twice it is an all-reduce; nothing for one rank
    """
    n = np.asarray(num_ranks, dtype=np.float64)
    steps = np.minimum(n - 1.0, np.ceil(np.log2(np.maximum(n, 1.0))))
    time = (n - 1.0) / n * size_bytes / bytes_per_s + steps * latency_s
    return time if time.ndim else float(time)


def send_time_s(*, size_bytes: FloatLike, bytes_per_s: FloatLike, latency_s: FloatLike) -> FloatLike:
    """One message to a neighbour.

    Equation  t = alpha + S/B
    Source    hockney1994 (The communication challenge for MPP, Parallel Computing 20)
    Assumes   nothing else on the wire
    Checked   tests/properties: linear in size, never below the latency
    """
    return latency_s + size_bytes / bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """What a group of ranks has between its members."""

    bytes_per_s: FloatLike
    latency_s: FloatLike
    spans_nodes: FloatLike
    """1 where the group leaves a node, else 0."""


def group_path(machine: Machine, *, num_ranks: IntLike, stride: IntLike) -> Path:
    """Bandwidth per rank inside a group whose members are `stride` devices apart.

    Equation  inside a node: the scale-up link; across nodes: min(scale-up, q x network per device), q members a node
    Source    nccl2019 (Massively Scale Your Deep Learning Training with NCCL 2.4), rings over all NICs of a node
    Assumes   devices numbered tensor first, then context, data, pipeline; all groups of a node are busy at once and
              share its NICs equally
    Checked   tests/costs/test_collectives.py: tensor parallel inside and across nodes, data parallel of both kinds
    """
    per_node = machine.gpus_per_node
    members_per_node = np.clip(per_node // np.asarray(stride), 1, np.asarray(num_ranks))
    spans = (members_per_node < num_ranks).astype(np.float64)
    if machine.network_bytes_per_s_per_gpu is None:
        if np.any(spans):
            raise NotExpressedError(f"{machine.name} has no network, but the layout needs more than one node")
        across = np.asarray(machine.scale_up_bytes_per_s)
    else:
        across = np.minimum(machine.scale_up_bytes_per_s, members_per_node * machine.network_bytes_per_s_per_gpu)
    bandwidth = np.where(spans > 0, across, machine.scale_up_bytes_per_s)
    latency = np.where(spans > 0, machine.network_latency_s, machine.scale_up_latency_s)
    return Path(bytes_per_s=_plain(bandwidth), latency_s=_plain(latency), spans_nodes=_plain(spans))


def _plain(value: FloatLike) -> FloatLike:
    """A 0-d array as a float, so that scalars stay scalars."""
    return float(value) if np.ndim(value) == 0 else value
