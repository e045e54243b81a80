"""What a log says in two places: tokens of a step from its batch and the sequence length, time from batch and rate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import StepFact

FIXED_LENGTH = ("megatron", "torchtitan", "nemo", "deepspeed", "mlperf")
"""Programs whose samples all have the sequence length of the settings."""


def complete_steps(into: Evidence) -> None:
    """Fill tokens, samples and time of steps where the settings of the same log give them."""
    seq = _setting(into, "seq")
    gbs = _setting(into, "gbs")
    if gbs is None and seq is None:
        return
    into.steps[:] = [_completed(fact, seq, gbs) for fact in into.steps]


def _completed(fact: StepFact, seq: float | None, gbs: float | None) -> StepFact:
    changes: dict[str, Any] = {}
    samples = fact.num_samples
    if samples is None and gbs is not None and fact.dialect in (*FIXED_LENGTH, "huggingface"):
        samples = changes["num_samples"] = gbs
    if fact.num_tokens is None and samples is not None and seq is not None and fact.dialect in FIXED_LENGTH:
        changes["num_tokens"] = samples * seq
    rate = fact.values.get("samples_per_s")
    if fact.time_s is None and samples is not None and rate and fact.dialect == "deepspeed":
        changes["time_s"] = samples / rate
    return replace(fact, **changes) if changes else fact


def _setting(into: Evidence, name: str) -> float | None:
    try:
        return float(into.settings[name][0])
    except (KeyError, ValueError):
        return None
