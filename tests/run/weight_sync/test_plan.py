"""Plans of transfers between random layouts: every element once, evenly over replicas, rebuilt equal."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("torch")
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalewright.errors import ConfigError
from scalewright.run.weight_sync.plan import (
    EngineRank,
    TrainerLayout,
    engine_ranks,
    num_elements,
    overlap,
    pieces_of,
    slices_in,
    split_range,
    transfers,
    transfers_of,
    whole_box,
)

LAYER = "layers.0."
TRAINERS = st.builds(
    TrainerLayout, dp=st.integers(1, 5), zero=st.integers(0, 3), tp=st.sampled_from([1, 2, 3, 4])
)  # fmt: skip


@st.composite
def sizes_of(draw: st.DrawFn) -> dict[str, tuple[int, ...]]:
    """Sizes that no degree divides, among others: FSDP then leaves short and empty shards."""
    n = lambda: draw(st.integers(1, 23))  # noqa: E731
    hidden, wide, vocab = n(), n(), n()
    return {
        "embedding.tokens.weight": (vocab, hidden),
        "embedding.positions.weight": (n(), hidden),
        LAYER + "norm_1.weight": (hidden,),
        LAYER + "attention.qkv.weight": (wide, hidden),
        LAYER + "attention.qkv.bias": (wide,),
        LAYER + "attention.out.weight": (hidden, n()),
        LAYER + "attention.out.bias": (hidden,),
        LAYER + "feed_forward.gate.weight": (wide, hidden),
        LAYER + "feed_forward.down.weight": (hidden, wide),
        "head.output.weight": (vocab, hidden),
    }


@settings(max_examples=60, deadline=None)
@given(sizes=sizes_of(), trainer=TRAINERS, tp=st.integers(1, 4), copies=st.integers(1, 3), seed=st.integers(0, 99))
def test_each_engine_rank_gets_what_it_needs_once_and_equal(
    sizes: dict[str, tuple[int, ...]], trainer: TrainerLayout, tp: int, copies: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    whole = {name: torch.rand(size, generator=generator) for name, size in sizes.items()}
    held = {
        (rank, name): whole[name][slices_in(trainer.box(name, size, rank), whole_box(size))]
        for name, size in sizes.items()
        for rank in range(trainer.num_ranks)
    }
    engines = engine_ranks(tp=tp, num_copies=copies)
    plan = transfers(trainer.shard_map(sizes), engines, sizes, piece_bytes=64)
    for engine in engines:
        needs = engine.boxes(sizes)
        rebuilt = {name: torch.full(tuple(map(len, box)), torch.nan) for name, box in needs.items()}
        for one in plan[engine.number]:
            target = rebuilt[one.name][slices_in(one.box, needs[one.name])]
            assert target.isnan().all(), "an element came twice"
            source = held[one.from_rank, one.name]
            target.copy_(source[slices_in(one.box, trainer.box(one.name, sizes[one.name], one.from_rank))])
        assert sum(num_elements(one.box) for one in plan[engine.number]) == sum(map(num_elements, needs.values()))
        for name, box in needs.items():
            assert torch.equal(rebuilt[name], whole[name][slices_in(box, whole_box(sizes[name]))])


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 500), replicas=st.integers(1, 6), copies=st.integers(1, 5))
def test_replicas_send_the_same_share(rows: int, replicas: int, copies: int) -> None:
    sizes = {"layers.0.attention.qkv.weight": (rows, 8), "layers.0.norm_1.weight": (8,)}
    plan = transfers(
        TrainerLayout(dp=replicas).shard_map(sizes), engine_ranks(tp=1, num_copies=copies), sizes, piece_bytes=64
    )
    for rank, own in plan.items():
        sent = [sum(2 * num_elements(one.box) for one in own if one.from_rank == source) for source in range(replicas)]
        assert max(sent) - min(sent) <= 64, f"engine rank {rank}"
    if replicas >= 2 and copies >= 2:
        assert len({own[0].from_rank for own in plan.values()}) == min(replicas, copies)


def test_a_split_is_that_of_torch_chunk() -> None:
    for length in range(1, 20):
        for parts in range(1, 7):
            chunks = [len(one) for one in torch.arange(length).chunk(parts)]
            ours = [len(split_range(range(length), parts, part)) for part in range(parts)]
            assert ours == chunks + [0] * (parts - len(chunks))


def test_a_part_that_no_rank_holds_is_an_error() -> None:
    sizes = {"layers.0.attention.qkv.weight": (8, 4)}
    trainer = TrainerLayout(dp=2, zero=3)
    half = {name: [one for one in rows if one[0] == 0] for name, rows in trainer.shard_map(sizes).items()}
    with pytest.raises(ConfigError, match=r"no trainer rank holds 16 of the elements .* name every rank"):
        transfers_of(half, EngineRank().boxes(sizes))


def test_overlapping_parts_are_an_error() -> None:
    parts = {"a": [(0, (range(6),)), (1, (range(4, 8),))]}
    with pytest.raises(ConfigError, match="overlap in 2"):
        transfers_of(parts, {"a": (range(8),)})


def test_pieces_cover_a_box_within_their_size() -> None:
    chance = random.Random(3)
    for _ in range(200):
        box = tuple(range(start, start + chance.randint(1, 40)) for start in (chance.randint(0, 9) for _ in range(2)))
        pieces = pieces_of(box, width_bytes=2, piece_bytes=100)
        assert sum(map(num_elements, pieces)) == num_elements(box)
        assert all(2 * num_elements(one) <= 100 or len(one[0]) == 1 for one in pieces)
        assert all(overlap(a, b) is None for a in pieces for b in pieces if a is not b)
