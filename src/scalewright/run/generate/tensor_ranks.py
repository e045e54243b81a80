"""Tensor parallelism of an engine: which part of each weight a rank holds, and what ranks exchange.

Products come in pairs: the first is cut by columns of its output, the second by those of its input, and one sum over
ranks follows. Every rank holds the whole token table and scores its own rows of it.

Source  shoeybi2019 (arXiv:1909.08053)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from scalewright.catalog.types import TransformerShape
from scalewright.errors import ConfigError
from scalewright.run.language.model import TIED_HEAD

FIRST_OF_PAIR = ("attention.qkv.weight", "attention.qkv.bias", "feed_forward.gate.weight", "feed_forward.gate.bias",
                 "feed_forward.up.weight", "feed_forward.up.bias")  # fmt: skip
SECOND_OF_PAIR = ("attention.out.weight", "feed_forward.down.weight")
ADDED_ONCE = ("attention.out.bias", "feed_forward.down.bias")


def part_box(name: str, size: tuple[int, ...], *, rank: int, num_ranks: int) -> tuple[range, ...] | None:
    """The indices of a weight of the whole model that a rank stores; None: it stores zeros in its place."""
    box = [range(length) for length in size]
    if num_ranks > 1 and name.endswith(ADDED_ONCE) and rank > 0:
        return None
    if name.endswith((*FIRST_OF_PAIR, TIED_HEAD)):
        box[0] = _share(size[0], rank, num_ranks)
    elif name.endswith(SECOND_OF_PAIR):
        box[1] = _share(size[1], rank, num_ranks)
    return tuple(box)


def _share(length: int, rank: int, num_ranks: int) -> range:
    """Equal shares; the last ranks may have less."""
    each = -(-length // num_ranks)
    return range(min(rank * each, length), min((rank + 1) * each, length))


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRanks:
    """The ranks that hold one copy of the model together. Every one of them is given the same requests."""

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None

    @classmethod
    def of(cls, group: dist.ProcessGroup | None) -> TensorRanks:
        if group is None or dist.get_world_size(group) == 1:
            return cls()
        return cls(rank=dist.get_rank(group), size=dist.get_world_size(group), group=group)

    def local_shape(self, shape: TransformerShape) -> TransformerShape:
        """The shape of one rank's layers."""
        sizes = {"heads": shape.heads, "kv_heads": shape.kv_heads, "ffn_hidden": shape.ffn_hidden}
        for name, size in sizes.items():
            if size % self.size:
                raise ConfigError(f"tp={self.size} does not divide {name} of {size}: choose a divisor")
        return shape.model_copy(update={name: size // self.size for name, size in sizes.items()})

    def part(self, name: str, whole: Tensor) -> Tensor:
        """This rank's part of a weight of the whole model."""
        box = part_box(name, tuple(whole.shape), rank=self.rank, num_ranks=self.size)
        if box is None:
            return torch.zeros_like(whole)
        return whole[tuple(slice(one.start, one.stop) for one in box)]

    def rows(self, num_tokens: int) -> range:
        """Tokens of the vocabulary that this rank scores; the last rank may have fewer."""
        return _share(num_tokens, self.rank, self.size)

    def sum(self, x: Tensor) -> Tensor:
        if self.size > 1:
            dist.all_reduce(x, group=self.group)
        return x

    def all_scores(self, logits_RV: Tensor, num_tokens: int) -> Tensor:
        """Scores of the whole vocabulary from those of each rank's rows."""
        if self.size == 1:
            return logits_RV
        each = -(-num_tokens // self.size)
        padded = torch.nn.functional.pad(logits_RV, (0, each - logits_RV.shape[1])).contiguous()
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(parts, padded, group=self.group)
        return torch.cat(parts, dim=1)[:, :num_tokens]
