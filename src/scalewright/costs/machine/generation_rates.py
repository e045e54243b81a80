"""GenerationRates: what the formulas of generation need of a machine and its engine, fitted or measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightRate:
    """The rate at which weights of a width were seen to cross memory in products of so many tokens."""

    width_bytes: float
    num_tokens: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRates:
    """Rates and times of one iteration of a serving engine. A calibration fills them from measured steps."""

    matmul_flop_per_s: Mapping[str, float]
    """Products of many tokens (prompts, large batches), by the precision they run in."""
    weight_bytes_per_s: float
    """Weights that cross memory in a decode step."""
    cache_bytes_per_s: float
    """Cached keys and values that attention reads."""
    layer_s: float
    """What a layer of a decode step takes beyond its traffic and arithmetic."""
    prompt_layer_s: float
    """The same in an iteration that reads prompts, whose kernels are launched one by one."""
    step_s: float
    """Host work of each iteration that the device waits for."""
    sequence_s: float
    """Host work for each running sequence of an iteration."""
    blend: float
    """Exponent with which arithmetic and traffic of a product join: large where they overlap fully."""
    weight_rates: tuple[WeightRate, ...] = ()
    """As measured, by the width of a weight and the tokens of a product: few rows have other kernels than many, and
    narrow weights are converted. Empty: one rate for all."""
    cache_rates_bytes_per_s: Mapping[float, float] = field(default_factory=dict)
    """As measured, by the width of a cached element. Empty: one rate for all."""

    def weight_rate_bytes_per_s(
        self, num_tokens: float | NDArray[np.float64], *, width_bytes: float
    ) -> float | NDArray[np.float64]:
        """The rate of weights in a product of so many tokens.

        Equation  log-linear between the measured numbers of tokens, constant outside of them; of the nearest width
        Source    measured steps of the engine, by the calibration
        Assumes   kernels change gradually with the rows
        Checked   tests/observe/test_generation_fit.py
        """
        if not self.weight_rates:
            return self.weight_bytes_per_s
        width = _nearest(width_bytes, [rate.width_bytes for rate in self.weight_rates])
        own = [rate for rate in self.weight_rates if rate.width_bytes == width]
        tokens, rates = np.log([rate.num_tokens for rate in own]), np.log([rate.bytes_per_s for rate in own])
        return np.exp(np.interp(np.log(np.maximum(num_tokens, 1.0)), tokens, rates))[()]

    def cache_rate_bytes_per_s(self, *, width_bytes: float) -> float:
        """The rate of cached keys and values.

        Equation  that of the nearest width that was measured
        Source    measured steps of the engine, by the calibration
        Assumes   one rate for all batches and contexts
        Checked   tests/observe/test_generation_fit.py
        """
        if not self.cache_rates_bytes_per_s:
            return self.cache_bytes_per_s
        return self.cache_rates_bytes_per_s[_nearest(width_bytes, list(self.cache_rates_bytes_per_s))]


def _nearest(width_bytes: float, widths: Sequence[float]) -> float:
    return min(widths, key=lambda width: abs(float(np.log(width / width_bytes))))
