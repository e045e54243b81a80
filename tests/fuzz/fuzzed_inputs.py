"""Read mutated inputs of one kind, and check that each is read or refused, quickly, in little memory.

`fuzz_soak.py` does so for all kinds in many processes.
"""

from __future__ import annotations

import json
import random
import re
import resource
import shutil
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from in_process import Called
from inputs import INPUTS, FuzzedInput
from mutations import mutated

from scalewright import units

HANG_CPU_S = 10.0
HANG_WALL_S = 60.0
"""A reader that waits uses no CPU: a pipe, a lock. On a busy machine a case may wait for its turn."""
MOST_BYTES = 512 * units.MIB
"""By which one case may raise the memory of the process."""
CODES = (0, 1, 2, 3)
NUM_WAYS = 8
"""Most ways in which an input is read."""
TRACEBACK, HANG, MEMORY, NONSENSE, REFUSAL = "tracebacks", "hangs", "memory", "nonsense", "bad_refusals"
PROBLEMS = (TRACEBACK, HANG, MEMORY, NONSENSE, REFUSAL)
"""What can be wrong with an answer. A bad refusal has an odd exit code, half an answer, or no sentence."""
_NONSENSE = re.compile(
    r"(?:^|[ :\[(])(?:nan|-?inf)(?: (?:s|ms|GiB|MiB|B|tokens/s|W|J|%)|[%,\]]|\s{2,}|$)", re.MULTILINE
)
"""As a quantity. A name in a file may be anything."""
_NEGATIVE = re.compile(r"(?:^|[^\s,] {2,}|\()-\d[\d.,]* (?:s|ms|us|min|h|d|GiB|MiB|KiB|B|tokens/s|W|J)\b", re.MULTILINE)
"""In a column of its own. Differences in a sentence have a sign."""
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class HungError(Exception):
    """A case took too long."""


@dataclass(slots=True)
class FuzzCounts:
    """What came of the cases of one kind."""

    codes: Counter[int] = field(default_factory=Counter)
    problems: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    longest_cpu_s: float = 0.0
    longest_wall_s: float = 0.0
    peak_bytes: int = 0
    cpu_s: float = 0.0

    @property
    def num_cases(self) -> int:
        return sum(self.codes.values()) + sum(self.problems.values())

    def add(self, other: FuzzCounts) -> None:
        self.codes += other.codes
        self.problems += other.problems
        self.failures += other.failures
        self.longest_cpu_s = max(self.longest_cpu_s, other.longest_cpu_s)
        self.longest_wall_s = max(self.longest_wall_s, other.longest_wall_s)
        self.peak_bytes = max(self.peak_bytes, other.peak_bytes)
        self.cpu_s += other.cpu_s

    def fail(self, problem: str, text: str) -> None:
        self.problems[problem] += 1
        self.failures.append(text)


def fuzz(
    kind: str,
    *,
    seed: int,
    count: int,
    folder: Path,
    keep: Path | None = None,
    begin: Callable[[int], None] | None = None,
) -> FuzzCounts:
    """Read `count` mutated inputs of a kind. `keep`: where inputs that fail are copied. `begin`: called for each."""
    chance, counts = random.Random(f"{kind}-{seed}"), FuzzCounts()
    place = folder / f"{kind}-{seed}"
    place.mkdir()
    made = INPUTS[kind](place)
    valid = {path: path.read_bytes() for path in made.files}
    paths = sorted(made.files)
    for number in range(NUM_WAYS):
        called = made.read(number)
        assert called.code in (0, 1), f"the valid {kind} is refused: {called.err}"
    before_s = time.process_time()
    for number in range(count):
        if begin is not None:
            begin(number)
        path = chance.choice(paths)
        path.write_bytes(made.make(chance) if made.make else mutated(valid[path], chance, made.files[path]))
        problem, text = _problem_of_case(made, number, counts)
        if problem:
            counts.fail(problem, f"{kind} {path.name} (seed {seed}, case {number}): {text}")
            if keep is not None:
                shutil.copytree(place, keep / f"{kind}-{seed}-{number}", dirs_exist_ok=True)
        for one in made.files:  # a reader may have rewritten another one
            one.write_bytes(valid[one])
    counts.cpu_s, counts.peak_bytes = time.process_time() - before_s, _peak_bytes()
    return counts


