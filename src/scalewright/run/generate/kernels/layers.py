"""A decode step by kernels: the layers of the model as products and attention, each in the way that was fastest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources

from scalewright import units
from scalewright.run.generate.cache import PagedCache
from scalewright.run.generate.float8_weights import StoredFloat8Linear
from scalewright.run.generate.kernels import linear
from scalewright.run.generate.kernels.attention import (
    AttentionInputs,
    AttentionTiles,
    decode_attention,
    scratch,
    split_choices,
)
from scalewright.run.generate.kernels.linear import Norm, Tiles, WeightProduct, padded_rows
from scalewright.run.generate.served_model import ServedModel
from scalewright.run.language.model import Attention, Block, FeedForward

Choice = TypeVar("Choice")
Place = Literal["qkv", "out", "up", "down", "head"]
PLACES: tuple[Place, ...] = ("qkv", "out", "up", "down", "head")
NUM_TIMED = 7
UNTIMED_SPLITS = 4
MOST_KERNEL_ROWS = 128
"""Beyond these the vendor's library wins: products are no longer bound by memory alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a product is computed: by our kernel with these tiles, or by the library (None)."""

    tiles: Tiles | None
    norms_before: bool = False
    """The norm is an operation of its own."""


LIBRARY = Way(tiles=None)


def possible_ways(num_rows: int, *, has_norm: bool, can_split: bool) -> list[Way]:
    """What is worth a try for so many rows; the first of our kernels is the one to use untimed."""
    rows = padded_rows(num_rows)
    if rows == 1:
        cuts = [(4, 1024, 4, 1, 1), (8, 512, 4, 1, 1)]
    elif rows <= 32:
        cuts = [(32, 128, 4, 5, 1), (32, 128, 4, 4, 4), (16, 256, 4, 4, 2)]
    elif rows <= MOST_KERNEL_ROWS:
        cuts = [(32, 128, 4, 4, 1), (32, 128, 4, 4, 4)]
    else:
        cuts = []
    cuts = [cut for cut in cuts if can_split or cut[-1] == 1]
    tiles = [Tiles(block_n=n, block_k=k, num_warps=w, num_stages=s, num_splits=p) for n, k, w, s, p in cuts]
    if not has_norm:
        return [LIBRARY, *(Way(tiles=t) for t in tiles)]
    inside = [Way(tiles=tiles[0])] if rows == 1 else []  # more rows are read too often by too many programs
    return [LIBRARY, *(Way(tiles=t, norms_before=True) for t in tiles), *inside]


