"""Find the slow node: every node is timed with two neighbours, and only a slow node is slow with both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

Pair = tuple[int, int]


def rounds(num_nodes: int) -> list[list[Pair]]:
    """Pairs of neighbours around a ring, in rounds in which no node is in two pairs: two rounds, three if odd.

    The number of rounds does not grow with the job, so a check of a thousand nodes takes as long as one of four.
    """
    if num_nodes < 2:
        return []
    if num_nodes == 2:
        return [[(0, 1)]]
    ring = [(node, (node + 1) % num_nodes) for node in range(num_nodes)]
    if num_nodes % 2 == 0:
        return [ring[0::2], ring[1::2]]
    return [ring[0:-1:2], ring[1:-1:2], ring[-1:]]


def fastest_of_each(pairs_s: Mapping[tuple[str, str], float]) -> dict[str, float]:
    """Each node's best time with any neighbour."""
    best: dict[str, float] = {}
    for pair, time_s in pairs_s.items():
        for node in pair:
            best[node] = min(best.get(node, time_s), time_s)
    return best


def slow_nodes(pairs_s: Mapping[tuple[str, str], float], *, factor: float) -> dict[str, float]:
    """Nodes whose best time is over `factor` times the median of the others', and by how much.

    Two nodes form one pair, which does not show which of them is slow: then no node is named.
    """
    best = fastest_of_each(pairs_s)
    if len(best) < 3:
        return {}
    return outliers(best, factor=factor)


def outliers(times_s: Mapping[str, float], *, factor: float) -> dict[str, float]:
    """Those above `factor` times the median of all, as a ratio to that median."""
    if len(times_s) < 2:
        return {}
    typical = _low_median(list(times_s.values()))
    if typical <= 0.0:
        return {}
    return {name: t / typical for name, t in sorted(times_s.items()) if t > factor * typical}


def _low_median(values: Sequence[float]) -> float:
    """The median; of an even number of values the lower of the two in the middle, so the faster of two counts."""
    ordered = sorted(values)
    return median(ordered) if len(ordered) % 2 else ordered[len(ordered) // 2 - 1]
