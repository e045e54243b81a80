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


def run_tests(*, prompts: Sequence[str], completions: Sequence[str], tests: Sequence[str], **_: Any) -> list[Any]:
    """1 where the response is Python code that passes the asserts of the field `tests`, run in the sandbox.

    As a task's reward it needs `--sandbox auto` or `strict`, and has the task's limits; called from Python it has the
    sandbox's own.
    """
    from scalewright.data.reasoning.sandboxed_rewards import RewardFailure, TestsReward, open_pool
    from scalewright.data.sandbox.types import SandboxLimits

    del prompts
    rows = [
        {"id": place, "response": text, "tests": code}
        for place, (text, code) in enumerate(zip(completions, tests, strict=True))
    ]
    reward = TestsReward(open_pool(SandboxLimits()))
    try:
        values = reward.values(rows)
    finally:
        reward.close()
    return [
        {"reward": 0.0, "is_correct": False, "why": one.why} if isinstance(one, RewardFailure) else one
        for one in values
    ]
