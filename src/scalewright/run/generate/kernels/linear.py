"""A product of few rows with a large weight, with what surrounds it: norm before, bias, activation and residual after.

A decode step reads every weight once, so these products are bound by memory. One kernel for the whole chain saves the
time between kernels, which is as long as some products of a small model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

NO_NORM, RMS_NORM, LAYER_NORM = 0, 1, 2
NO_ACTIVATION, GELU, SILU_GATE = 0, 1, 2
MOST_SPLITS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """The norm before a product."""

    kind: int
    weight: Tensor
    bias: Tensor | None
    epsilon: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightProduct:
    """out = residual + activation(norm(x) @ weight.T * scale + bias)."""

    weight: Tensor
    """(N, K); with a gate (2N, K): the gate's rows, then those that it multiplies."""
    bias: Tensor | None = None
    scale: Tensor | None = None
    """Of each row, where weights are stored in 8 bit."""
    norm: Norm | None = None
    activation: int = NO_ACTIVATION

    @property
    def num_outputs(self) -> int:
        return self.weight.shape[0] // (2 if self.activation == SILU_GATE else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """How the kernel cuts a product."""

    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    num_splits: int = 1
    """Parts of K, which are added up by the part that arrives last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitScratch:
    """Memory for the parts of split products, shared by all of them."""

    parts: Tensor
    tickets: Tensor
    """Zeros; the kernel leaves zeros."""


def split_scratch(num_rows: int, most_outputs: int, device: torch.device) -> SplitScratch:
    return SplitScratch(
        parts=torch.empty(MOST_SPLITS * padded_rows(num_rows) * most_outputs, device=device),
        tickets=torch.zeros(most_outputs, dtype=torch.int32, device=device),
    )


@triton.jit
def _row_norm(x_ptr, rows, K: tl.constexpr, eps, R: tl.constexpr, BLOCK_K: tl.constexpr, IS_LAYER: tl.constexpr):
    """Mean (0 for RMS) and inverse deviation of every row."""
    r = tl.arange(0, R)
    total = tl.zeros((R,), dtype=tl.float32)
    squares = tl.zeros((R,), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        mask = (r[:, None] < rows) & (k[None, :] < K)
        x = tl.load(x_ptr + r[:, None] * K + k[None, :], mask=mask, other=0.0).to(tl.float32)
        total += tl.sum(x, axis=1)
        squares += tl.sum(x * x, axis=1)
    mean = total / K if IS_LAYER else total * 0.0
    variance = squares / K - mean * mean
    return mean, 1.0 / tl.sqrt(tl.maximum(variance, 0.0) + eps)


@triton.jit
def _activation_tile(
    x_ptr, norm_w_ptr, norm_b_ptr, r, k, rows, mean, rstd, K: tl.constexpr, NORM: tl.constexpr,
    HAS_NORM_BIAS: tl.constexpr,
):  # fmt: skip
    """Inputs (R, BLOCK_K), normed, in their own type."""
    x = tl.load(x_ptr + r[:, None] * K + k[None, :], mask=(r[:, None] < rows) & (k[None, :] < K), other=0.0)
    if NORM > 0:
        weight = tl.load(norm_w_ptr + k, mask=k < K, other=0.0).to(tl.float32)
        normed = (x.to(tl.float32) - mean[:, None]) * rstd[:, None] * weight[None, :]
        if HAS_NORM_BIAS:
            normed += tl.load(norm_b_ptr + k, mask=k < K, other=0.0).to(tl.float32)[None, :]
        x = normed.to(x.dtype)
    return x


@triton.jit
def _linear_kernel(
    x_ptr, w_ptr, out_ptr, bias_ptr, scale_ptr, residual_ptr, norm_w_ptr, norm_b_ptr, parts_ptr, tickets_ptr,
    rows, N, eps,
    K: tl.constexpr, R: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, NORM: tl.constexpr,
    ACTIVATION: tl.constexpr, HAS_NORM_BIAS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SCALE: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr, STAGES: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """R rows, BLOCK_N outputs. One row is summed without tensor cores, which need sixteen."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    r = tl.arange(0, R)
    in_n = n < N
    mean = tl.zeros((R,), dtype=tl.float32)
    rstd = mean
    if NORM > 0:
        mean, rstd = _row_norm(x_ptr, rows, K, eps, R, BLOCK_K, NORM == 2)
    if R == 1:
        sums = tl.zeros((BLOCK_N, BLOCK_K), dtype=tl.float32)
        gate_sums = tl.zeros((BLOCK_N, BLOCK_K), dtype=tl.float32)
    else:
        sums = tl.zeros((R, BLOCK_N), dtype=tl.float32)
        gate_sums = tl.zeros((R, BLOCK_N), dtype=tl.float32)
    first = N if ACTIVATION == 2 else 0
    offsets = n[:, None].to(tl.int64) * K
    EACH: tl.constexpr = ((K + SPLITS * BLOCK_K - 1) // (SPLITS * BLOCK_K)) * BLOCK_K
    begin = tl.program_id(1) * EACH
    for start in tl.range(begin, begin + EACH, BLOCK_K, num_stages=STAGES):
        k = start + tl.arange(0, BLOCK_K)
        mask = in_n[:, None] & (k[None, :] < K)
        w = tl.load(w_ptr + first * K + offsets + k[None, :], mask=mask, other=0.0)
        x = _activation_tile(x_ptr, norm_w_ptr, norm_b_ptr, r, k, rows, mean, rstd, K, NORM, HAS_NORM_BIAS)
        if R == 1:
            row = tl.reshape(x, (BLOCK_K,)).to(tl.float32)
            sums += w.to(tl.float32) * row[None, :]
        else:
            sums = tl.dot(x, tl.trans(w.to(x.dtype)), sums, input_precision="ieee")
        if ACTIVATION == 2:
            g = tl.load(w_ptr + offsets + k[None, :], mask=mask, other=0.0)
            if R == 1:
                gate_sums += g.to(tl.float32) * row[None, :]
            else:
                gate_sums = tl.dot(x, tl.trans(g.to(x.dtype)), gate_sums, input_precision="ieee")
    if R == 1:
        y = tl.reshape(tl.sum(sums, axis=1), (1, BLOCK_N))
        gate = tl.reshape(tl.sum(gate_sums, axis=1), (1, BLOCK_N))
    else:
        y, gate = sums, gate_sums
    is_last = True
    if SPLITS > 1:
        y, is_last = _joined(y, parts_ptr, tickets_ptr, r, R, BLOCK_N, SPLITS)
    if is_last:
        _finish(
            y, gate, out_ptr, bias_ptr, scale_ptr, residual_ptr, n, r, rows, N, first, ACTIVATION, HAS_BIAS, HAS_SCALE,
            HAS_RESIDUAL,
        )  # fmt: skip


@triton.jit
def _joined(y, parts_ptr, tickets_ptr, r, R: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr):
    """The sum of all parts, and whether this is the part that arrived last and has it."""
    block, split = tl.program_id(0), tl.program_id(1)
    places = r[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    base = parts_ptr + block * (SPLITS * R * BLOCK_N)
    tl.store(base + split * (R * BLOCK_N) + places, y)
    tl.debug_barrier()
    is_last = tl.atomic_add(tickets_ptr + block, 1, sem="acq_rel", scope="gpu") == SPLITS - 1
    if is_last:
        tl.store(tickets_ptr + block, 0)
        y = tl.zeros((R, BLOCK_N), dtype=tl.float32)
        for part in tl.static_range(SPLITS):
            y += tl.load(base + part * (R * BLOCK_N) + places, volatile=True)
    return y, is_last


@triton.jit
def _finish(
    y, gate, out_ptr, bias_ptr, scale_ptr, residual_ptr, n, r, rows, N, first, ACTIVATION: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_SCALE: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
):  # fmt: skip
    """Scale, bias, activation and residual, and the store."""
    in_n = n < N
    y = _scaled(y, scale_ptr + first, bias_ptr + first, n, in_n, HAS_SCALE, HAS_BIAS)
    if ACTIVATION == 1:  # the tanh form, by its sigmoid
        y = y * tl.sigmoid(1.5957691216057308 * (y + 0.044715 * y * y * y))
    if ACTIVATION == 2:
        gate = _scaled(gate, scale_ptr, bias_ptr, n, in_n, HAS_SCALE, HAS_BIAS)
        y = y * gate * tl.sigmoid(gate)
    mask = (r[:, None] < rows) & in_n[None, :]
    places = r[:, None] * N + n[None, :]
    if HAS_RESIDUAL:
        y += tl.load(residual_ptr + places, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + places, y.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _scaled(y, scale_ptr, bias_ptr, n, in_n, HAS_SCALE: tl.constexpr, HAS_BIAS: tl.constexpr):
    if HAS_SCALE:
        y *= tl.load(scale_ptr + n, mask=in_n, other=0.0)[None, :]
    if HAS_BIAS:
        y += tl.load(bias_ptr + n, mask=in_n, other=0.0).to(tl.float32)[None, :]
    return y


def padded_rows(num_rows: int) -> int:
    """Rows of the kernel: 1, or a power of two that tensor cores take."""
    return 1 if num_rows == 1 else max(16, 1 << (num_rows - 1).bit_length())


def linear(
    x_RK: Tensor,
    product: WeightProduct,
    tiles: Tiles,
    *,
    out_RN: Tensor,
    residual_RN: Tensor | None = None,
    scratch: SplitScratch | None = None,
) -> None:
    """Fill `out_RN`."""
    assert tiles.num_splits == 1 or (scratch is not None and product.activation != SILU_GATE)
    num_rows, depth = x_RK.shape
    norm = product.norm
    unused = product.weight
    arguments: tuple[Any, ...] = (
        x_RK,
        product.weight,
        out_RN,
        unused if product.bias is None else product.bias,
        unused if product.scale is None else product.scale,
        unused if residual_RN is None else residual_RN,
        unused if norm is None else norm.weight,
        unused if norm is None or norm.bias is None else norm.bias,
        unused if scratch is None else scratch.parts,
        unused if scratch is None else scratch.tickets,
        num_rows,
        product.num_outputs,
        0.0 if norm is None else norm.epsilon,
    )
    _linear_kernel[(triton.cdiv(product.num_outputs, tiles.block_n), tiles.num_splits)](
        *arguments,
        K=depth,
        R=padded_rows(num_rows),
        BLOCK_N=tiles.block_n,
        BLOCK_K=min(tiles.block_k, triton.next_power_of_2(depth)),
        NORM=NO_NORM if norm is None else norm.kind,
        ACTIVATION=product.activation,
        HAS_NORM_BIAS=norm is not None and norm.bias is not None,
        HAS_BIAS=product.bias is not None,
        HAS_SCALE=product.scale is not None,
        HAS_RESIDUAL=residual_RN is not None,
        STAGES=tiles.num_stages,
        SPLITS=tiles.num_splits,
        num_warps=tiles.num_warps,
    )


def normed(x_RK: Tensor, product: WeightProduct) -> Tensor:
    """The product's norm of its input, by PyTorch."""
    norm = product.norm
    if norm is None:
        return x_RK
    if norm.kind == RMS_NORM:
        return functional.rms_norm(x_RK, x_RK.shape[-1:], norm.weight, norm.epsilon)
    return functional.layer_norm(x_RK, x_RK.shape[-1:], norm.weight, norm.bias, norm.epsilon)


def without_norm(product: WeightProduct) -> WeightProduct:
    return replace(product, norm=None)


def reference(x_RK: Tensor, product: WeightProduct, residual_RN: Tensor | None = None) -> Tensor:
    """The same by PyTorch's operators."""
    x = normed(x_RK, product)
    y = functional.linear(x, product.weight.to(x.dtype), None if product.scale is not None else product.bias)
    if product.scale is not None:
        y = y * product.scale.to(y.dtype)
        y = y if product.bias is None else y + product.bias
    if product.activation == GELU:
        y = functional.gelu(y, approximate="tanh")
    elif product.activation == SILU_GATE:
        gate, up = y.chunk(2, dim=-1)
        y = functional.silu(gate) * up
    return y if residual_RN is None else residual_RN + y
