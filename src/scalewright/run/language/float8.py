"""Linear layers whose three products run in 8 bit: e4m3 for values, e5m2 for gradients, one scale per tensor.

Source  micikevicius2022 (arXiv:2209.05433): formats and per-tensor scaling; scales are taken from the tensor at hand
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

VALUES, GRADIENTS = torch.float8_e4m3fn, torch.float8_e5m2
TINY = 1e-12


def quantised(x: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """The tensor scaled into the range of an 8-bit type, and the factor that scales it back."""
    largest = torch.finfo(kind).max
    scale = largest / x.abs().amax().float().clamp(min=TINY)
    scaled = (x.float() * scale).clamp(-largest, largest).to(kind)
    return scaled, scale.reciprocal()


def product(a_MK: Tensor, a_scale: Tensor, b_KN: Tensor, b_scale: Tensor, out: torch.dtype, *, fast: bool) -> Tensor:
    """`a` row by row, `b` column by column in memory, as the tensor cores want them."""
    return torch._scaled_mm(a_MK, b_KN, scale_a=a_scale, scale_b=b_scale, out_dtype=out, use_fast_accum=fast)


class _Linear8(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TK: Tensor, w_NK: Tensor) -> Tensor:
        x8_TK, x_scale = quantised(x_TK, VALUES)
        w8_NK, w_scale = quantised(w_NK, VALUES)
        ctx.save_for_backward(x8_TK, x_scale, w8_NK, w_scale)
        return product(x8_TK, x_scale, w8_NK.t(), w_scale, x_TK.dtype, fast=True)

    @staticmethod
    def backward(ctx: Any, grad_TN: Tensor) -> tuple[Tensor, Tensor]:
        x8_TK, x_scale, w8_NK, w_scale = ctx.saved_tensors
        g8_TN, g_scale = quantised(grad_TN.contiguous(), GRADIENTS)
        grad_x = product(g8_TN, g_scale, w8_NK.t().contiguous().t(), w_scale, grad_TN.dtype, fast=False)
        x8_columns = x8_TK.t().contiguous().t()
        grad_w = product(g8_TN.t().contiguous(), g_scale, x8_columns, x_scale, grad_TN.dtype, fast=False)
        return grad_x, grad_w


class Float8Linear(nn.Linear):
    """Drop-in for `nn.Linear`; sizes must be multiples of 16."""

    def forward(self, x: Tensor) -> Tensor:
        flat: Tensor = _Linear8.apply(x.flatten(0, -2), self.weight)  # type: ignore[no-untyped-call]
        out = flat.view(*x.shape[:-1], self.out_features)
        return out if self.bias is None else out + self.bias
