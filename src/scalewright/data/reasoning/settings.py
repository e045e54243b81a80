"""TaskSettings: everything that decides a task, resolved. The same settings give the same problems everywhere."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from scalewright import units
from scalewright.data.sandbox.types import SandboxLimits, SandboxMode
from scalewright.errors import ConfigError

TaskKind = Literal["countdown", "files"]
OPERATORS = "+-*/"
MOST_NUMBERS = 5
"""More numbers have so many expressions that listing them takes minutes."""
MOST_VALUES = 10_000
"""A value is one token: more values need larger models, not harder problems."""
MOST_ATTEMPTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings:
    """A countdown task by its difficulty, or a task of the user's own files."""

    kind: TaskKind = "countdown"

    numbers: int = 3
    """Countdown: numbers of a problem. Each is used once, from left to right."""
    largest: int = 9
    """Countdown: numbers are from 1 up to this."""
    operators: str = "+-*"
    """Countdown: those of `+-*/` that an expression may use."""
    values: int = 100
    """Countdown: every intermediate value and target is from 0 up to this, exclusive. Each is one token."""
    attempts: int = 3
    """Countdown: most attempts that an answer may write."""

    prompts: str = ""
    """Files: JSON lines with `prompt`, or plain text with one prompt a line; by the full path."""
    test_prompts: str = ""
    """Files: the same for the test split. Empty: `test_frac` of the prompts."""
    reward: str = ""
    """Files: `package.module:function`, `file.py:function`, or `command: PROGRAM ARGUMENTS`."""
    tokenizer: str = ""
    """Files: Hugging Face folder with tokenizer.json."""
    traces: str = ""
    """Files: JSON lines with `prompt` and `response`, for supervised fine-tuning."""
    max_prompt: int = 0
    """Files: tokens; a longer prompt is refused. 0: as many as the longest prompt of the files has."""
    max_response: int = 1024
    """Files: tokens of an answer."""
    reward_timeout_s: float = 60.0
    """Files: longest time for one batch of answers; in the sandbox, of one answer that runs alone as well."""
    sandbox: SandboxMode = "off"
    """Files: off: the reward has the rights of the user; auto: it runs with what the host permits; strict: with every
    protection, or not at all."""
    reward_memory_bytes: int = 512 * units.MIB
    """Files: memory of one job in the sandbox."""
    broken_reward: float = 0.0
    """Files: reward of an answer whose reward failed in the sandbox."""
    reward_batch: int = 256
    """Files: answers that the reward gets at once."""
    correct_from: float = 1.0
    """Files: an answer counts as correct from this reward on, where the reward does not say it."""
    files_digest: str = ""
    """Files: of the content of prompts, traces, tokenizer and reward file: a changed file is another run."""

    test_frac: float = 0.2
    """Share of the problems that is kept for tests. No stage trains on them."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(TaskKind):
            raise ConfigError(f"task {self.kind!r} is not known: choose {' or '.join(get_args(TaskKind))}")
        if not 0.0 < self.test_frac < 1.0:
            raise ConfigError(f"test_frac is {self.test_frac:g}: give a share above 0 and below 1, such as 0.2")
        if self.kind == "countdown":
            self._check_countdown()
        else:
            self._check_files()

    def _check_countdown(self) -> None:
        limits = {"numbers": (2, MOST_NUMBERS), "largest": (1, self.values - 1), "values": (2, MOST_VALUES),
                  "attempts": (1, MOST_ATTEMPTS)}  # fmt: skip
        for name, (least, most) in limits.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                raise ConfigError(f"countdown: {name} is {value!r}: give a whole number from {least} to {most}")
        is_known = bool(self.operators) and set(self.operators) <= set(OPERATORS)
        if not is_known or len(set(self.operators)) < len(self.operators):
            raise ConfigError(f"countdown: operators are {self.operators!r}: give some of {OPERATORS}, each once")

    def _check_files(self) -> None:
        if not self.prompts or not self.tokenizer:
            missing = "prompts" if not self.prompts else "tokenizer"
            raise ConfigError(f"a task of files needs {missing}: give prompts (JSON lines) and a tokenizer (folder)")
        for name, least in (("max_prompt", 0), ("max_response", 1), ("reward_batch", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}: give {least} or more")
        if not 0.0 < self.reward_timeout_s < float("inf"):
            raise ConfigError(f"reward_timeout_s is {self.reward_timeout_s:g}: give a time above 0 s")
        if self.sandbox not in get_args(SandboxMode):
            raise ConfigError(f"sandbox is {self.sandbox!r}: choose {', '.join(get_args(SandboxMode))}")
        if not math.isfinite(self.broken_reward):
            raise ConfigError(f"broken_reward is {self.broken_reward:g}: give a finite number, such as 0")
        self.sandbox_limits()

    def sandbox_limits(self) -> SandboxLimits:
        """What one job of the reward may use."""
        return SandboxLimits(time_s=self.reward_timeout_s, memory_bytes=self.reward_memory_bytes)
