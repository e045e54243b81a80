"""A task of the user's own files: prompts, a tokenizer, a reward, and traces to start from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from scalewright.data.reasoning.prompt_files import PromptLine, read_prompts, read_traces
from scalewright.data.reasoning.rewards import Reward, open_reward, scores
from scalewright.data.reasoning.settings import TaskSettings
from scalewright.data.reasoning.task import Problem, Score, Split, Trace
from scalewright.data.reasoning.tokenizer import open_tokenizer, pad_token, stop_tokens
from scalewright.data.sandbox.protections import check_mode, protections_here
from scalewright.errors import ConfigError


class TextTask:
    """Prompts of a file, answered in text, with the user's reward."""

    def __init__(self, settings: TaskSettings) -> None:
        self.settings = settings
        if settings.sandbox == "strict":
            check_mode(settings.sandbox, protections_here())  # refused now, not at the first reward
        folder = Path(settings.tokenizer)
        self.tokenizer = open_tokenizer(folder)
        self._stops = stop_tokens(folder, self.tokenizer)
        self._pad = pad_token(folder, self.tokenizer, stops=self._stops)
        self._splits = self._read_splits()

    @property
    def vocab(self) -> int:
        return self.tokenizer.vocab

    @property
    def stop_tokens(self) -> frozenset[int]:
        return self._stops

    @property
    def pad_token(self) -> int:
        return self._pad

    @cached_property
    def max_prompt(self) -> int:
        longest = (len(problem.prompt) for split in self._splits.values() for problem in split)
        return self.settings.max_prompt or max(longest)

    @property
    def max_response(self) -> int:
        return self.settings.max_response

    @property
    def num_test(self) -> int:
        return len(self._splits["test"])

    def problems(self, split: Split, num: int, *, seed: int) -> list[Problem]:
        members = self._splits[split]
        if num < 1:
            raise ConfigError(f"{self.settings.prompts}: {num} problems: give 1 or more")
        if split == "test" and num > len(members):
            raise ConfigError(
                f"{num} problems to test, and {self.settings.test_prompts or self.settings.prompts} gives "
                f"{len(members)}: give fewer, more prompts, or another test_frac"
            )
        rng = np.random.default_rng([seed, 0])
        rounds = [rng.permutation(len(members)) for _ in range(-(-num // len(members)))]
        return [members[place] for place in np.concatenate(rounds)[:num]]

    def cold_start(self, num: int, *, seed: int) -> list[Trace]:
        """The traces of the file, each once before any comes again. None answers a test prompt."""
        if not self.settings.traces:
            raise ConfigError("the task has no traces to learn from: give traces, JSON lines of prompt and response")
        traces = self._traces
        rng = np.random.default_rng([seed, 1])
        rounds = [rng.permutation(len(traces)) for _ in range(-(-num // len(traces)))]
        return [traces[place] for place in np.concatenate(rounds)[:num]]

    def score(self, problem: Problem, response: Sequence[int]) -> Score:
        return self.score_many([(problem, response)])[0]

    def score_many(self, pairs: Iterable[tuple[Problem, Sequence[int]]]) -> list[Score]:
        remaining = iter(pairs)
        graded: list[Score] = []
        is_sandboxed = self.settings.sandbox != "off"  # it makes its batches itself, and runs several at once
        while batch := list(islice(remaining, None if is_sandboxed else self.settings.reward_batch)):
            rows = [
                {**problem.facts, "id": problem.id, "response": self.tokenizer.text(response)}
                for problem, response in batch
            ]
            values = self._reward.values(rows)
            graded += scores(values, rows, self.settings)
        return graded

    def text(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.text(tokens)

    def close(self) -> None:
        """End the reward's process."""
        if "_reward" in vars(self):
            self._reward.close()

    @cached_property
    def _reward(self) -> Reward:
        if not self.settings.reward:
            raise ConfigError(
                "the task has no reward: give reward as package.module:function, file.py:function or command: PROGRAM"
            )
        return open_reward(self.settings)

    @cached_property
    def _traces(self) -> list[Trace]:
        tests = {problem.facts["prompt"] for problem in self._splits["test"]}
        traces = []
        for line, text in read_traces(Path(self.settings.traces)):
            response = (*self.tokenizer.response(text), min(self._stops))
            if len(response) > self.max_response:
                raise ConfigError(
                    f"{line.where}: the response has {len(response)} tokens, and max_response is {self.max_response}: "
                    "raise it, or shorten the response"
                )
            problem = self._problem(line)
            if len(problem.prompt) > self.max_prompt:
                raise ConfigError(
                    f"{line.where}: the prompt has {len(problem.prompt)} tokens, more than the {self.max_prompt} of "
                    "the longest in the file of prompts: set max_prompt"
                )
            if line.text not in tests:
                traces.append(Trace(problem=problem, response=response))
        if not traces:
            raise ConfigError(
                f"{self.settings.traces}: every trace answers a test prompt: give traces of other prompts"
            )
        return traces

    def _read_splits(self) -> dict[str, list[Problem]]:
        """Lines with the same prompt are in the same split, whatever the file's order."""
        settings = self.settings
        lines = read_prompts(Path(settings.prompts))
        if settings.test_prompts:
            tests = read_prompts(Path(settings.test_prompts))
            train_texts = {line.text for line in lines}
            for line in tests:
                if line.text in train_texts:
                    raise ConfigError(f"{line.where}: this prompt is in {settings.prompts} too: keep it in one of them")
            return {
                "train": [self._problem(line) for line in lines],
                "test": [self._problem(line, prefix="test-") for line in tests],
            }
        texts = sorted({line.text for line in lines}, key=lambda text: hashlib.sha256(text.encode()).digest())
        if len(texts) < 2:
            raise ConfigError(f"{settings.prompts}: holds one prompt, to train or to test with: add more prompts")
        num_test = min(max(round(settings.test_frac * len(texts)), 1), len(texts) - 1)
        tests_set = set(texts[:num_test])
        splits: dict[str, list[Problem]] = {"train": [], "test": []}
        for line in lines:
            splits["test" if line.text in tests_set else "train"].append(self._problem(line))
        return splits

    def _problem(self, line: PromptLine, *, prefix: str = "") -> Problem:
        tokens = self.tokenizer.prompt(line.text)
        if len(tokens) > 1 and tokens[-1] in self._stops:
            tokens = tokens[:-1]  # some tokenizers end every text
        most = self.settings.max_prompt
        if not tokens or 0 < most < len(tokens):
            raise ConfigError(
                f"{line.where}: the prompt has {len(tokens)} tokens, and {f'1 to {most}' if most else '1 or more'} are "
                "allowed: change it, or raise max_prompt"
            )
        identity: Any = line.fields.get("id", f"{prefix}line-{line.number}")
        return Problem(id=str(identity), prompt=tokens, facts=dict(line.fields))
