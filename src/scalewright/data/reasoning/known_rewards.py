"""Rewards that need no code of the user's: name them as `scalewright.data.reasoning.known_rewards:last_number`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def exact_answer(*, prompts: Sequence[str], completions: Sequence[str], answer: Sequence[Any], **_: Any) -> list[float]:
    """1 where the response is the field `answer`, apart from blanks around it."""
    del prompts
    return [float(str(text).strip() == str(right).strip()) for text, right in zip(completions, answer, strict=True)]


def last_number(*, prompts: Sequence[str], completions: Sequence[str], answer: Sequence[Any], **_: Any) -> list[Any]:
    """1 where the last number of the response is the last number of the field `answer`, as in GSM8K."""
    del prompts
    return [_compared(text, str(right)) for text, right in zip(completions, answer, strict=True)]


def _compared(text: str, right: str) -> dict[str, Any]:
    expected = _last(right)
    if expected is None:
        raise ValueError(f"answer {right!r} holds no number")
    written = _last(text)
    is_right = written == expected
    why = "no number is written" if written is None else f"the last number is {written:g}, and {expected:g} is right"
    return {"reward": float(is_right), "is_correct": is_right, "why": "the last number is right" if is_right else why}


def _last(text: str) -> float | None:
    numbers = NUMBER.findall(text)
    return float(numbers[-1].replace(",", "")) if numbers else None
