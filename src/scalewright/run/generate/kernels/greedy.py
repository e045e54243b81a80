"""The likeliest token of every row and its log-probability, in two passes over parts of the vocabulary."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048


@triton.jit
def _parts_kernel(logits_ptr, tops_ptr, tokens_ptr, sums_ptr, V, num_blocks, BLOCK_V: tl.constexpr):
    row, block = tl.program_id(0), tl.program_id(1)
    v = block * BLOCK_V + tl.arange(0, BLOCK_V)
    x = tl.load(logits_ptr + row.to(tl.int64) * V + v, mask=v < V, other=-float("inf"))
    top, index = tl.max(x, axis=0, return_indices=True)
    cell = row * num_blocks + block
    tl.store(tops_ptr + cell, top)
    tl.store(tokens_ptr + cell, tl.minimum(block * BLOCK_V + index, V - 1))  # also if nothing is a number
    tl.store(sums_ptr + cell, tl.sum(tl.exp(x - top), axis=0))


@triton.jit
def _join_kernel(tops_ptr, tokens_ptr, sums_ptr, out_ptr, log_prob_ptr, num_blocks, PARTS: tl.constexpr):
    row, part = tl.program_id(0), tl.arange(0, PARTS)
    is_part = part < num_blocks
    tops = tl.load(tops_ptr + row * num_blocks + part, mask=is_part, other=-float("inf"))
    sums = tl.load(sums_ptr + row * num_blocks + part, mask=is_part, other=0.0)
    top, index = tl.max(tops, axis=0, return_indices=True)
    total = tl.sum(tl.where(is_part, sums * tl.exp(tops - top), 0.0), axis=0)
    tl.store(out_ptr + row, tl.load(tokens_ptr + row * num_blocks + index).to(tl.int64))
    tl.store(log_prob_ptr + row, -tl.log(total))


def greedy(logits_RV: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens and log-probabilities of fp32 scores. One that is not a number makes the log-probability none."""
    num_rows, num_tokens = logits_RV.shape
    num_blocks = triton.cdiv(num_tokens, BLOCK)
    device = logits_RV.device
    tops, sums = torch.empty(num_rows, num_blocks, device=device), torch.empty(num_rows, num_blocks, device=device)
    parts = torch.empty(num_rows, num_blocks, dtype=torch.int32, device=device)
    tokens_R = torch.empty(num_rows, dtype=torch.int64, device=device)
    log_probs_R = torch.empty(num_rows, device=device)
    _parts_kernel[(num_rows, num_blocks)](logits_RV, tops, parts, sums, num_tokens, num_blocks, BLOCK_V=BLOCK)
    _join_kernel[(num_rows,)](
        tops, parts, sums, tokens_R, log_probs_R, num_blocks, PARTS=triton.next_power_of_2(num_blocks)
    )
    return tokens_R, log_probs_R
