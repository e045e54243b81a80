"""The kernels of a decode step: what is worth a try for a number of rows, and the choice as a plain value."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

Place = Literal["qkv", "out", "up", "down", "head"]
PLACES: tuple[Place, ...] = ("qkv", "out", "up", "down", "head")
MOST_KERNEL_ROWS = 128
"""Beyond these the vendor's library wins: products are no longer bound by memory alone."""
TARGET_PROGRAMS = 132 * 8
"""Enough parts of sequences to keep every multiprocessor's memory requests in flight."""


MOST_PRODUCT_SPLITS, MOST_ATTENTION_SPLITS = 8, 32
LEAST_ROWS = 8
"""Columns of the smallest product of tensor cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """How the kernel cuts a product."""

    block_n: int
    block_k: int
    num_warps: int
    num_stages: int = 1
    num_splits: int = 1
    """Parts of K, which are added up by the part that arrives last."""
    is_early: bool = False
    """The next kernel may start when this one has its inputs; else when its sums are done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTiles:
    num_splits: int
    num_warps: int
    num_stages: int = 1
    uses_dot: bool = True
    """Tensor cores, with the queries padded to 16 rows; else, for a single query, sums of each token's own."""
    is_early: bool = False
    """The next kernel may start when this one has its inputs; else when its sums are done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepKernels:
    """How each product is computed, by our kernel with these tiles or by the library (None), and attention."""

    qkv: Tiles | None
    out: Tiles | None
    up: Tiles | None
    down: Tiles | None
    head: Tiles | None
    attention: AttentionTiles

    def document(self) -> dict[str, Any]:
        return asdict(self)


def kept_kernels(document: dict[str, Any], possible: dict[str, list[Any]]) -> StepKernels | None:
    """What `document` gave, if all of it is among what is possible, whenever the next kernel starts."""
    try:
        products = {place: None if document[place] is None else Tiles(**document[place]) for place in PLACES}
        parts: dict[str, Any] = products | {"attention": AttentionTiles(**document["attention"])}
    except (KeyError, TypeError):
        return None
    are_known = all(
        part is None or any(replace(part, is_early=choice.is_early) == choice for choice in possible[name] if choice)
        for name, part in parts.items()
    )
    return StepKernels(**parts) if are_known else None


VECTOR_CUTS = (
    (4, 1024, 4, 1), (8, 1024, 8, 1), (2, 2048, 4, 1), (4, 2048, 4, 1), (8, 2048, 8, 1), (4, 2048, 4, 4),
)  # fmt: skip
"""For one row: outputs, depth, warps, parts. Each was the best for a product of a GPT of 1.3B on an H200."""
FEW_ROWS_CUTS = (
    (64, 128, 4, 4, 1), (32, 128, 2, 4, 1), (64, 128, 4, 4, 2), (64, 128, 4, 4, 4), (64, 256, 4, 3, 8),
)  # fmt: skip
"""Up to 16 rows: outputs, depth, warps, stages, parts."""
MANY_ROWS_CUTS = (
    (64, 128, 4, 4, 1), (64, 64, 4, 5, 1), (64, 128, 2, 4, 1), (64, 128, 4, 4, 4), (64, 128, 4, 3, 8),
    (64, 128, 2, 4, 4),
)  # fmt: skip
"""With two warps, products do not use the matrix units of Hopper, which fp8 weights reach by a longer way."""
MOST_FEW_ROWS = 16


def padded_rows(num_rows: int) -> int:
    """Rows of the kernel: 1, or a power of two that tensor cores take."""
    return 1 if num_rows == 1 else max(LEAST_ROWS, 1 << (num_rows - 1).bit_length())


def possible_tiles(num_rows: int, *, can_split: bool, is_fp32: bool) -> list[Tiles | None]:
    """What is worth a try for a product of so many rows; the first is the one to use untimed."""
    rows = padded_rows(num_rows)
    tiles: list[Tiles]
    if rows == 1:
        tiles = [Tiles(block_n=n, block_k=k, num_warps=w, num_splits=p, is_early=True) for n, k, w, p in VECTOR_CUTS]
    elif rows > MOST_KERNEL_ROWS or (is_fp32 and rows > MOST_FEW_ROWS):  # without tensor cores the library wins sooner
        tiles = []
    else:
        cuts, wide = (FEW_ROWS_CUTS if rows <= MOST_FEW_ROWS else MANY_ROWS_CUTS), 2 if is_fp32 else 1
        tiles = [Tiles(block_n=n, block_k=k // wide, num_warps=w, num_stages=s, num_splits=p) for n, k, w, s, p in cuts]
    return [*(t for t in tiles if can_split or t.num_splits == 1), None]


def possible_attention(num_rows: int, num_groups: int, *, is_fp32: bool, is_single: bool) -> list[AttentionTiles]:
    """Around as many parts as keep the device busy. `is_single`: one query head for each key head."""
    around = TARGET_PROGRAMS / (num_rows * num_groups)
    power = 1
    while power * 2 <= min(around, MOST_ATTENTION_SPLITS):
        power *= 2
    half, double = max(power // 2, 1), min(power * 2, MOST_ATTENTION_SPLITS)
    tries = [(half, 4, 2), (half, 4, 3), (power, 4, 2), (power, 2, 2), (double, 4, 2)]
    tiles = [AttentionTiles(num_splits=s, num_warps=w, num_stages=stages) for s, w, stages in dict.fromkeys(tries)]
    if is_fp32 and is_single:  # products of one query without tensor cores
        tiles += [AttentionTiles(num_splits=s, num_warps=4, uses_dot=False) for s in dict.fromkeys((half, power))]
    return tiles
