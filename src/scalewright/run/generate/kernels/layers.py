"""A decode step by kernels: the layers of the model as products and attention."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from scalewright.run.generate.cache import PagedCache
from scalewright.run.generate.float8_weights import StoredFloat8Linear
from scalewright.run.generate.kernels import linear
from scalewright.run.generate.kernels.attention import AttentionInputs, decode_attention, scratch
from scalewright.run.generate.kernels.linear import WeightProduct
from scalewright.run.generate.kernels.norms import LAYER_NORM, RMS_NORM, Norm
from scalewright.run.generate.kernels.step_kernels import MOST_KERNEL_ROWS, AttentionTiles, Place, StepKernels
from scalewright.run.generate.served_model import ServedModel
from scalewright.run.language.model import Attention, Block, FeedForward


class DecodeLayers:
    """Weights of one rank as products by place, and the step that reads them."""

    def __init__(self, model: ServedModel, cache: PagedCache, *, max_rows: int) -> None:
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

    def inputs(self, positions_R: Tensor, pages_RN: Tensor) -> AttentionInputs:
        rotary = self.model.transformer.rotary_2LE
        return AttentionInputs(positions_R=positions_R, pages_RN=pages_RN, rotary_2LE=rotary, **self._scratch)

    def scores(self, x_RD: Tensor, inputs: AttentionInputs, kernels: StepKernels) -> Tensor:
        """This rank's part of the scores, in fp32, from the embedded tokens."""
        return self.partial_scores(x_RD, inputs, kernels, num_layers=len(self.blocks), total=self.model.ranks.sum)

    def partial_scores(
        self,
        x_RD: Tensor,
        inputs: AttentionInputs,
        kernels: StepKernels,
        *,
        num_layers: int,
        total: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """Scores after the first layers, with the sum over ranks that is given."""
        is_alone = self.model.ranks.size == 1
        for layer in range(num_layers):
            attended_RW = self._attend(layer, self._multiply("qkv", layer, x_RD, kernels), inputs, kernels.attention)
            if is_alone:
                x_RD = self._multiply("out", layer, attended_RW, kernels, residual_RN=x_RD)
            else:
                x_RD = x_RD + total(self._multiply("out", layer, attended_RW, kernels))
            wide_RF = self._multiply("up", layer, x_RD, kernels)
            if is_alone:
                x_RD = self._multiply("down", layer, wide_RF, kernels, residual_RN=x_RD)
            else:
                x_RD = x_RD + total(self._multiply("down", layer, wide_RF, kernels))
        return self._multiply("head", 0, x_RD, kernels)

    def _attend(self, layer: int, qkv_RW: Tensor, inputs: AttentionInputs, tiles: AttentionTiles) -> Tensor:
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

    def _multiply(
        self, place: Place, layer: int, x_RK: Tensor, kernels: StepKernels, residual_RN: Tensor | None = None
    ) -> Tensor:
        product, tiles, is_score = self.products[place][layer], getattr(kernels, place), place == "head"
        if tiles is None:
            out = linear.by_library(x_RK, product, residual_RN)
            return out.float() if is_score else out
        dtype = torch.float32 if is_score else x_RK.dtype
        out_RN = torch.empty(len(x_RK), product.num_outputs, dtype=dtype, device=x_RK.device)
        linear.linear(x_RK, product, tiles, out_RN=out_RN, residual_RN=residual_RN, scratch=self._split_scratch)
        return out_RN


def _product(layer: nn.Linear, *, norm: Norm | None = None) -> WeightProduct:
    scale = layer.scale_N if isinstance(layer, StoredFloat8Linear) else None
    return WeightProduct(weight=layer.weight.detach(), bias=layer.bias, scale=scale, norm=norm)


def _norm(module: nn.Module) -> Norm:
    if isinstance(module, nn.RMSNorm):
        return Norm(kind=RMS_NORM, weight=module.weight, bias=None, epsilon=float(module.eps or 0.0))
    assert isinstance(module, nn.LayerNorm)
    return Norm(kind=LAYER_NORM, weight=module.weight, bias=module.bias, epsilon=module.eps)


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
