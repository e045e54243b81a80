"""Context: the longest sequence of a request beside what the positions of a model allow and were trained for."""

from __future__ import annotations

import math

from scalewright.errors import ConfigError
from scalewright.planner.generation import Generation
from scalewright.workload.model import ModelSpec
from scalewright.workload.rl import RlStep

NEARLY_LONGEST_FRAC = 0.999
"""Lengths without a limit are taken up to this quantile."""


def longest_context(stage: Generation | RlStep) -> int:
    """Tokens of the longest prompt with the longest answer."""
    if isinstance(stage, RlStep):
        return stage.longest_sequence
    prompts = stage.prompt_lengths
    longest = prompts.longest if math.isfinite(prompts.longest) else prompts.quantile(NEARLY_LONGEST_FRAC)
    return round(longest) + stage.longest


def check_context(spec: ModelSpec, context: int) -> None:
    """Refuse sequences that a table of learned positions has no rows for."""
    shape = spec.transformer
    if shape.positions == "learned" and context > shape.num_positions:
        raise ConfigError(
            f"{spec.id} has {shape.num_positions} learned positions, and the longest request needs {context}: give "
            "shorter lengths"
        )


def check_stage_context(spec: ModelSpec, stage: Generation | RlStep) -> None:
    if not spec.is_vision:
        check_context(spec, longest_context(stage))


def context_notes(spec: ModelSpec, context: int) -> list[str]:
    """What to check where positions without a table go beyond the length that a model was trained with."""
    shape = spec.transformer
    trained = max(shape.seq, shape.context)
    if shape.positions == "learned" or context <= trained:
        return []
    return [
        f"the longest sequence has {context:,} tokens, and {spec.id} was trained with {trained:,}: time and memory "
        "hold, but answers may be useless unless your checkpoint was extended to that context"
    ]
