"""Copies of the model that answer side by side, each on one rank or split over several."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """The copy of the model that this rank belongs to."""

    number: int
    num_copies: int
    is_first: bool
    """Whether this rank is the first of its copy: it writes the answers."""
    first_rank: int
    group: dist.ProcessGroup | None
    """The ranks of the copy, for its layers; None for one rank."""
    control: dist.ProcessGroup | None
    """The same ranks over the hosts, for agreements."""

    def agreed(self, number: int) -> int:
        """The number that the first rank of the copy has."""
        if self.control is None:
            return number
        value = torch.tensor([number], dtype=torch.int64)
        dist.broadcast(value, src=self.first_rank, group=self.control)
        return int(value)


def copy_of(rank: int, *, tp: int, dp: int) -> Copy:
    """The groups of all copies are made by every rank, in the same order."""
    mine: Copy | None = None
    for number in range(dp):
        ranks = list(range(number * tp, (number + 1) * tp))
        group = dist.new_group(ranks) if tp > 1 else None
        control = dist.new_group(ranks, backend="gloo") if tp > 1 else None
        if rank in ranks:
            mine = Copy(
                number=number, num_copies=dp, is_first=rank == ranks[0], first_rank=ranks[0], group=group,
                control=control,
            )  # fmt: skip
    assert mine is not None
    return mine
