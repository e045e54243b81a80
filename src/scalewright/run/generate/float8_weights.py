"""Weights rounded row by row, and linear layers that store them in 8 bit and multiply in 16 bit or more.

Source  micikevicius2022 (arXiv:2209.05433): the format e4m3
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

STORED = torch.float8_e4m3fn
TINY = 1e-12


def quantised_rows(w_NK: Tensor) -> tuple[Tensor, Tensor]:
    """The weight in 8 bit, and the factor of each row that scales it back."""
    largest = torch.finfo(STORED).max
    scale_N = w_NK.float().abs().amax(dim=1).clamp(min=TINY) / largest
    return (w_NK.float() / scale_N[:, None]).clamp(-largest, largest).to(STORED), scale_N


def rounded_rows(w_NK: Tensor, num_bits: int) -> Tensor:
    """The weight rounded to whole multiples of a step of its row, as integers of so many bits would store it.

    Equation  step = max |w| / (2^(bits - 1) - 1) of each row;  w -> step round(w / step)
    """
    largest = 2 ** (num_bits - 1) - 1
    step_N1 = w_NK.float().abs().amax(dim=1, keepdim=True).clamp(min=TINY) / largest
    rounded_NK: Tensor = (w_NK.float() / step_N1).round() * step_N1
    return rounded_NK


class StoredFloat8Linear(nn.Linear):
    """Drop-in for `nn.Linear` in inference."""

    scale_N: Tensor

    def store(self, weight: Tensor, scale_N: Tensor) -> None:
        """Take this storage for the weight and its scales."""
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.register_buffer("scale_N", scale_N, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        out = functional.linear(x, self.weight.to(x.dtype)) * self.scale_N.to(x.dtype)
        return out if self.bias is None else out + self.bias