def _problem_of_case(made: FuzzedInput, number: int, counts: FuzzCounts) -> tuple[str, str]:
    """What is wrong with the answer to one case, and how it looks; empty if nothing is."""
    before_bytes, began_cpu_s, began_wall_s = _peak_bytes(), time.process_time(), time.monotonic()
    try:
        with _limited():
            called = made.read(number)
    except HungError:
        return HANG, f"hangs:\n{traceback.format_exc()[-1500:]}"
    except BaseException:
        return TRACEBACK, traceback.format_exc()[-1500:]
    finally:
        counts.longest_cpu_s = max(counts.longest_cpu_s, time.process_time() - began_cpu_s)
        counts.longest_wall_s = max(counts.longest_wall_s, time.monotonic() - began_wall_s)
    grown_bytes = _peak_bytes() - before_bytes
    if grown_bytes > MOST_BYTES:
        return MEMORY, f"takes {grown_bytes / units.MIB:.0f} MiB"
    problem, text = _problem_of_answer(called)
    if not problem:
        counts.codes[int(called.code)] += 1
    return problem, text


def _problem_of_answer(called: Called) -> tuple[str, str]:
    if called.code not in CODES:
        return REFUSAL, f"exit code {called.code}"
    if called.code >= 2 and (called.out or not called.err.strip()):
        return REFUSAL, f"exit code {called.code} with an answer: {called.out[:200]!r}, or without a sentence"
    for name, pattern in (
        ("nonsense", _NONSENSE),
        ("a negative quantity", _NEGATIVE),
        ("control characters", _CONTROL),
    ):
        match = pattern.search(called.out)
        if match:
            return NONSENSE, f"prints {name}: {called.out[max(match.start() - 100, 0) : match.end() + 40]!r}"
    return (NONSENSE, text) if called.out.startswith("{") and (text := _problem_of_json(called.out)) else ("", "")


def _problem_of_json(answer: str) -> str:
    constants: list[str] = []

    def constant(name: str) -> None:
        constants.append(name)

    try:
        json.loads(answer, parse_constant=constant)
    except ValueError as error:
        return f"prints JSON that is none: {error}"
    return f"prints {constants[0]} as JSON" if constants else ""


class _limited:  # noqa: N801  a context manager
    """Raise `HungError` after too much time of the CPU or of the clock."""

    def __enter__(self) -> None:
        for name in (signal.SIGPROF, signal.SIGALRM):
            signal.signal(name, self._stop)
        signal.setitimer(signal.ITIMER_PROF, HANG_CPU_S)
        signal.setitimer(signal.ITIMER_REAL, HANG_WALL_S)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)

    @staticmethod
    def _stop(_number: int, _frame: FrameType | None) -> None:
        raise HungError


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * units.KIB


def summary(counts: FuzzCounts) -> dict[str, Any]:
    """The figures of one kind as a table of a document."""
    return {
        "num_inputs": counts.num_cases,
        "num_accepted": counts.codes[0] + counts.codes[1],
        "num_refused": counts.codes[2] + counts.codes[3],
        **{f"num_{problem}": counts.problems[problem] for problem in PROBLEMS},
        "longest_cpu_s": round(counts.longest_cpu_s, 3),
        "longest_wall_s": round(counts.longest_wall_s, 3),
        "peak_bytes": counts.peak_bytes,
        "inputs_per_cpu_s": round(counts.num_cases / counts.cpu_s, 1) if counts.cpu_s else None,
    }
