"""Fuzz every reader: mutate valid inputs and check that each is read or refused, quickly, in little memory.

    python tests/fuzz/fuzzed_inputs.py 50000 [KIND...]

reads that many mutated inputs of each kind in two processes and prints a table; `make soak` calls it. What failed is
kept in the folder that it names.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from in_process import Called
from inputs import INPUTS, FuzzedInput
from mutations import mutated

from scalewright import units

MINUTES = "FUZZ_MINUTES"
"""Variable: stop after so many minutes, with what was read until then."""
HANG_CPU_S = 10.0
HANG_WALL_S = 60.0
"""A reader that waits uses no CPU: a pipe, a lock. On a busy machine a case may wait for its turn."""
MOST_BYTES = 512 * units.MIB
"""By which one case may raise the memory of the process."""
CODES = (0, 1, 2, 3)
NUM_WAYS = 4
"""Most ways in which an input is read."""
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
    failures: list[str] = field(default_factory=list)
    longest_s: float = 0.0

    @property
    def num_cases(self) -> int:
        return sum(self.codes.values()) + len(self.failures)

    def add(self, other: FuzzCounts) -> None:
        self.codes += other.codes
        self.failures += other.failures
        self.longest_s = max(self.longest_s, other.longest_s)


def fuzz(kind: str, *, seed: int, count: int, folder: Path, keep: Path | None = None) -> FuzzCounts:
    """Read `count` mutated inputs of a kind. `keep`: where inputs that fail are copied."""
    chance, counts = random.Random(f"{kind}-{seed}"), FuzzCounts()
    place = folder / f"{kind}-{seed}"
    place.mkdir()
    made = INPUTS[kind](place)
    valid = {path: path.read_bytes() for path in made.files}
    for number in range(NUM_WAYS):
        called = made.read(number)
        assert called.code in (0, 1), f"the valid {kind} is refused: {called.err}"
    for number in range(count):
        path = chance.choice(sorted(made.files))
        path.write_bytes(mutated(valid[path], chance, made.files[path]))
        failure = _failure(made, number, counts)
        if failure:
            counts.failures.append(f"{kind} {path.name} (seed {seed}, case {number}): {failure}")
            if keep is not None:
                shutil.copytree(place, keep / f"{kind}-{seed}-{number}", dirs_exist_ok=True)
        for one in made.files:  # a reader may have rewritten another one
            one.write_bytes(valid[one])
    return counts


def _failure(made: FuzzedInput, number: int, counts: FuzzCounts) -> str:
    """What is wrong with the answer to one case; empty if nothing is."""
    before_bytes, began_s = _peak_bytes(), time.process_time()
    try:
        with _limited():
            called = made.read(number)
    except HungError:
        return f"hangs:\n{traceback.format_exc()[-1500:]}"
    except BaseException:
        return traceback.format_exc()[-1500:]
    finally:
        counts.longest_s = max(counts.longest_s, time.process_time() - began_s)
    counts.codes[called.code] += 1
    grown_bytes = _peak_bytes() - before_bytes
    problem = f"takes {grown_bytes / units.MIB:.0f} MiB" if grown_bytes > MOST_BYTES else _problem(called)
    if problem:
        counts.codes[called.code] -= 1
    return problem


def _problem(called: Called) -> str:
    if called.code not in CODES:
        return f"exit code {called.code}"
    if called.code >= 2 and (called.out or not called.err.strip()):
        return f"exit code {called.code} with an answer: {called.out[:200]!r}, or without a sentence"
    for name, pattern in (
        ("nonsense", _NONSENSE),
        ("a negative quantity", _NEGATIVE),
        ("control characters", _CONTROL),
    ):
        match = pattern.search(called.out)
        if match:
            return f"prints {name}: {called.out[max(match.start() - 100, 0) : match.end() + 40]!r}"
    return ""


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


def _share(job: tuple[str, int, int, str]) -> tuple[str, FuzzCounts]:
    kind, seed, count, keep = job
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:  # noqa: PTH112
        os.environ |= {"SCALEWRIGHT_HOME": folder, "SCALEWRIGHT_SYSTEM": "laptop"}
        os.chdir(folder)
        return kind, fuzz(kind, seed=seed, count=count, folder=Path(folder), keep=Path(keep))


def main() -> int:
    count, kinds = int(sys.argv[1]), sys.argv[2:] or list(INPUTS)
    keep, first, size = tempfile.mkdtemp(prefix="fuzz-failures-"), int(time.time()), 500
    jobs = [
        (kind, first + number, min(size, count - number * size), keep)
        for number in range(-(-count // size))
        for kind in kinds
    ]
    totals = {kind: FuzzCounts() for kind in kinds}
    began_s = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(2, maxtasksperchild=20) as pool:
        for kind, counts in pool.imap_unordered(_share, jobs):
            totals[kind].add(counts)
            for failure in counts.failures:
                sys.stdout.write(f"{failure}\n\n")
            sys.stdout.flush()
            if time.monotonic() > began_s + 60.0 * float(os.environ.get(MINUTES, "inf")):
                break
    sys.stdout.write(f"{'kind':<12}{'cases':>9}{'read':>9}{'refused':>9}{'failed':>8}{'longest s':>11}\n")
    for kind, counts in totals.items():
        num_read = counts.codes[0] + counts.codes[1]
        row = f"{num_read:>9}{counts.codes[2] + counts.codes[3]:>9}{len(counts.failures):>8}{counts.longest_s:>11.2f}"
        sys.stdout.write(f"{kind:<12}{counts.num_cases:>9}{row}\n")
    num_cases = sum(counts.num_cases for counts in totals.values())
    num_failed = sum(len(counts.failures) for counts in totals.values())
    sys.stdout.write(f"{num_cases:,} inputs, {num_failed} failed, {time.monotonic() - began_s:.0f} s")
    sys.stdout.write(f"; failures in {keep}\n" if num_failed else "\n")
    return int(num_failed > 0)


if __name__ == "__main__":
    sys.exit(main())
