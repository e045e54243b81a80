"""What every rank passes through, in this order; who is stuck earliest holds up the others."""

from __future__ import annotations

from collections.abc import Mapping

ARRIVED = "arrival"
JOIN = "joining"
IN_NODE = "all-reduce inside the node"
IN_PAIR = "all-reduce of two nodes, round"
IN_WORLD = "all-reduce of all ranks"
ORDER = (ARRIVED, JOIN, IN_NODE, f"{IN_PAIR} 1", f"{IN_PAIR} 2", f"{IN_PAIR} 3", IN_WORLD)


def behind(stages: Mapping[int, str]) -> dict[int, str]:
    """Of the ranks that are stuck, those that got least far: the others wait for them."""

    def place(stage: str) -> int:
        return next((i for i, start in enumerate(ORDER) if stage.startswith(start)), len(ORDER))

    least = min(place(stage) for stage in stages.values())
    return {rank: stage for rank, stage in stages.items() if place(stage) == least}
