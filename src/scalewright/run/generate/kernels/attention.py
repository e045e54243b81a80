"""Attention of one new token per sequence over its pages, split over the context.

The kernel takes the fused projection: it norms and rotates queries and keys, stores the new key and value in the cache
and attends. The part of a sequence that finishes last adds the parts up, so no second kernel follows.

Source  flash decoding: dao2023 (arXiv:2307.08691), the split over keys with a sum of weighted parts
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from scalewright.run.generate.kernels.launch import launch, start_next_kernel, wait_for_kernel_before
from scalewright.run.generate.kernels.step_kernels import MOST_ATTENTION_SPLITS, AttentionTiles


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionInputs:
    """What all layers share in one step."""

    positions_R: Tensor
    """Of the new token; int32."""
    pages_RN: Tensor
    """int32."""
    rotary_2LE: Tensor | None
    parts_RHSE: Tensor
    """Scratch for the parts, fp32."""
    sums_RHS: Tensor
    tickets_RG: Tensor
    """Zeros; the kernel leaves zeros."""


@triton.jit
def _half_pair(ptr, half, other_ptr, eps, cos, sin, IS_NORMED: tl.constexpr, ROTARY: tl.constexpr, HALF: tl.constexpr):
    """The two halves of a head (Q, E/2), normed and rotated, rounded to their own type in between as PyTorch does."""
    low, high = tl.load(ptr + half), tl.load(ptr + HALF + half)
    kind = low.dtype
    if IS_NORMED:
        a, b = low.to(tl.float32), high.to(tl.float32)
        rstd = 1.0 / tl.sqrt((tl.sum(a * a, axis=1) + tl.sum(b * b, axis=1)) / (2 * HALF) + eps)
        low = (a * rstd[:, None] * tl.load(other_ptr + half).to(tl.float32)).to(kind)
        high = (b * rstd[:, None] * tl.load(other_ptr + HALF + half).to(tl.float32)).to(kind)
    if ROTARY:
        a, b = low.to(tl.float32), high.to(tl.float32)
        low = (a * cos - b * sin).to(kind)
        high = (b * cos + a * sin).to(kind)
    return low, high


@triton.jit
def _scan_pages(
    q_low, q_high, keys_ptr, values_ptr, page_row, split, position, g, half, whole, page_stride, head_stride,
    token_stride, pages_stride, scale,
    PAD_Q: tl.constexpr, E: tl.constexpr, P: tl.constexpr, SPLITS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """This part's weighted values (Q, E), the sum of weights, and the largest score that both are relative to."""
    num_pages = tl.cdiv(position, P)
    each = tl.cdiv(num_pages, SPLITS)
    first = split * each
    last = tl.minimum(first + each, num_pages)
    t = tl.arange(0, P)
    LANES: tl.constexpr = P if PAD_Q == 1 else PAD_Q
    m = tl.full((LANES,), -1e30, dtype=tl.float32)
    total = tl.zeros((LANES,), dtype=tl.float32)
    acc = tl.zeros((LANES, E), dtype=tl.float32)
    page = tl.load(page_row + tl.minimum(first, pages_stride - 1))
    for index in tl.range(first, last, num_stages=STAGES):
        if STAGES > 1:  # the compiler loads ahead, through shared memory
            page = tl.load(page_row + index)
        start = page.to(tl.int64) * page_stride + g * head_stride
        if STAGES == 1:
            page = tl.load(page_row + tl.minimum(index + 1, last - 1))
        cached = (index * P + t) < position
        k_ptrs = keys_ptr + start + t[:, None] * token_stride + half
        v_ptrs = values_ptr + start + t[:, None] * token_stride + whole[None, :]
        k_low = tl.load(k_ptrs, mask=cached[:, None], other=0.0, eviction_policy="evict_first")
        k_high = tl.load(k_ptrs + E // 2, mask=cached[:, None], other=0.0, eviction_policy="evict_first")
        v = tl.load(v_ptrs, mask=cached[:, None], other=0.0, eviction_policy="evict_first")
        if PAD_Q == 1:  # each token of a page keeps a sum of its own: nothing is exchanged inside the loop
            s = tl.sum(k_low.to(tl.float32) * q_low.to(tl.float32), axis=1)
            s += tl.sum(k_high.to(tl.float32) * q_high.to(tl.float32), axis=1)
            s = tl.where(cached, s * scale, -1e30)
            m_new = tl.maximum(m, s)
            shrink = tl.exp(m - m_new)
            p = tl.where(cached, tl.exp(s - m_new), 0.0)
            total = total * shrink + p
            acc = acc * shrink[:, None] + p[:, None] * v.to(tl.float32)
        else:
            s = tl.dot(q_low, tl.trans(k_low), input_precision="ieee")
            s = tl.dot(q_high, tl.trans(k_high), s, input_precision="ieee")
            s = tl.where(cached[None, :], s * scale, -1e30)
            m_new = tl.maximum(m, tl.max(s, axis=1))
            shrink = tl.exp(m - m_new)
            p = tl.where(cached[None, :], tl.exp(s - m_new[:, None]), 0.0)
            total = total * shrink + tl.sum(p, axis=1)
            acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        m = m_new
    if PAD_Q == 1:
        top = tl.max(m, axis=0, keep_dims=True)
        weights = tl.exp(m - top)
        acc = tl.sum(acc * weights[:, None], axis=0, keep_dims=True)
        total = tl.sum(total * weights, axis=0, keep_dims=True)
        m = top
    return acc, total, m


@triton.jit
def _decode_kernel(
    qkv_ptr, keys_ptr, values_ptr, out_ptr, positions_ptr, pages_ptr, rotary_ptr, q_norm_ptr, k_norm_ptr,
    parts_ptr, sums_ptr, tickets_ptr, qkv_stride, page_stride, head_stride, token_stride, pages_stride, rotary_stride,
    eps, scale,
    G: tl.constexpr, Q: tl.constexpr, PAD_Q: tl.constexpr, E: tl.constexpr, P: tl.constexpr, SPLITS: tl.constexpr,
    ROTARY: tl.constexpr, NORMED: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One part of a sequence for the Q query heads of one key head; the first part also has the new token."""
    HALF: tl.constexpr = E // 2
    g, row, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    position = tl.load(positions_ptr + row)
    half = tl.arange(0, HALF)[None, :]
    whole = tl.arange(0, E)
    q_rows = tl.arange(0, PAD_Q)
    cos = tl.zeros((1, HALF), dtype=tl.float32)
    sin = cos
    if ROTARY:
        cos = tl.load(rotary_ptr + position * HALF + half)
        sin = tl.load(rotary_ptr + rotary_stride + position * HALF + half)
    page_row = pages_ptr + row.to(tl.int64) * pages_stride
    wait_for_kernel_before(OVERLAP)
    start_next_kernel(OVERLAP, EARLY)
    base = qkv_ptr + row * qkv_stride + g * (Q + 2) * E
    q_base = base + tl.minimum(q_rows, Q - 1)[:, None] * E
    q_low, q_high = _half_pair(q_base, half, q_norm_ptr, eps, cos, sin, NORMED, ROTARY, HALF)
    o, norm, m = _scan_pages(
        q_low, q_high, keys_ptr, values_ptr, page_row, split, position, g, half, whole, page_stride, head_stride,
        token_stride, pages_stride, scale, PAD_Q, E, P, SPLITS, STAGES,
    )  # fmt: skip
    start_next_kernel(OVERLAP, not EARLY)
    if split == 0:
        k_low, k_high = _half_pair(base + Q * E, half, k_norm_ptr, eps, cos, sin, NORMED, ROTARY, HALF)
        v_new = tl.load(base + (Q + 1) * E + whole)
        here = tl.load(page_row + position // P).to(tl.int64) * page_stride + g * head_stride
        here += (position % P) * token_stride
        tl.store(keys_ptr + here + half, k_low)
        tl.store(keys_ptr + here + HALF + half, k_high)
        tl.store(values_ptr + here + whole, v_new)
        s_new = tl.sum(q_low.to(tl.float32) * k_low.to(tl.float32), axis=1)
        s_new = (s_new + tl.sum(q_high.to(tl.float32) * k_high.to(tl.float32), axis=1)) * scale
        m_new = tl.maximum(m, s_new)
        shrink, p_new = tl.exp(m - m_new), tl.exp(s_new - m_new)
        o = o * shrink[:, None] + p_new[:, None] * v_new.to(tl.float32)[None, :]
        norm = norm * shrink + p_new
        m = m_new
    heads = row * (G * Q) + g * Q + q_rows
    in_q = q_rows < Q
    if SPLITS == 1:
        places = heads[:, None] * E + whole[None, :]
        tl.store(out_ptr + places, (o / norm[:, None]).to(out_ptr.dtype.element_ty), mask=in_q[:, None])
    else:
        is_empty = norm == 0.0
        cells = heads * SPLITS + split
        safe = tl.where(is_empty, 1.0, norm)
        tl.store(parts_ptr + cells[:, None] * E + whole[None, :], o / safe[:, None], mask=in_q[:, None])
        tl.store(sums_ptr + cells, tl.where(is_empty, -1e30, m + tl.log(safe)), mask=in_q)
        _add_up(parts_ptr, sums_ptr, tickets_ptr, out_ptr, row, g, G, Q, E, SPLITS)


@triton.jit
def _add_up(
    parts_ptr, sums_ptr, tickets_ptr, out_ptr, row, g, G: tl.constexpr, Q: tl.constexpr, E: tl.constexpr,
    SPLITS: tl.constexpr,
):  # fmt: skip
    """The last part to arrive weighs and adds all parts, and leaves the ticket at zero for the next layer."""
    tl.debug_barrier()
    ticket = tl.atomic_add(tickets_ptr + row * G + g, 1, sem="acq_rel", scope="gpu")
    if ticket == SPLITS - 1:
        tl.store(tickets_ptr + row * G + g, 0)
        splits, whole = tl.arange(0, SPLITS), tl.arange(0, E)
        for q in range(Q):
            cells = (row * (G * Q) + g * Q + q) * SPLITS + splits
            sums = tl.load(sums_ptr + cells, volatile=True)
            weights = tl.exp(sums - tl.max(sums, axis=0))
            parts = tl.load(parts_ptr + cells[:, None] * E + whole[None, :], volatile=True)
            o = tl.sum(parts * weights[:, None], axis=0) / tl.sum(weights, axis=0)
            place = (row * (G * Q) + g * Q + q) * E + whole
            tl.store(out_ptr + place, o.to(out_ptr.dtype.element_ty))


def decode_attention(
    qkv_RW: Tensor,
    keys_NPGE: Tensor,
    values_NPGE: Tensor,
    inputs: AttentionInputs,
    tiles: AttentionTiles,
    *,
    out_RW: Tensor,
    query_norm: Tensor | None = None,
    key_norm: Tensor | None = None,
    epsilon: float = 0.0,
) -> None:
    """Fill `out_RW` (heads joined), and put the new keys and values into the cache."""
    num_rows = qkv_RW.shape[0]
    _, page_tokens, num_groups, head_dim = keys_NPGE.shape
    per_group = out_RW.shape[1] // (num_groups * head_dim)
    rotary = inputs.rotary_2LE
    launch(
        _decode_kernel,
        (num_groups, num_rows, tiles.num_splits),
        qkv_RW.device,
        qkv_RW,
        keys_NPGE,
        values_NPGE,
        out_RW,
        inputs.positions_R,
        inputs.pages_RN,
        inputs.sums_RHS if rotary is None else rotary,
        qkv_RW if query_norm is None else query_norm,
        qkv_RW if key_norm is None else key_norm,
        inputs.parts_RHSE,
        inputs.sums_RHS,
        inputs.tickets_RG,
        qkv_RW.stride(0),
        keys_NPGE.stride(0),
        keys_NPGE.stride(2),
        keys_NPGE.stride(1),
        inputs.pages_RN.stride(0),
        0 if rotary is None else rotary.stride(0),
        epsilon,
        head_dim**-0.5,
        G=num_groups,
        Q=per_group,
        PAD_Q=1 if per_group == 1 and not tiles.uses_dot else max(16, triton.next_power_of_2(per_group)),
        E=head_dim,
        P=page_tokens,
        SPLITS=tiles.num_splits,
        ROTARY=rotary is not None,
        NORMED=query_norm is not None,
        STAGES=tiles.num_stages,
        EARLY=tiles.is_early,
        num_warps=tiles.num_warps,
    )


def scratch(num_rows: int, num_heads: int, num_groups: int, head_dim: int, device: torch.device) -> dict[str, Tensor]:
    """Memory for the parts of all splits, shared by all layers."""
    return {
        "parts_RHSE": torch.empty(num_rows * num_heads * MOST_ATTENTION_SPLITS * head_dim, device=device),
        "sums_RHS": torch.empty(num_rows * num_heads * MOST_ATTENTION_SPLITS, device=device),
        "tickets_RG": torch.zeros(num_rows * num_groups, dtype=torch.int32, device=device),
    }
