"""Countdown: reach a target with given numbers, each used once, in written attempts that are verified step by step.

A prompt is `2 3 7 -> 35 :`. An answer is some attempts and then the expression of the last one:
`2 * 3 = 6 * 7 = 42 ; 2 + 3 = 5 * 7 = 35 ; ANS 2 + 3 * 7 EOS`. Expressions are read from left to right.
An answer is correct when every written step is, and the last attempt reaches the target.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from scalewright.data.reasoning.expressions import Ints, ProblemSpace, num_misses, problem_space
from scalewright.data.reasoning.settings import TaskSettings
from scalewright.data.reasoning.symbols import ANSWER, BEGIN, EQUALS, MARKS, NEXT, PAD, STOP, TARGET, Symbols
from scalewright.data.reasoning.task import Problem, Score, Split, Trace
from scalewright.data.reasoning.verification import applied, first_fault
from scalewright.errors import ConfigError

LEAST_PROBLEMS = 20
"""Fewer problems of a split say nothing about a model."""


class CountdownTask:
    """Countdown at one difficulty."""

    def __init__(self, settings: TaskSettings) -> None:
        self.settings = settings
        self.symbols = Symbols(operators=settings.operators, values=settings.values)
        self.space: ProblemSpace = problem_space(
            numbers=settings.numbers, largest=settings.largest, operators=settings.operators, values=settings.values,
            test_frac=settings.test_frac,
        )  # fmt: skip
        for split in ("train", "test"):
            num = len(self._members(split))
            if num < LEAST_PROBLEMS:
                raise ConfigError(
                    f"countdown: numbers={settings.numbers}, largest={settings.largest}, operators="
                    f"{settings.operators!r} and values={settings.values} give {num} problems to {split}, and "
                    f"{LEAST_PROBLEMS} are needed: raise numbers, largest or values, or change test_frac"
                )

    @property
    def vocab(self) -> int:
        return self.symbols.vocab

    @property
    def stop_tokens(self) -> frozenset[int]:
        return frozenset({STOP})

    @property
    def pad_token(self) -> int:
        return PAD

    @property
    def max_prompt(self) -> int:
        return self.settings.numbers + 3

    @property
    def max_response(self) -> int:
        num = self.settings.numbers
        return self.settings.attempts * (4 * num - 2) + 2 * num + 1

    @property
    def num_test(self) -> int:
        return len(self._members("test"))

    def problems(self, split: Split, num: int, *, seed: int) -> list[Problem]:
        members = self._members(split)
        if num < 1:
            raise ConfigError(f"countdown: {num} problems: give 1 or more")
        if split == "test" and num > len(members):
            raise ConfigError(
                f"countdown: {num} problems to test, and this difficulty has {len(members)}: give fewer, or raise "
                "numbers, largest or test_frac"
            )
        return [self._problem(int(index)) for index in self._shuffled(members, num, seed=seed, salt=0)]

    def cold_start(self, num: int, *, seed: int) -> list[Trace]:
        """Traces of a solver that tries random valid expressions. Those that reach the target in time are kept.

        A random attempt hits with the problem's `hit_frac`, so the number of attempts of a kept trace follows a
        geometric distribution that is cut after `attempts`.
        """
        if num < 1:
            raise ConfigError(f"countdown: {num} traces: give 1 or more")
        indices = self._shuffled(self._members("train"), num, seed=seed, salt=1)
        rng = np.random.default_rng([seed, 2])
        space, most = self.space, self.settings.attempts
        misses = num_misses(rng.random(num), space.hit_frac[indices], most=most)
        choice, start, stop = space.choice[indices], space.start[indices], space.stop[indices]
        first = space.first_valid[choice]
        hits = stop - start
        positions = first[:, None] + (rng.random((num, most)) * (space.order.shape[1] - first - hits)[:, None]).astype(
            np.int64
        )
        positions += hits[:, None] * (positions >= start[:, None])
        last = start + (rng.random(num) * hits).astype(np.int64)
        positions[np.arange(num), misses] = last
        kinds = space.order[choice[:, None], positions.clip(max=space.order.shape[1] - 1)]
        return [
            Trace(problem=self._problem(int(index)), response=self._response(int(index), kinds[row, : misses[row] + 1]))
            for row, index in enumerate(indices)
        ]

    def score(self, problem: Problem, response: Sequence[int]) -> Score:
        fault = first_fault(
            response,
            numbers=problem.facts["numbers"],
            target=problem.facts["target"],
            symbols=self.symbols,
            max_attempts=self.settings.attempts,
        )
        return Score(reward=0.0 if fault else 1.0, is_correct=not fault, why=fault or "every step is right")

    def score_many(self, pairs: Iterable[tuple[Problem, Sequence[int]]]) -> list[Score]:
        return [self.score(problem, response) for problem, response in pairs]

    def text(self, tokens: Sequence[int]) -> str:
        return self.symbols.text(tokens)

    def _members(self, split: str) -> Ints:
        return np.nonzero(self.space.is_test == (split == "test"))[0]

    def _shuffled(self, members: Ints, num: int, *, seed: int, salt: int) -> Ints:
        """`num` members in random order; every one comes once before any comes again."""
        rng = np.random.default_rng([seed, salt])
        rounds = [rng.permutation(members) for _ in range(-(-num // len(members)))]
        return np.concatenate(rounds)[:num]

    def _problem(self, index: int) -> Problem:
        numbers = tuple(int(number) for number in self.space.choices[self.space.choice[index]])
        target = int(self.space.target[index])
        first = self.symbols.first_value
        prompt = (*(first + number for number in numbers), TARGET, first + target, BEGIN)
        return Problem(
            id=f"{'-'.join(map(str, numbers))}->{target}", prompt=prompt, facts={"numbers": numbers, "target": target}
        )

    def _response(self, index: int, kinds: Sequence[int]) -> tuple[int, ...]:
        numbers = [int(number) for number in self.space.choices[self.space.choice[index]]]
        first = self.symbols.first_value
        tokens: list[int] = []
        answer: list[int] = []
        for kind in kinds:
            placed = [numbers[place] for place in self.space.places[kind]]
            value = placed[0]
            tokens.append(first + value)
            answer = [first + value]
            for number, gap in zip(placed[1:], self.space.operators[kind], strict=True):
                value = applied(self.settings.operators[gap], value, number)
                step = [len(MARKS) + int(gap), first + number]
                tokens += [*step, EQUALS, first + value]
                answer += step
            tokens.append(NEXT)
        return (*tokens, ANSWER, *answer, STOP)