class DecodeLayers:
    """Weights of one rank as products by place, and the step that reads them."""

    def __init__(self, model: ServedModel, cache: PagedCache, *, max_rows: int, is_timed: bool = True) -> None:
        """Without `is_timed`, every product takes the first of our kernels."""
        self._is_timed = is_timed
        self.times_s: dict[str, dict[str, float]] = {}
        """What was timed, for all layers together: place and rows, then how."""
        self.model, self.cache, transformer = model, cache, model.transformer
        assert transformer.head is not None
        self.blocks = transformer.blocks()
        self.products: dict[Place, list[WeightProduct]] = {
            "qkv": [_product(b.attention.qkv, norm=_norm(b.norm_1)) for b in self.blocks],
            "out": [_product(b.attention.out) for b in self.blocks],
            "up": [_up(b) for b in self.blocks],
            "down": [_product(b.feed_forward.down) for b in self.blocks],
            "head": [_product(transformer.head.output, norm=_norm(transformer.head.norm))],
        }
        shape = model.shape
        self._scratch = scratch(max_rows, shape.heads, shape.kv_heads, shape.head_dim, model.device)
        most_outputs = max(products[0].num_outputs for place, products in self.products.items() if place != "head")
        self._split_scratch = linear.split_scratch(min(max_rows, MOST_KERNEL_ROWS), most_outputs, model.device)
        self._linear_ways: dict[tuple[Place, int], Way] = {}
        self._attention_tiles: dict[int, AttentionTiles] = {}

    def inputs(self, positions_R: Tensor, pages_RN: Tensor) -> AttentionInputs:
        rotary = self.model.transformer.rotary_2LE
        return AttentionInputs(positions_R=positions_R, pages_RN=pages_RN, rotary_2LE=rotary, **self._scratch)

    def scores(self, x_RD: Tensor, inputs: AttentionInputs) -> Tensor:
        """This rank's part of the scores, in fp32, from the embedded tokens."""
        num_rows, total = len(x_RD), self.model.ranks.sum
        is_alone = self.model.ranks.size == 1
        for layer in range(len(self.blocks)):
            attended_RW = self.attend(layer, self._multiply("qkv", layer, x_RD), inputs, self.attention_tiles(num_rows))
            if is_alone:
                x_RD = self._multiply("out", layer, attended_RW, residual_RN=x_RD)
            else:
                x_RD = x_RD + total(self._multiply("out", layer, attended_RW))
            wide_RF = self._multiply("up", layer, x_RD)
            if is_alone:
                x_RD = self._multiply("down", layer, wide_RF, residual_RN=x_RD)
            else:
                x_RD = x_RD + total(self._multiply("down", layer, wide_RF))
        return self._multiply("head", 0, x_RD)

    def attend(self, layer: int, qkv_RW: Tensor, inputs: AttentionInputs, tiles: AttentionTiles) -> Tensor:
        attention: Attention = self.blocks[layer].attention
        shape, query_norm, key_norm = self.model.shape, attention.query_norm, attention.key_norm
        out_RW = torch.empty(len(qkv_RW), shape.heads * shape.head_dim, dtype=qkv_RW.dtype, device=qkv_RW.device)
        decode_attention(
            qkv_RW,
            self.cache.keys_LNPGE[layer],
            self.cache.values_LNPGE[layer],
            inputs,
            tiles,
            out_RW=out_RW,
            query_norm=None if query_norm is None else query_norm.weight,
            key_norm=None if key_norm is None else key_norm.weight,
            epsilon=0.0 if query_norm is None else float(query_norm.eps or 0.0),
        )
        return out_RW

    def _multiply(self, place: Place, layer: int, x: Tensor, residual_RN: Tensor | None = None) -> Tensor:
        way = self.way(place, len(x))
        return self._apply(x, self.products[place][layer], way, residual_RN, is_score=place == "head")

    def way(self, place: Place, num_rows: int) -> Way:
        return self._linear_ways[place, padded_rows(num_rows)]

    def attention_tiles(self, num_rows: int) -> AttentionTiles:
        return self._attention_tiles[num_rows]

    def choose(self, num_rows: int) -> None:
        """Time what is worth a try for a batch of this size, on the weights and the cache themselves."""
        for place in PLACES:
            if (place, padded_rows(num_rows)) not in self._linear_ways:
                self._linear_ways[place, padded_rows(num_rows)] = self._fastest_way(place, num_rows)
        if num_rows not in self._attention_tiles:
            self._attention_tiles[num_rows] = self._fastest_tiles(num_rows)

    def _fastest_way(self, place: Place, num_rows: int) -> Way:
        products, dtype, device = self.products[place], self.model.dtype, self.model.device
        depth = products[0].weight.shape[1]
        x = torch.randn(num_rows, depth, dtype=dtype, device=device)
        has_residual = place in ("out", "down") and self.model.ranks.size == 1
        residual = torch.randn(num_rows, products[0].num_outputs, dtype=dtype, device=device) if has_residual else None

        def work(way: Way) -> Callable[[], object]:
            return lambda: [self._apply(x, p, way, residual, is_score=place == "head") for p in products]

        can_split = products[0].activation != linear.SILU_GATE and place != "head"
        choices = possible_ways(num_rows, has_norm=products[0].norm is not None, can_split=can_split)
        return self._fastest(f"{place}, {num_rows} rows", {way: work(way) for way in choices})

    def _fastest_tiles(self, num_rows: int) -> AttentionTiles:
        """Over whole contexts. The new keys go to the page that pads batches; pages in use are only read."""
        shape, device, size = self.model.shape, self.model.device, self.cache.page_tokens
        embedding = self.model.transformer.embedding
        assert embedding is not None
        max_context = int(embedding.positions_1L.shape[1])
        num_tokens = max(min(max_context, self.cache.num_pages * size // num_rows), 2)
        num_pages = -(-num_tokens // size)
        pages = torch.arange(num_rows * num_pages, dtype=torch.int32, device=device) % self.cache.num_pages
        pages_RN = pages.view(num_rows, num_pages).contiguous()
        pages_RN[:, -1] = self.cache.padding_page
        position = num_tokens - 1
        inputs = self.inputs(torch.full((num_rows,), position, dtype=torch.int32, device=device), pages_RN)
        width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        qkv_RW = torch.randn(num_rows, width, dtype=self.model.dtype, device=device)

        def work(tiles: AttentionTiles) -> Callable[[], object]:
            return lambda: [self.attend(layer, qkv_RW, inputs, tiles) for layer in range(len(self.blocks))]

        splits = split_choices(num_rows, shape.kv_heads)
        middle = splits[len(splits) // 2] if self._is_timed else UNTIMED_SPLITS
        cuts = [(2, 2, True), (2, 3, True), (4, 2, True)] + ([(4, 1, False)] if shape.heads == shape.kv_heads else [])
        first = [AttentionTiles(num_splits=middle, num_warps=w, num_stages=s, uses_dot=d) for w, s, d in cuts]
        what = f"attention, {num_rows} rows of {num_tokens} tokens"
        best = self._fastest(what, {tiles: work(tiles) for tiles in first})
        others = [replace(best, num_splits=n) for n in splits] if self._is_timed else [best]
        return self._fastest(what, {tiles: work(tiles) for tiles in others})

    def _apply(
        self, x_RK: Tensor, product: WeightProduct, way: Way, residual_RN: Tensor | None, *, is_score: bool
    ) -> Tensor:
        if way.tiles is None:
            out = linear.reference(x_RK, product, residual_RN)
            return out.float() if is_score else out
        if way.norms_before:
            x_RK, product = linear.normed(x_RK, product), linear.without_norm(product)
        dtype = torch.float32 if is_score else x_RK.dtype
        out_RN = torch.empty(len(x_RK), product.num_outputs, dtype=dtype, device=x_RK.device)
        linear.linear(x_RK, product, way.tiles, out_RN=out_RN, residual_RN=residual_RN, scratch=self._split_scratch)
        return out_RN

    def _fastest(self, what: str, works: dict[Choice, Callable[[], object]]) -> Choice:
        if not self._is_timed:
            return next((choice for choice in works if choice != LIBRARY), next(iter(works)))
        times_s = {choice: _graph_time_s(work) for choice, work in works.items()}
        self.times_s.setdefault(what, {}).update({str(choice): time_s for choice, time_s in times_s.items()})
        return min(times_s, key=lambda choice: times_s[choice])


def _graph_time_s(work: Callable[[], object]) -> float:
    """Device time of the work as a graph; infinite for tiles that this device has no room for."""
    try:
        work()
    except (OutOfResources, CompilationError):
        return float("inf")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    graph.replay()
    times_s = []
    for _ in range(NUM_TIMED):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times_s.append(start.elapsed_time(end) * units.MILLI)
    return float(median(times_s))


def _product(layer: nn.Linear, *, norm: Norm | None = None) -> WeightProduct:
    scale = layer.scale_N if isinstance(layer, StoredFloat8Linear) else None
    return WeightProduct(weight=layer.weight.detach(), bias=layer.bias, scale=scale, norm=norm)


def _norm(module: nn.Module) -> Norm:
    if isinstance(module, nn.RMSNorm):
        return Norm(kind=linear.RMS_NORM, weight=module.weight, bias=None, epsilon=float(module.eps or 0.0))
    assert isinstance(module, nn.LayerNorm)
    return Norm(kind=linear.LAYER_NORM, weight=module.weight, bias=module.bias, epsilon=module.eps)


def _up(block: Block) -> WeightProduct:
    """The first product of a feed-forward, with its activation."""
    feed_forward: FeedForward = block.feed_forward
    norm = _norm(block.norm_2)
    if feed_forward.gate is None:
        single = _product(feed_forward.up)
        return WeightProduct(
            weight=single.weight, bias=single.bias, scale=single.scale, norm=norm, activation=linear.GELU
        )
    gate = _product(feed_forward.gate)
    return WeightProduct(
        weight=_doubled(gate.weight),
        bias=None if gate.bias is None else _doubled(gate.bias.detach()),
        scale=None if gate.scale is None else _doubled(gate.scale),
        norm=norm,
        activation=linear.SILU_GATE,
    )


def _doubled(first: Tensor) -> Tensor:
    """The piece of storage that a gate shares with what it multiplies, which follows it."""
    return first.as_strided((2 * first.shape[0], *first.shape[1:]), first.stride())
