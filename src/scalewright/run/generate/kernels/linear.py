"""A product of few rows with a large weight, with what surrounds it: norm before, bias, activation and residual after.

A decode step reads every weight once, so these products are bound by memory. One kernel for the whole chain saves the
time between kernels, which is as long as some products of a small model. The product of one row loads its first weights
while it waits for its inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from scalewright.run.generate.kernels.launch import launch, start_next_kernel, wait_for_kernel_before
from scalewright.run.generate.kernels.norms import NO_NORM, Norm, normed_rows
from scalewright.run.generate.kernels.step_kernels import MOST_PRODUCT_SPLITS, Tiles, padded_rows

NO_ACTIVATION, GELU, SILU_GATE = 0, 1, 2


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
class SplitScratch:
    """Memory for the parts of split products, shared by all of them."""

    parts: Tensor
    tickets: Tensor
    """Zeros; the kernel leaves zeros."""


def split_scratch(num_rows: int, most_outputs: int, device: torch.device) -> SplitScratch:
    return SplitScratch(
        parts=torch.empty(MOST_PRODUCT_SPLITS * padded_rows(num_rows) * most_outputs, device=device),
        tickets=torch.zeros(most_outputs, dtype=torch.int32, device=device),
    )


@triton.jit
def _row_norm(x_ptr, K: tl.constexpr, eps, BLOCK_K: tl.constexpr, IS_LAYER: tl.constexpr):
    """Mean (0 for RMS) and inverse deviation of one row."""
    total = tl.zeros((BLOCK_K,), dtype=tl.float32)
    squares = tl.zeros((BLOCK_K,), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        x = tl.load(x_ptr + k, mask=k < K, other=0.0).to(tl.float32)
        total += x
        squares += x * x
    mean = tl.sum(total, axis=0) / K
    if not IS_LAYER:
        mean = 0.0
    variance = tl.sum(squares, axis=0) / K - mean * mean
    return mean, 1.0 / tl.sqrt(tl.maximum(variance, 0.0) + eps)


@triton.jit
def _row_inputs(
    x_ptr, norm_w_ptr, norm_b_ptr, k, mean, rstd, K: tl.constexpr, NORM: tl.constexpr, HAS_NORM_BIAS: tl.constexpr
):
    """Inputs (BLOCK_K) of one row, normed, rounded to their own type."""
    x = tl.load(x_ptr + k, mask=k < K, other=0.0)
    if NORM > 0:
        normed = (x.to(tl.float32) - mean) * rstd * tl.load(norm_w_ptr + k, mask=k < K, other=0.0).to(tl.float32)
        if HAS_NORM_BIAS:
            normed += tl.load(norm_b_ptr + k, mask=k < K, other=0.0).to(tl.float32)
        x = normed.to(x.dtype)
    return x.to(tl.float32)


@triton.jit
def _vector_kernel(
    x_ptr, w_ptr, out_ptr, bias_ptr, scale_ptr, residual_ptr, norm_w_ptr, norm_b_ptr, parts_ptr, tickets_ptr,
    N, eps,
    K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, NORM: tl.constexpr, ACTIVATION: tl.constexpr,
    HAS_NORM_BIAS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SCALE: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    SPLITS: tl.constexpr, EARLY: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """BLOCK_N outputs of one row, summed without tensor cores; weights are loaded a block ahead."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_n = (n < N)[:, None]
    EACH: tl.constexpr = ((K + SPLITS * BLOCK_K - 1) // (SPLITS * BLOCK_K)) * BLOCK_K
    begin = tl.program_id(1) * EACH
    end = tl.minimum(begin + EACH, K)
    gates = w_ptr + n[:, None].to(tl.int64) * K
    weights = gates
    if ACTIVATION == 2:
        weights += N.to(tl.int64) * K
    k = begin + tl.arange(0, BLOCK_K)
    w = tl.load(weights + k[None, :], mask=in_n & (k < end)[None, :], other=0.0)
    g = w
    if ACTIVATION == 2:
        g = tl.load(gates + k[None, :], mask=in_n & (k < end)[None, :], other=0.0)
    wait_for_kernel_before(OVERLAP)
    start_next_kernel(OVERLAP, EARLY)
    mean, rstd = 0.0, 1.0
    if NORM > 0:
        mean, rstd = _row_norm(x_ptr, K, eps, BLOCK_K, NORM == 2)
    sums = tl.zeros((BLOCK_N, BLOCK_K), dtype=tl.float32)
    gate_sums = sums
    for start in tl.range(begin, begin + EACH, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        x = _row_inputs(x_ptr, norm_w_ptr, norm_b_ptr, k, mean, rstd, K, NORM, HAS_NORM_BIAS)[None, :]
        later = k + BLOCK_K
        is_there = in_n & (later < end)[None, :]
        next_w = tl.load(weights + later[None, :], mask=is_there, other=0.0)
        sums += w.to(tl.float32) * x
        w = next_w
        if ACTIVATION == 2:
            next_g = tl.load(gates + later[None, :], mask=is_there, other=0.0)
            gate_sums += g.to(tl.float32) * x
            g = next_g
    start_next_kernel(OVERLAP, not EARLY)
    _finish(
        tl.sum(sums, axis=1)[:, None], tl.sum(gate_sums, axis=1)[:, None], out_ptr, bias_ptr, scale_ptr, residual_ptr,
        parts_ptr, tickets_ptr, n, 1, N, 1, BLOCK_N, ACTIVATION, HAS_BIAS, HAS_SCALE, HAS_RESIDUAL, SPLITS,
    )  # fmt: skip


@triton.jit
def _in_type(w, kind: tl.constexpr, IS_8_BIT: tl.constexpr):
    """Weights in the type of the inputs. From e4m3 to bf16, four at a time: sign and the other bits go to their places,
    and a factor of 2 ** 120 mends the exponent. The compiler's own conversion by fp16 is four times slower."""
    if IS_8_BIT:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 low, high, low_sign, high_sign, factor, zero;
            mov.b32 factor, 0x7b807b80;
            mov.b32 zero, 0x80008000;
            prmt.b32 low, $2, 0, 0x1404;
            prmt.b32 high, $2, 0, 0x3424;
            and.b32 low_sign, low, 0x80008000;
            and.b32 high_sign, high, 0x80008000;
            shr.b32 low, low, 4;
            shr.b32 high, high, 4;
            and.b32 low, low, 0x07f007f0;
            and.b32 high, high, 0x07f007f0;
            or.b32 low, low, low_sign;
            or.b32 high, high, high_sign;
            fma.rn.bf16x2 $0, low, factor, zero;
            fma.rn.bf16x2 $1, high, factor, zero;
            }""",
            "=r,=r,r", [w.to(tl.uint8, bitcast=True)], dtype=tl.bfloat16, is_pure=True, pack=4,
        )  # fmt: skip
    return w.to(kind)


@triton.jit
def _rows_kernel(
    x_ptr, w_ptr, out_ptr, bias_ptr, scale_ptr, residual_ptr, parts_ptr, tickets_ptr, rows, N,
    K: tl.constexpr, R: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, ACTIVATION: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_SCALE: tl.constexpr, HAS_RESIDUAL: tl.constexpr, STAGES: tl.constexpr,
    SPLITS: tl.constexpr, EARLY: tl.constexpr, IS_8_BIT: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """BLOCK_N outputs of R rows by tensor cores: weights times inputs, since weights fill the larger side."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    r = tl.arange(0, R)
    EACH: tl.constexpr = ((K + SPLITS * BLOCK_K - 1) // (SPLITS * BLOCK_K)) * BLOCK_K
    begin = tl.program_id(1) * EACH
    gates = w_ptr + n[:, None].to(tl.int64) * K
    weights = gates
    if ACTIVATION == 2:
        weights += N.to(tl.int64) * K
    wait_for_kernel_before(OVERLAP)
    start_next_kernel(OVERLAP, EARLY)
    sums = tl.zeros((BLOCK_N, R), dtype=tl.float32)
    gate_sums = sums
    for start in tl.range(begin, begin + EACH, BLOCK_K, num_stages=STAGES):
        k = start + tl.arange(0, BLOCK_K)
        is_there = (n < N)[:, None] & (k < K)[None, :]
        w = tl.load(weights + k[None, :], mask=is_there, other=0.0)
        x = tl.load(x_ptr + r[:, None] * K + k[None, :], mask=(r < rows)[:, None] & (k < K)[None, :], other=0.0)
        sums = tl.dot(_in_type(w, x.dtype, IS_8_BIT), tl.trans(x), sums, input_precision="ieee")
        if ACTIVATION == 2:
            g = tl.load(gates + k[None, :], mask=is_there, other=0.0)
            gate_sums = tl.dot(_in_type(g, x.dtype, IS_8_BIT), tl.trans(x), gate_sums, input_precision="ieee")
    start_next_kernel(OVERLAP, not EARLY)
    _finish(
        sums, gate_sums, out_ptr, bias_ptr, scale_ptr, residual_ptr, parts_ptr, tickets_ptr, n, rows, N, R, BLOCK_N,
        ACTIVATION, HAS_BIAS, HAS_SCALE, HAS_RESIDUAL, SPLITS,
    )  # fmt: skip


@triton.jit
def _finish(
    y, gate, out_ptr, bias_ptr, scale_ptr, residual_ptr, parts_ptr, tickets_ptr, n, rows, N, R: tl.constexpr,
    BLOCK_N: tl.constexpr, ACTIVATION: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SCALE: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """The sum (BLOCK_N, R) of all parts with scale, bias, activation and residual, and its store."""
    r = tl.arange(0, R)
    is_last = True
    if SPLITS > 1:
        y, is_last = _joined(y, parts_ptr, tickets_ptr, r, R, BLOCK_N, SPLITS)
    if is_last:
        in_n = n < N
        first = 0
        if ACTIVATION == 2:
            first = N
        y = _scaled(y, scale_ptr + first, bias_ptr + first, n, in_n, HAS_SCALE, HAS_BIAS)
        if ACTIVATION == 1:  # the tanh form, by its sigmoid
            y = y * tl.sigmoid(1.5957691216057308 * (y + 0.044715 * y * y * y))
        if ACTIVATION == 2:
            gate = _scaled(gate, scale_ptr, bias_ptr, n, in_n, HAS_SCALE, HAS_BIAS)
            y = y * gate * tl.sigmoid(gate)
        is_there = in_n[:, None] & (r < rows)[None, :]
        places = r[None, :] * N + n[:, None]
        if HAS_RESIDUAL:
            y += tl.load(residual_ptr + places, mask=is_there, other=0.0).to(tl.float32)
        tl.store(out_ptr + places, y.to(out_ptr.dtype.element_ty), mask=is_there)


@triton.jit
def _joined(y, parts_ptr, tickets_ptr, r, R: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr):
    """The sum of all parts, and whether this is the part that arrived last and has it."""
    block, split = tl.program_id(0), tl.program_id(1)
    places = r[None, :] * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
    base = parts_ptr + block * (SPLITS * R * BLOCK_N)
    tl.store(base + split * (R * BLOCK_N) + places, y)
    tl.debug_barrier()
    is_last = tl.atomic_add(tickets_ptr + block, 1, sem="acq_rel", scope="gpu") == SPLITS - 1
    if is_last:
        tl.store(tickets_ptr + block, 0)
        y = tl.zeros((BLOCK_N, R), dtype=tl.float32)
        for part in tl.static_range(SPLITS):
            y += tl.load(base + part * (R * BLOCK_N) + places, volatile=True)
    return y, is_last


@triton.jit
def _scaled(y, scale_ptr, bias_ptr, n, in_n, HAS_SCALE: tl.constexpr, HAS_BIAS: tl.constexpr):
    if HAS_SCALE:
        y *= tl.load(scale_ptr + n, mask=in_n, other=0.0)[:, None]
    if HAS_BIAS:
        y += tl.load(bias_ptr + n, mask=in_n, other=0.0).to(tl.float32)[:, None]
    return y


def linear(
    x_RK: Tensor,
    product: WeightProduct,
    tiles: Tiles,
    *,
    out_RN: Tensor,
    residual_RN: Tensor | None = None,
    scratch: SplitScratch | None = None,
) -> None:
    """Fill `out_RN`. The norm of one row is part of the kernel; that of more is one before it."""
    assert tiles.num_splits == 1 or (scratch is not None and product.activation != SILU_GATE)
    num_rows, depth = x_RK.shape
    is_vector = num_rows == 1
    if not is_vector:
        x_RK, product = normed(x_RK, product), replace(product, norm=None)
    norm, unused = product.norm, product.weight
    ends: tuple[Any, ...] = (
        x_RK,
        product.weight,
        out_RN,
        unused if product.bias is None else product.bias,
        unused if product.scale is None else product.scale,
        unused if residual_RN is None else residual_RN,
    )
    norms = (unused if norm is None else norm.weight, unused if norm is None or norm.bias is None else norm.bias)
    parts = (unused, unused) if scratch is None else (scratch.parts, scratch.tickets)
    common: dict[str, Any] = {
        "K": depth, "BLOCK_N": tiles.block_n, "BLOCK_K": min(tiles.block_k, triton.next_power_of_2(depth)),
        "ACTIVATION": product.activation, "HAS_BIAS": product.bias is not None,
        "HAS_SCALE": product.scale is not None, "HAS_RESIDUAL": residual_RN is not None, "SPLITS": tiles.num_splits,
        "EARLY": tiles.is_early, "num_warps": tiles.num_warps,
    }  # fmt: skip
    grid = (triton.cdiv(product.num_outputs, tiles.block_n), tiles.num_splits)
    if is_vector:
        launch(
            _vector_kernel, grid, x_RK.device, *ends, *norms, *parts,
            product.num_outputs, 0.0 if norm is None else norm.epsilon,
            NORM=NO_NORM if norm is None else norm.kind, HAS_NORM_BIAS=norm is not None and norm.bias is not None,
            **common,
        )  # fmt: skip
    else:
        launch(
            _rows_kernel, grid, x_RK.device, *ends, *parts, num_rows, product.num_outputs,
            R=padded_rows(num_rows), STAGES=tiles.num_stages, IS_8_BIT=_is_8_bit(x_RK, product), **common,
        )  # fmt: skip


def _is_8_bit(x_RK: Tensor, product: WeightProduct) -> bool:
    """Whether weights are converted by instructions of NVIDIA's devices."""
    is_nvidia = x_RK.device.type == "cuda" and torch.version.hip is None
    return is_nvidia and product.weight.dtype == torch.float8_e4m3fn and x_RK.dtype == torch.bfloat16


def normed(x_RK: Tensor, product: WeightProduct) -> Tensor:
    """The product's norm of its input."""
    return x_RK if product.norm is None else normed_rows(x_RK, product.norm)


def by_library(x_RK: Tensor, product: WeightProduct, residual_RN: Tensor | None = None) -> Tensor:
    """The same with the vendor's product and PyTorch's operators around it."""
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
