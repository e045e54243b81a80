"""What every task offers to the stages: problems, traces to start from, and the score of an answer.

A task knows nothing of models. Prompts and answers are token ids. A score comes with a phrase for people.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from scalewright.data.reasoning.settings import TaskSettings

Split = Literal["train", "test"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One question. Two problems with the same id are the same question."""

    id: str
    prompt: tuple[int, ...]
    """Token ids."""
    facts: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """What the score needs: the numbers and the target, or the fields of the user's line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A written answer to learn from."""

    problem: Problem
    response: tuple[int, ...]
    """Token ids, with the stop token at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What an answer is worth."""

    reward: float
    """Finite."""
    is_correct: bool
    why: str
    """One phrase for people: `step 2: 3 * 4 = 13 is wrong`."""
    failure: str = ""
    """How the reward itself failed, as the sandbox counts it (time, memory, ...); empty: it did not."""

    def __post_init__(self) -> None:
        assert math.isfinite(self.reward), "a task refuses rewards that are not finite"


class Task(Protocol):
    """A source of problems with a score that can be computed."""

    @property
    def vocab(self) -> int: ...

    @property
    def stop_tokens(self) -> frozenset[int]: ...

    @property
    def pad_token(self) -> int: ...

    @property
    def max_prompt(self) -> int: ...

    @property
    def max_response(self) -> int:
        """Tokens, with the stop token."""
        ...

    @property
    def num_test(self) -> int:
        """Problems of the test split."""
        ...

    def problems(self, split: Split, num: int, *, seed: int) -> list[Problem]:
        """Problems of one split, in an order by the seed. No problem is in both splits, whatever the seeds.

        Training problems repeat when `num` is above what there are; test problems do not, and too many are refused.
        """
        ...

    def cold_start(self, num: int, *, seed: int) -> list[Trace]:
        """Traces of training problems for the first supervised stage."""
        ...

    def score(self, problem: Problem, response: Sequence[int]) -> Score: ...

    def score_many(self, pairs: Iterable[tuple[Problem, Sequence[int]]]) -> list[Score]:
        """The scores of many answers, in their order."""
        ...

    def text(self, tokens: Sequence[int]) -> str:
        """Tokens as people read them."""
        ...


def open_task(settings: TaskSettings) -> Task:
    """The task that the settings describe."""
    if settings.kind == "countdown":
        from scalewright.data.reasoning.countdown import CountdownTask

        return CountdownTask(settings)
    from scalewright.data.reasoning.text_task import TextTask

    return TextTask(settings)
