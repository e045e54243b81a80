"""Rewards in the sandbox: one that loops, allocates, crashes or raises costs its own answer only, and is counted.

A function gets batches, as without a sandbox. Where a batch breaks, its answers run one by one, so that only the guilty
ones are lost. Answers that are code (`run_tests`) always run one by one.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalewright.data.reasoning.reward_worker import columns_of
from scalewright.data.sandbox.pool import SandboxPool
from scalewright.data.sandbox.types import FAILURES, SandboxJob, SandboxLimits, SandboxOutcome
from scalewright.errors import ConfigError, EnvironmentFailedError

RUN_TESTS = "scalewright.data.reasoning.known_rewards:run_tests"
LEAST_WORKERS = 2
"""One job that runs to its time limit does not hold up the others."""
FEWEST_ALL_FAILED = 8
"""From so many answers on, a reward that fails for every answer of its first batch is taken to be broken itself."""
OWN_FAULTS = ("error", "exit", "value", "refused", "lost")
FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardFailure:
    """In place of a value: why an answer has none."""

    kind: str
    """A status of the sandbox: time, memory, crash, ..."""
    why: str


def failure_of(outcome: SandboxOutcome) -> RewardFailure:
    detail = f" ({outcome.why})" if outcome.why else ""
    return RewardFailure(kind=outcome.status, why=f"the reward has no value: {FAILURES[outcome.status]}{detail}")


def open_pool(limits: SandboxLimits, *, preload: str = "", readable: Sequence[str] = ()) -> SandboxPool:
    """A pool that leaves the other ranks of this node their CPUs."""
    num_ranks = max(int(os.environ.get("LOCAL_WORLD_SIZE") or 1), 1)
    num_workers = max(len(os.sched_getaffinity(0)) // num_ranks, LEAST_WORKERS)
    return SandboxPool(limits=limits, num_workers=num_workers, preload=preload, readable=readable)


class SandboxedReward:
    """The user's function, or command, in the sandbox."""

    def __init__(self, name: str, pool: SandboxPool, *, batch: int, arguments: Sequence[str] = ()) -> None:
        self.name, self.pool, self._batch, self._arguments = name, pool, batch, tuple(arguments)
        self._is_first = True

    def values(self, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
        each = max(min(self._batch, -(-len(rows) // self.pool.num_at_once)), 1)
        batches = [rows[start : start + each] for start in range(0, len(rows), each)]
        outcomes = self.pool.run_many([self._job(batch) for batch in batches])
        parts = [self._parts(outcome, batch) for outcome, batch in zip(outcomes, batches, strict=True)]
        again = [row for part, batch in zip(parts, batches, strict=True) if part is None for row in batch]
        singles = iter(self._singles(again))
        values = [
            value
            for part, batch in zip(parts, batches, strict=True)
            for value in (part if part is not None else [next(singles) for _ in batch])
        ]
        self._check(values)
        return values

    def close(self) -> None:
        self.pool.close()

    def _job(self, rows: Sequence[Mapping[str, Any]]) -> SandboxJob:
        name = f"{rows[0]['id']} to {rows[-1]['id']}"
        if self._arguments:
            return SandboxJob(id=name, command=self._arguments, stdin="".join(f"{json.dumps(row)}\n" for row in rows))
        return SandboxJob(id=name, arguments=columns_of(rows))

    def _parts(self, outcome: SandboxOutcome, rows: Sequence[Mapping[str, Any]]) -> list[Any] | None:
        """One value for each answer; None where the batch broke."""
        if len(rows) == 1:
            return [self._single(outcome)]
        if not outcome.is_ok:
            return None
        values = _lines(str(outcome.value)) if self._arguments else outcome.value
        return values if isinstance(values, list) and len(values) == len(rows) else None

    def _singles(self, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
        return [self._single(outcome) for outcome in self.pool.run_many([self._job([row]) for row in rows])]

    def _single(self, outcome: SandboxOutcome) -> Any:
        if not outcome.is_ok:
            return failure_of(outcome)
        values = _lines(str(outcome.value)) if self._arguments else outcome.value
        if not isinstance(values, list) or len(values) != 1:
            shown = repr(outcome.value)[:60]
            return RewardFailure(kind="value", why=f"the reward gave {shown} for one answer: one value is needed")
        return values[0]

    def _check(self, values: Sequence[Any]) -> None:
        """A reward that cannot be started at all, or fails for all answers at first, is the user's to repair."""
        failures = [value for value in values if isinstance(value, RewardFailure)]
        if failures and self.pool.problem:
            raise ConfigError(f"reward {self.name}: {self.pool.problem}")
        if failures and all(one.kind == "refused" for one in failures) and len(failures) == len(values):
            raise EnvironmentFailedError(f"reward {self.name}: {failures[0].why}")
        is_broken = self._is_first and len(failures) == len(values) >= FEWEST_ALL_FAILED
        if is_broken and all(one.kind in OWN_FAULTS for one in failures):
            raise ConfigError(
                f"reward {self.name}: fails for all {len(values)} answers of its first batch ({failures[0].why}): "
                "run it on one of them by hand, or give --sandbox off to see its own message"
            )
        self._is_first = self._is_first and not values


def _lines(text: str) -> list[Any] | None:
    """A JSON value a line; None where one is none."""
    try:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, RecursionError):
        return None


class TestsReward:
    """1 where the response is code that passes the asserts of the field `tests`. Each answer is a job of its own."""

    __test__ = False  # pytest takes the name for its own

    def __init__(self, pool: SandboxPool) -> None:
        self.pool = pool

    def values(self, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
        for row in rows:
            if not isinstance(row.get("tests"), str) or not row["tests"].strip():
                raise ConfigError(
                    f"reward run_tests: problem {row['id']} has no field tests: write code with asserts, such as "
                    '{"prompt": "...", "tests": "assert add(1, 2) == 3"}'
                )
        jobs = [SandboxJob(id=str(row["id"]), source=code_of(row["response"]), tests=row["tests"]) for row in rows]
        return [outcome.value if outcome.is_ok else failure_of(outcome) for outcome in self.pool.run_many(jobs)]

    def close(self) -> None:
        self.pool.close()


def code_of(response: str) -> str:
    """The last fenced block of a response, or the whole of it."""
    blocks = FENCED.findall(response)
    return str(blocks[-1]) if blocks else response


def failure_counts(kinds: Sequence[str]) -> dict[str, int]:
    """Failures by kind; an empty kind is no failure."""
    return dict(sorted(Counter(kind for kind in kinds if kind).items()))
