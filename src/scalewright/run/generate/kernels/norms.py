"""Norms of the rows of a batch, one program for each row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from scalewright.run.generate.kernels.launch import launch, start_next_kernel, wait_for_kernel_before

NO_NORM, RMS_NORM, LAYER_NORM = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """The norm before a product."""

    kind: int
    weight: Tensor
    bias: Tensor | None
    epsilon: float


@triton.jit
def _norm_kernel(
    x_ptr, out_ptr, weight_ptr, bias_ptr, eps,
    K: tl.constexpr, BLOCK_K: tl.constexpr, IS_LAYER: tl.constexpr, HAS_BIAS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    start_next_kernel(OVERLAP, True)
    k = tl.arange(0, BLOCK_K)
    in_k = k < K
    place = tl.program_id(0) * K + k
    weight = tl.load(weight_ptr + k, mask=in_k, other=0.0).to(tl.float32)
    bias = weight
    if HAS_BIAS:
        bias = tl.load(bias_ptr + k, mask=in_k, other=0.0).to(tl.float32)
    wait_for_kernel_before(OVERLAP)
    x = tl.load(x_ptr + place, mask=in_k, other=0.0).to(tl.float32)
    if IS_LAYER:
        x = tl.where(in_k, x - tl.sum(x, axis=0) / K, 0.0)
    y = x * (1.0 / tl.sqrt(tl.sum(x * x, axis=0) / K + eps)) * weight
    if HAS_BIAS:
        y += bias
    tl.store(out_ptr + place, y.to(out_ptr.dtype.element_ty), mask=in_k)


def normed_rows(x_RK: Tensor, norm: Norm) -> Tensor:
    num_rows, depth = x_RK.shape
    out_RK = torch.empty_like(x_RK)
    block = triton.next_power_of_2(depth)
    launch(
        _norm_kernel, (num_rows,), x_RK.device,
        x_RK, out_RK, norm.weight, norm.weight if norm.bias is None else norm.bias, norm.epsilon,
        K=depth, BLOCK_K=block, IS_LAYER=norm.kind == LAYER_NORM, HAS_BIAS=norm.bias is not None,
        num_warps=min(max(block // 512, 1), 16),
    )  # fmt: skip
    return out_RK
