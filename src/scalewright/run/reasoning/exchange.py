"""Exchange between the ranks of a stage: results and errors reach every rank, so that no rank waits in vain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from scalewright.errors import ScalewrightError

T = TypeVar("T")


def from_all_ranks(work: Callable[[], T]) -> list[T]:
    """The results of `work` on all ranks, rank 0 first. An expected error on one rank is raised on all."""
    own = outcome_of(work)
    outcomes: list[Any] = [own]
    if dist.get_world_size() > 1:
        outcomes = [None] * dist.get_world_size()
        dist.all_gather_object(outcomes, own)
    for _, error in outcomes:
        if error is not None:
            raise error
    return [value for value, _ in outcomes]


def outcome_of(work: Callable[[], T]) -> tuple[T | None, ScalewrightError | None]:
    try:
        return work(), None
    except ScalewrightError as error:
        return None, error


def wait_for_all() -> None:
    if dist.get_world_size() > 1:
        dist.barrier()
