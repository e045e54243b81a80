"""Order in the steps of a log: lines printed twice, reports in parts, restarts, and two runs in one file."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise

from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import StepFact

_OWN = ("spot", "parts_s", "values", "at_s", "attempt", "num_steps", "is_per_device")
_MERGED = tuple(one.name for one in fields(StepFact) if one.name not in (*_OWN, "step", "dialect", "rank"))
_PEAKS = ("memory_bytes", "memory_reserved_bytes")
"""Of several ranks the highest counts."""
TRAINERS = {"megatron", "torchtitan", "nemo", "maxtext", "llm-foundry", "huggingface"}
"""Programs of which one run uses one."""
MOST_HELD = 8
"""Attempts of one log that may grow at the same time."""


@dataclass(slots=True)
class _Attempt:
    """Steps of one start of a run, in order."""

    number: int
    last_step: int | None
    latest: int = -1
    first_order: int = 0
    latest_order: int = 0
    by_step: dict[int, int] = field(default_factory=dict)
    """Where the report of a step stands in the result."""


def number_attempts(into: Evidence) -> None:
    """Merge what belongs to one report, number the attempts, and note restarts and mixed runs."""
    logs: dict[tuple[str, str, int | None], list[_Attempt]] = {}
    steps: list[StepFact] = []
    for order, fact in enumerate(into.steps):
        log = (fact.spot.file, fact.dialect, fact.rank)
        attempts = logs.setdefault(log, [])
        attempt = _home(attempts, fact, steps, order)
        known = attempt.by_step.get(fact.step)
        if known is not None and (merged := _merged(steps[known], fact)) is not None:
            steps[known] = merged
        else:
            attempt.by_step[fact.step] = len(steps)
            steps.append(fact if fact.attempt == attempt.number else replace(fact, attempt=attempt.number))
        attempt.latest = max(attempt.latest, fact.step)
        attempt.latest_order = order
    into.steps[:] = steps
    into.notes += _mixed_programs(steps)
    for (file, dialect, rank), attempts in logs.items():
        if len(attempts) > 1:
            into.notes.append(_note(file, dialect, rank, attempts, into))


def _mixed_programs(steps: list[StepFact]) -> list[str]:
    """Notes on files in which two trainers report steps with a loss: two runs wrote there."""
    dialects: dict[str, Counter[str]] = {}
    for one in steps:
        if one.dialect in TRAINERS and one.loss is not None:
            dialects.setdefault(one.spot.file, Counter())[one.dialect] += 1
    return [
        f"{file} holds reports of {' and '.join(sorted(counts))}: two runs wrote into one file. Their steps are kept "
        "apart; explain each log alone to be sure."
        for file, counts in dialects.items()
        if len(counts) > 1
    ]  # fmt: skip


def _home(attempts: list[_Attempt], fact: StepFact, steps: list[StepFact], order: int) -> _Attempt:
    """The attempt that a report goes on with; a new one where its step lies before all others."""
    for attempt in reversed(attempts[-MOST_HELD:]):
        if _differs(attempt.last_step, fact.last_step) or fact.step < attempt.latest:
            continue
        known = attempt.by_step.get(fact.step)
        if known is not None and _merged(steps[known], fact) is None and attempt is not attempts[-1]:
            continue
        attempt.last_step = attempt.last_step or fact.last_step
        return attempt
    for attempt in reversed(attempts[-MOST_HELD:]):
        # A late part of an earlier report, such as the second half of what another process prints.
        known = attempt.by_step.get(fact.step)
        if known is not None and _is_late_part(steps[known], fact, attempt.latest):
            return attempt
    attempts.append(_Attempt(len(attempts), fact.last_step, first_order=order))
    return attempts[-1]


def _is_late_part(known: StepFact, fact: StepFact, latest: int) -> bool:
    return latest - fact.step <= 2 and _merged(known, fact) is not None and fact.loss is None


def _differs(one: int | None, other: int | None) -> bool:
    return one is not None and other is not None and one != other


def _merged(known: StepFact, fact: StepFact) -> StepFact | None:
    """Both reports as one; None where they contradict each other."""
    changes: dict[str, object] = {}
    for name in _MERGED:
        new, old = getattr(fact, name), getattr(known, name)
        if new is None or new == old or _both_nan(new, old):
            continue
        if old is not None and name in _PEAKS:
            changes[name] = max(old, new)
        elif old is not None:
            return None
        else:
            changes[name] = new
    if _contradict(known.parts_s, fact.parts_s) or _contradict(known.values, fact.values):
        return None
    if "tokens_per_s" in changes:
        changes["is_per_device"] = fact.is_per_device
    for name in ("parts_s", "values"):
        new, old = getattr(fact, name), getattr(known, name)
        if new.keys() - old.keys():
            changes[name] = {**old, **new}
    return replace(known, **changes) if changes else known  # type: ignore[arg-type]


def _both_nan(one: object, other: object) -> bool:
    return isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other)


def _contradict(known: Mapping[str, float], new: Mapping[str, float]) -> bool:
    return any(known[name] != value and not math.isnan(value) for name, value in new.items() if name in known)


def _note(file: str, dialect: str, rank: int | None, attempts: list[_Attempt], into: Evidence) -> str:
    """What the reader of a log with several attempts has to know."""
    where = f"{file} ({dialect}{'' if rank is None else f', rank {rank}'})"
    first_lines = [
        next(one.spot.line for one in into.steps if _is_of(one, file, dialect, rank, attempt)) for attempt in attempts
    ]
    lines = ", ".join(str(line) for line in first_lines)
    is_mixed = any(later.first_order < earlier.latest_order for earlier, later in pairwise(attempts))
    if is_mixed:
        return f"{where} holds {len(attempts)} runs mixed in one file: they begin at lines {lines}. Each is kept apart."
    return f"{where} starts {len(attempts)} times, at lines {lines}: a restart, or another run after the first."


def _is_of(fact: StepFact, file: str, dialect: str, rank: int | None, attempt: _Attempt) -> bool:
    return (fact.spot.file, fact.dialect, fact.rank, fact.attempt) == (file, dialect, rank, attempt.number)
