"""Rotary positions, and the numbers of a layer that no parameter or FLOP count depends on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryScaling:
    """How the frequencies of a model trained on short sequences are stretched for longer ones.

    Without wavelengths, every frequency is divided by `factor` (linear interpolation). With them, only slow
    frequencies are: those that turn fewer than `low_turns` times in `original_positions`, with a smooth change up to
    `high_turns` (the rule of Llama 3.1).
    """

    factor: float
    original_positions: int = 0
    low_turns: float = 1.0
    high_turns: float = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerConstants:
    """Constants inside norms and positions; the defaults are those that `bench language` trains with."""

    norm_epsilon: float = 1e-5
    rotary_base: float = 10_000.0
    rotary_scaling: RotaryScaling | None = None


def rotate(x_BLHE: Tensor, rotary_2LE: Tensor) -> Tensor:
    """Turn each pair (e, e + E/2) by its position's angle. The table may differ from row to row: (2, B, L, E)."""
    cos_L1E, sin_L1E = rotary_2LE[0].unsqueeze(-2), rotary_2LE[1].unsqueeze(-2)
    low, high = x_BLHE.float().chunk(2, dim=-1)
    turned = torch.cat((low * cos_L1E - high * sin_L1E, high * cos_L1E + low * sin_L1E), dim=-1)
    return turned.to(x_BLHE.dtype)


def rotary_table(positions_L: Tensor, head_dim: int, constants: LayerConstants) -> Tensor:
    """Cosine and sine of every position and frequency."""
    steps = torch.arange(0, head_dim, 2, device=positions_L.device, dtype=torch.float32) / head_dim
    periods_E = constants.rotary_base ** steps[None, :]
    if constants.rotary_scaling is not None:
        periods_E = stretched(periods_E, constants.rotary_scaling)
    angles_LE = positions_L.float()[:, None] / periods_E
    return torch.stack((angles_LE.cos(), angles_LE.sin()))


def stretched(periods_E: Tensor, scaling: RotaryScaling) -> Tensor:
    """Periods (in positions per radian) of a stretched model."""
    if scaling.original_positions == 0:
        return periods_E * scaling.factor
    turns_E = scaling.original_positions / (2 * math.pi * periods_E)
    kept_E = ((turns_E - scaling.low_turns) / (scaling.high_turns - scaling.low_turns)).clamp(0.0, 1.0)
    return 1.0 / (kept_E / periods_E + (1.0 - kept_E) / (periods_E * scaling.factor))
