"""GenerationRates: what the formulas of generation need of a machine and its engine, fitted or measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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
