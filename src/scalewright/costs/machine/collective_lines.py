"""Collectives as they were measured on a machine: lines of time over size, by operation and group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from scalewright.costs.breakdown import FloatLike
from scalewright.workload.collective import bus_share


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLine:
    """One line of one operation: t = start + size x bus share / bandwidth, for sizes from `from_bytes` on."""

    op: str
    num_ranks: int
    num_nodes: int
    from_bytes: float
    start_s: float
    bytes_per_s: float
    """Bus bandwidth."""


def lines_of(fits: Iterable[Mapping[str, Any]]) -> tuple[MeasuredLine, ...]:
    """From the fits of `bench collectives`. Of several element types of a group the first; of several runs the last."""
    dtypes: dict[tuple[Any, ...], str] = {}
    groups: dict[tuple[Any, ...], list[MeasuredLine]] = {}
    for fit in fits:
        group = (fit["op"], fit["num_ranks"], fit["num_nodes"])
        if dtypes.setdefault(group, fit["dtype"]) != fit["dtype"]:
            continue
        lines = groups.setdefault(group, [])
        if lines and fit["from_bytes"] <= lines[-1].from_bytes:  # another run begins at its smallest size
            lines.clear()
        lines.append(
            MeasuredLine(
                op=fit["op"],
                num_ranks=fit["num_ranks"],
                num_nodes=fit["num_nodes"],
                from_bytes=fit["from_bytes"],
                start_s=fit["alpha_s"],
                bytes_per_s=fit["bytes_per_s"],
            )
        )
    return tuple(line for lines in groups.values() for line in lines)


def measured_time_s(
    lines: tuple[MeasuredLine, ...], *, op: str, size_bytes: FloatLike, num_ranks: FloatLike, num_nodes: FloatLike
) -> FloatLike:
    """One operation, as measured; NaN for groups that no measurement says anything about.

    Equation  t = alpha r + S f(n) / B,  r = (n - 1) / (n0 - 1),  n0 ranks measured, f the bus share
    Source    hockney1994 (The communication challenge for MPP, Parallel Computing 20) for alpha and B;
              thakur2005 (Optimization of Collective Communication Operations in MPICH) for n - 1 steps of a ring
    Assumes   a group of as many ranks on as many nodes is the group that was measured (r = 1); inside a node, others
              are like the nearest one in number of ranks; across nodes nothing is carried over
    Checked   tests/costs/test_measured_collectives.py: the lines themselves; benchmarks/collectives_predicted.py: sizes
              that were not fitted
    """
    size, n, m = np.broadcast_arrays(
        np.asarray(size_bytes, dtype=np.float64), np.asarray(num_ranks), np.asarray(num_nodes)
    )
    mine = [line for line in lines if line.op == op]
    time = np.full(size.shape, np.nan)
    for ranks, nodes in {(int(a), int(b)) for a, b in zip(n.flat, m.flat, strict=True)}:
        group = _nearest(mine, ranks, nodes)
        if group:
            here = (n == ranks) & (m == nodes)
            time[here] = _on_lines(group, size[here], op=op, num_ranks=ranks)
    return time[()]


def _nearest(lines: list[MeasuredLine], num_ranks: int, num_nodes: int) -> list[MeasuredLine]:
    """Lines of the group itself, or inside a node of the one nearest to it; smallest sizes first."""
    groups = {line.num_ranks for line in lines if line.num_nodes == num_nodes}
    if num_ranks < 2 or not groups or (num_nodes > 1 and num_ranks not in groups):
        return []
    best = min(groups, key=lambda ranks: (abs(np.log(ranks / num_ranks)), ranks))
    nearest = [line for line in lines if (line.num_ranks, line.num_nodes) == (best, num_nodes)]
    return sorted(nearest, key=lambda line: line.from_bytes)


def _on_lines(lines: list[MeasuredLine], size: Any, *, op: str, num_ranks: int) -> Any:
    place = np.searchsorted([line.from_bytes for line in lines], size, side="right") - 1
    below = place < 0
    place = np.maximum(place, 0)
    starts = np.array([line.start_s for line in lines])[place]
    starts = starts * np.where(starts > 0.0, (num_ranks - 1) / (lines[0].num_ranks - 1), 1.0)  # below 0 it is no start
    starts = np.where(below, np.maximum(starts, 0.0), starts)
    time_s = starts + size * bus_share(op, num_ranks) / np.array([line.bytes_per_s for line in lines])[place]
    return np.maximum(time_s, 0.0)
