"""Servers of a trainer in some layout, all in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor

from scalewright.run.weight_sync.plan import TrainerLayout, slices_in, whole_box
from scalewright.run.weight_sync.server import HeldPart, WeightServer

TOKEN = "a token"


def held(weights: dict[str, Tensor], layout: TrainerLayout, rank: int) -> tuple[dict[str, Tensor], dict[str, HeldPart]]:
    """What a rank stores of the weights."""
    parts = {}
    for name, tensor in weights.items():
        size = tuple(tensor.shape)
        parts[name] = HeldPart(
            size=size, box=layout.box(name, size, rank), is_first=layout.is_first(name, size, rank)
        )  # fmt: skip
    return {n: t[slices_in(parts[n].box, whole_box(parts[n].size))] for n, t in weights.items()}, parts


@contextmanager
def served(
    weights: dict[str, Tensor], layout: TrainerLayout | None = None, *, version: int = 3, **options: Any
) -> Iterator[tuple[list[str], list[WeightServer]]]:
    layout = layout or TrainerLayout()
    with ExitStack() as stack:
        servers = []
        for rank in range(layout.num_ranks):
            servers.append(WeightServer(*held(weights, layout, rank), version, token=TOKEN, **options))
            stack.callback(servers[-1].close)
        yield [server.start() for server in servers], servers
