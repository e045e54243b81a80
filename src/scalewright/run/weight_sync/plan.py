"""Which elements of each weight an engine rank pulls from which trainer rank. Nothing here touches a tensor.

A part of a tensor is a box: one range of indices in every dimension. A trainer rank holds one box of each weight, an
engine rank needs one, and the transfers between them are their intersections.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scalewright import units
from scalewright.errors import ConfigError
from scalewright.run.generate.tensor_ranks import FIRST_OF_PAIR, SECOND_OF_PAIR, part_box

Box = tuple[range, ...]
Size = tuple[int, ...]
ShardMap = Mapping[str, Sequence[tuple[int, Box]]]
"""By name: every rank that holds or needs a part, with that part. Ranks with equal parts hold copies."""
VOCABULARY = ("embedding.tokens.weight", "embedding.positions.weight", "head.output.weight")
"""Tables whose rows a trainer splits over its tensor-parallel ranks."""
PIECE_BYTES = 8 * units.MIB
"""Most bytes of one transfer: small enough to spread over streams and replicas, large enough to hide a round trip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTransfer:
    """A box of one weight that moves from a trainer rank to an engine rank."""

    name: str
    from_rank: int
    box: Box
    """In the whole tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerLayout:
    """Ranks of a trainer: replica by replica, and in each the tensor-parallel ranks one after the other."""

    dp: int = 1
    zero: int = 0
    tp: int = 1

    @property
    def num_ranks(self) -> int:
        return self.dp * self.tp

    def box(self, name: str, size: Size, rank: int) -> Box:
        """The part that a rank stores: of its tensor-parallel part, the rows of its replica where FSDP shards them."""
        replica, place = divmod(rank, self.tp)
        box = list(whole_box(size))
        dim = trainer_dim(name)
        if self.tp > 1 and dim is not None:
            box[dim] = split_range(box[dim], self.tp, place)
        if self.zero >= 1 and self.dp > 1:
            box[0] = split_range(box[0], self.dp, replica)
        return tuple(box)

    def is_first(self, name: str, size: Size, rank: int) -> bool:
        """Whether no rank before this one stores the same part."""
        own = self.box(name, size, rank)
        return all(self.box(name, size, other) != own for other in range(rank))

    def shard_map(self, sizes: Mapping[str, Size]) -> ShardMap:
        return {
            name: [(rank, self.box(name, size, rank)) for rank in range(self.num_ranks)] for name, size in sizes.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRank:
    """One rank of an engine: what it needs, and which of all engine ranks it is."""

    tp_rank: int = 0
    tp: int = 1
    number: int = 0
    """Among the ranks of all engines: each begins with another replica of the trainer."""

    def box(self, name: str, size: Size) -> Box | None:
        """The part of a weight that this rank stores; None where it stores zeros."""
        return part_box(name, size, rank=self.tp_rank, num_ranks=self.tp)

    def boxes(self, sizes: Mapping[str, Size]) -> dict[str, Box]:
        boxes = {name: self.box(name, size) for name, size in sizes.items()}
        return {name: box for name, box in boxes.items() if box is not None}


def trainer_dim(name: str) -> int | None:
    """The dimension that tensor parallelism of a trainer cuts; None: every rank holds all of it."""
    if name.endswith((*FIRST_OF_PAIR, *VOCABULARY)):
        return 0
    return 1 if name.endswith(SECOND_OF_PAIR) else None


def whole_box(size: Size) -> Box:
    return tuple(range(length) for length in size)


def split_range(whole: range, num_parts: int, part: int) -> range:
    """As torch.chunk and FSDP cut: equal parts, the last ones shorter or empty."""
    each = math.ceil(len(whole) / num_parts)
    start, stop = (min(whole.start + each * number, whole.stop) for number in (part, part + 1))
    return range(start, stop)


def num_elements(box: Box) -> int:
    return math.prod(len(one) for one in box)


def overlap(a: Box, b: Box) -> Box | None:
    """What two boxes share; None if it is nothing."""
    shared = tuple(range(max(x.start, y.start), min(x.stop, y.stop)) for x, y in zip(a, b, strict=True))
    return shared if all(len(one) for one in shared) else None


def slices_in(box: Box, outer: Box) -> tuple[slice, ...]:
    """Where a box lies inside the tensor of an outer one."""
    return tuple(slice(x.start - y.start, x.stop - y.start) for x, y in zip(box, outer, strict=True))


def pieces_of(box: Box, *, width_bytes: int, piece_bytes: int = PIECE_BYTES) -> list[Box]:
    """A box cut along its first dimension into pieces of at most so many bytes, or of one row."""
    if not box:
        return [box]
    row_bytes = num_elements(box[1:]) * width_bytes
    each = max(piece_bytes // max(row_bytes, 1), 1)
    rows = box[0]
    return [(range(start, min(start + each, rows.stop)), *box[1:]) for start in range(rows.start, rows.stop, each)]


def transfers_of(
    trainer: ShardMap, needs: Mapping[str, Box], *, number: int = 0, width_bytes: int = 2,
    piece_bytes: int = PIECE_BYTES,
) -> list[ShardTransfer]:  # fmt: skip
    """What one engine rank pulls: every element that it needs exactly once.

    Where several trainer ranks hold the same part, each piece goes to the one that has sent least to this rank; the
    number of the engine rank decides between equals, so that ranks begin with different replicas.
    """
    load_bytes: dict[int, int] = {}
    chosen: list[ShardTransfer] = []
    for name, need in needs.items():
        num_open = num_elements(need)
        for held, ranks in _holders(trainer.get(name, ())).items():
            shared = overlap(held, need)
            if shared is None:
                continue
            num_open -= num_elements(shared)
            for piece in pieces_of(shared, width_bytes=width_bytes, piece_bytes=piece_bytes):
                turned = ranks[number % len(ranks) :] + ranks[: number % len(ranks)]
                rank = min(turned, key=lambda one: load_bytes.get(one, 0))
                load_bytes[rank] = load_bytes.get(rank, 0) + num_elements(piece) * width_bytes
                chosen.append(ShardTransfer(name=name, from_rank=rank, box=piece))
        if num_open:
            problem = "no trainer rank holds" if num_open > 0 else "trainer ranks hold parts that overlap in"
            raise ConfigError(
                f"{name}: {problem} {abs(num_open)} of the elements that an engine rank needs; name every rank of one "
                "trainer"
            )
    return chosen


def transfers(
    trainer: ShardMap, engines: Sequence[EngineRank], sizes: Mapping[str, Size], *, width_bytes: int = 2,
    piece_bytes: int = PIECE_BYTES,
) -> dict[int, list[ShardTransfer]]:  # fmt: skip
    """The transfers of every engine rank, by its number."""
    return {
        one.number: transfers_of(
            trainer, one.boxes(sizes), number=one.number, width_bytes=width_bytes, piece_bytes=piece_bytes
        )
        for one in engines
    }


def engine_ranks(*, tp: int, num_copies: int) -> list[EngineRank]:
    return [EngineRank(tp_rank=rank % tp, tp=tp, number=rank) for rank in range(tp * num_copies)]


def _holders(held: Sequence[tuple[int, Box]]) -> dict[Box, list[int]]:
    """Ranks by the part that they hold; empty parts are left out."""
    ranks: dict[Box, list[int]] = {}
    for rank, box in held:
        if num_elements(box):
            ranks.setdefault(box, []).append(rank)
    return ranks
