"""Phases of the pre-flight check. Every rank passes through them in this order, so the slowest rank delays all."""

from __future__ import annotations

from collections.abc import Mapping

ARRIVED = "arrival"
JOIN = "joining"
IN_NODE = "all-reduce inside the node"
IN_PAIR = "all-reduce of two nodes, round"
IN_WORLD = "all-reduce of all ranks"
ORDER = (ARRIVED, JOIN, IN_NODE, f"{IN_PAIR} 1", f"{IN_PAIR} 2", f"{IN_PAIR} 3", IN_WORLD)


def earliest(phase_of_rank: Mapping[int, str]) -> dict[int, str]:
    """Of the ranks that are stuck, those in the earliest phase: the others wait for them."""

    def position(phase: str) -> int:
        return next((i for i, start in enumerate(ORDER) if phase.startswith(start)), len(ORDER))

    first = min(position(phase) for phase in phase_of_rank.values())
    return {rank: phase for rank, phase in phase_of_rank.items() if position(phase) == first}
