"""Rewards that the user gives: a Python function or a command. Each runs in a process of its own with a time limit.

Nothing that such a reward does can stop or change the training process: a value that is no reward, an exception, a hang
and a crash each become one sentence.
"""

from __future__ import annotations

import json
import math
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from scalewright.data.reasoning.prompt_files import shown
from scalewright.data.reasoning.sandboxed_rewards import (
    RUN_TESTS,
    RewardFailure,
    SandboxedReward,
    TestsReward,
    open_pool,
)
from scalewright.data.reasoning.settings import TaskSettings
from scalewright.data.reasoning.task import Score
from scalewright.data.sandbox.protections import check_mode, protections_here
from scalewright.errors import ConfigError, EnvironmentFailedError

COMMAND_PREFIX = "command:"
WORKER = "scalewright.data.reasoning.reward_worker"
READ_BYTES = 1 << 16
MESSAGE_CHARACTERS = 300


class Reward(Protocol):
    """Values for a batch of answers, as the user's code gave them."""

    def values(self, rows: Sequence[Mapping[str, Any]]) -> list[Any]: ...

    def close(self) -> None: ...


@dataclass(slots=True, kw_only=True)
class CommandReward:
    """A program that reads a JSON object a line and writes a number or an object a line. It runs once a batch."""

    arguments: list[str]
    timeout_s: float

    def values(self, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
        name = shlex.join(self.arguments)
        try:
            process = subprocess.Popen(
                self.arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                start_new_session=True, text=True, encoding="utf-8", errors="replace",
            )  # fmt: skip
        except OSError as error:
            raise EnvironmentFailedError(f"reward {name} does not start: {error.strerror}; check its path") from error
        try:
            output, errors = process.communicate("".join(f"{json.dumps(row)}\n" for row in rows), self.timeout_s)
        except subprocess.TimeoutExpired as error:
            stop_process(process)
            raise EnvironmentFailedError(late(name, self.timeout_s, rows)) from error
        except BaseException:
            stop_process(process)
            raise
        if process.returncode:
            raise EnvironmentFailedError(died(name, process.returncode, errors, rows))
        return [_parsed(line, number, name) for number, line in enumerate(output.splitlines(), 1) if line.strip()]

    def close(self) -> None:
        """Nothing runs between batches."""


def _parsed(line: str, number: int, name: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise ConfigError(
            f"reward {name}: line {number} of its output is {shown(line)}: write one JSON number or object an answer"
        ) from error


@dataclass(slots=True, kw_only=True)
class FunctionReward:
    """A Python function in a worker process that stays between batches."""

    spec: str
    """`package.module:function` or `file.py:function`."""
    timeout_s: float
    process: subprocess.Popen[bytes] | None = None

    def values(self, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
        process = self.process or self._started()
        reply = self._reply(process, rows)
        if "error" in reply:
            raise ConfigError(f"reward {self.spec}: {reply['error']}")
        return list(reply["values"])

    def close(self) -> None:
        if self.process is not None:
            stop_process(self.process)
            self.process = None

    def _started(self) -> subprocess.Popen[bytes]:
        self.process = subprocess.Popen(
            [sys.executable, "-m", WORKER, self.spec], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        return self.process

    def _reply(self, process: subprocess.Popen[bytes], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """One line there, one line here, before the time is over."""
        assert process.stdin is not None
        assert process.stdout is not None
        deadline_s = time.monotonic() + self.timeout_s
        unsent = memoryview(json.dumps(list(rows)).encode() + b"\n")
        received = bytearray()
        source, sink = process.stdout.fileno(), process.stdin.fileno()
        os.set_blocking(sink, False)
        try:
            while not received.endswith(b"\n"):
                left_s = deadline_s - time.monotonic()
                ready, writable, _ = select.select([source], [sink] if unsent else [], [], max(left_s, 0.0))
                if not ready and not writable:
                    self.close()
                    raise EnvironmentFailedError(late(self.spec, self.timeout_s, rows))
                if writable:
                    unsent = unsent[os.write(sink, unsent[:READ_BYTES]) :]
                if ready:
                    piece = os.read(source, READ_BYTES)
                    if not piece:
                        raise BrokenPipeError
                    received += piece
        except BrokenPipeError as error:
            code = process.wait()
            self.close()
            raise EnvironmentFailedError(died(self.spec, code, "", rows)) from error
        reply: dict[str, Any] = json.loads(received)
        return reply


def stop_process(process: subprocess.Popen[Any]) -> None:
    """End a process and what it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            try:
                pipe.close()
            except BrokenPipeError:
                continue  # what was not sent has no reader


def late(name: str, timeout_s: float, rows: Sequence[Mapping[str, Any]]) -> str:
    return (
        f"reward {name}: no result after {timeout_s:g} s for {_span(rows)}: make it faster, or raise reward_timeout_s"
    )


def died(name: str, code: int, errors: str, rows: Sequence[Mapping[str, Any]]) -> str:
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    last = errors.strip().splitlines()[-1][:MESSAGE_CHARACTERS] if errors.strip() else ""
    return f"reward {name} {how} on {_span(rows)}{f' ({last})' if last else ''}: run it on one of these answers by hand"


def _span(rows: Sequence[Mapping[str, Any]]) -> str:
    if len(rows) == 1:
        return f"problem {rows[0]['id']}"
    return f"{len(rows)} answers, problems {rows[0]['id']} to {rows[-1]['id']}"


def open_reward(settings: TaskSettings) -> Reward:
    """The reward that the settings name, in the sandbox if they say so."""
    spec, timeout_s = settings.reward, settings.reward_timeout_s
    if settings.sandbox != "off":
        return _sandboxed(settings)
    if spec == RUN_TESTS:
        raise ConfigError("reward run_tests executes the answers: give --sandbox auto or --sandbox strict")
    arguments = command_arguments(spec)
    if arguments:
        return CommandReward(arguments=arguments, timeout_s=timeout_s)
    return FunctionReward(spec=spec, timeout_s=timeout_s)


def _sandboxed(settings: TaskSettings) -> Reward:
    check_mode(settings.sandbox, protections_here() if settings.sandbox == "strict" else ())
    spec, limits = settings.reward, settings.sandbox_limits()
    if spec == RUN_TESTS:
        return TestsReward(open_pool(limits))
    arguments = command_arguments(spec)
    if arguments:
        program = shutil.which(arguments[0]) or arguments[0]
        named = [Path(one).absolute() for one in (program, *arguments[1:]) if Path(one).exists()]
        folders = {one if one.is_dir() else one.parent for path in named for one in (path, path.resolve())}
        pool = open_pool(limits, readable=sorted(map(str, folders)))
        return SandboxedReward(spec, pool, batch=settings.reward_batch, arguments=[program, *arguments[1:]])
    return SandboxedReward(spec, open_pool(limits, preload=spec), batch=settings.reward_batch)


def command_arguments(spec: str) -> list[str]:
    """The program of `command: PROGRAM ARGUMENTS`; empty where the text names a function."""
    if spec.startswith(COMMAND_PREFIX):
        try:
            arguments = shlex.split(spec.removeprefix(COMMAND_PREFIX))
        except ValueError as error:
            raise ConfigError(f"reward {spec!r}: {error}; write command: PROGRAM ARGUMENTS") from error
        if not arguments:
            raise ConfigError(f"reward {spec!r} names no program: write command: PROGRAM ARGUMENTS")
        return arguments
    place, colon, function = spec.rpartition(":")
    if not colon or not place or not function.isidentifier():
        raise ConfigError(
            f"reward {spec!r}: write package.module:function, file.py:function, or command: PROGRAM ARGUMENTS"
        )
    return []


def scores(values: Sequence[Any], rows: Sequence[Mapping[str, Any]], settings: TaskSettings) -> list[Score]:
    """Checked scores. A value is a number, or an object with reward and, if it likes, is_correct and why.

    In the sandbox a value that is none costs its own answer only.
    """
    name, correct_from = settings.reward, settings.correct_from
    if len(values) != len(rows):
        raise ConfigError(f"reward {name}: gave {len(values)} values for {_span(rows)}: give one for each answer")
    graded = []
    for value, row in zip(values, rows, strict=True):
        try:
            if isinstance(value, RewardFailure):
                graded.append(_broken(settings, value.kind, value.why))
            else:
                graded.append(_score(value, row, name=name, correct_from=correct_from))
        except ConfigError as error:
            if settings.sandbox == "off":
                raise
            graded.append(_broken(settings, "value", str(error)))
    return graded


def _broken(settings: TaskSettings, kind: str, why: str) -> Score:
    return Score(reward=settings.broken_reward, is_correct=False, why=why, failure=kind)


def _score(value: Any, row: Mapping[str, Any], *, name: str, correct_from: float) -> Score:
    given = value if isinstance(value, dict) else {"reward": value}
    reward = given.get("reward")
    if not isinstance(reward, int | float) or not math.isfinite(reward):
        raise ConfigError(
            f"reward {name}: problem {row['id']} got {shown(value)}: a reward is a finite number; return 0 for an "
            "answer that has none"
        )
    is_correct = given.get("is_correct", reward >= correct_from)
    if not isinstance(is_correct, bool):
        raise ConfigError(f"reward {name}: problem {row['id']} has is_correct {shown(is_correct)}: give true or false")
    why = given.get("why")
    return Score(
        reward=float(reward), is_correct=is_correct, why=str(why) if why else f"the reward is {float(reward):g}"
    )
