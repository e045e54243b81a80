"""GenerationRates: what the formulas of generation need of a machine and its engine, fitted or measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


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
    weight_rates_bytes_per_s: tuple[tuple[float, float], ...] = ()
    """Tokens of a product, and the rate at which its weights were seen to cross memory, in rising order of tokens: few
    rows have other kernels than many. Empty: one rate for all."""

    def weight_rate_bytes_per_s(self, num_tokens: float | NDArray[np.float64]) -> float | NDArray[np.float64]:
        """The rate of weights in a product of so many tokens.

        Equation  log-linear between the measured numbers of tokens, constant outside of them
        Source    measured steps of the engine, by the calibration
        Assumes   kernels change gradually with the rows
        Checked   tests/observe/test_generation_fit.py
        """
        if not self.weight_rates_bytes_per_s:
            return self.weight_bytes_per_s
        tokens, rates = (np.log(column) for column in zip(*self.weight_rates_bytes_per_s, strict=True))
        return np.exp(np.interp(np.log(np.maximum(num_tokens, 1.0)), tokens, rates))[()]
