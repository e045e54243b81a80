"""Conditions of a measurement: cores that other work used meanwhile, and clocks that were throttled."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from scalewright.errors import DocumentError, ScalewrightError
from scalewright.records.documents import document, read_document, write_document
from scalewright.records.loader import restore
from scalewright.records.run_directory import RunDirectory

KIND = "run-conditions"
PROC, SYS = Path("/proc"), Path("/sys")
IDLE = (3, 4)
"""Columns of a core in /proc/stat that are not work: idle, and waiting for a disk (proc_stat(5))."""
NUM_COLUMNS = 8
"""Columns up to the time taken by other virtual machines; guest time after them is part of the first column."""
THROTTLES = ("thermal_throttle/core_throttle_count", "thermal_throttle/package_throttle_count")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of a run on this machine, from its first process to its last."""

    others_cores: float
    """Cores that other processes, or other virtual machines of the host, used on average."""
    num_cores: int
    """Cores that the run could use."""
    num_throttles: float
    """Times that one of them was throttled for heat."""
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    at_s: float
    busy_s: float
    own_s: float
    num_throttles: float


@contextlib.contextmanager
def watched(run: RunDirectory, *, proc: Path = PROC, sys: Path = SYS) -> Iterator[None]:
    """Write down what else the machine did while the block ran; nothing if the kernel does not report it."""
    cores = sorted(os.sched_getaffinity(0))
    before = _moment(cores, proc, sys)
    try:
        yield
    finally:
        after = _moment(cores, proc, sys)
        if before is not None and after is not None:
            with contextlib.suppress(ScalewrightError, OSError):  # a full disk must not hide how the run ended
                every = [*read_attempts(run), _between(before, after, num_cores=len(cores))]
                write_document(run.conditions, document(KIND, {"attempts": [asdict(one) for one in every]}))


def read_attempts(run: RunDirectory) -> list[Attempt]:
    """Every start of the run; none if it ran on another machine."""
    if not run.conditions.exists():
        return []
    rows = read_document(run.conditions, KIND).get("attempts")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DocumentError(f"{run.conditions}: has no list of attempts: the file was changed")
    return [restore(row, Attempt, where=str(run.conditions)) for row in rows]


def _between(before: _Moment, after: _Moment, *, num_cores: int) -> Attempt:
    """The work of all cores minus that of our own processes.

    Equation  others = (busy(t1) - busy(t0) - own(t1) + own(t0)) / (t1 - t0)
    Source    proc_stat(5) and getrusage(2) of the Linux manual pages
    Assumes   every process of the run is a child that ended before t1; its work before t0 is in both terms
    Checked   tests/study/test_study_conditions.py: a process of ours is not counted, one of somebody else's is
    """
    took_s = max(after.at_s - before.at_s, 1e-9)
    others_s = after.busy_s - before.busy_s - (after.own_s - before.own_s)
    return Attempt(
        others_cores=max(others_s, 0.0) / took_s,
        num_cores=num_cores,
        num_throttles=max(after.num_throttles - before.num_throttles, 0.0),
        took_s=took_s,
    )


def _moment(cores: list[int], proc: Path, sys: Path) -> _Moment | None:
    try:
        lines = (proc / "stat").read_text().splitlines()
        rows = {fields[0]: fields[1:] for line in lines if (fields := line.split())}
        ticks = sum(_busy(rows[f"cpu{core}"]) for core in cores)
    except (OSError, KeyError, ValueError):
        return None
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    folders = [sys / f"devices/system/cpu/cpu{core}" for core in cores]
    return _Moment(
        at_s=time.monotonic(),
        busy_s=ticks / os.sysconf("SC_CLK_TCK"),
        own_s=sum(usage.ru_utime + usage.ru_stime for usage in used),
        num_throttles=sum(_count(folder / file) for folder in folders for file in THROTTLES),
    )


def _busy(columns: list[str]) -> int:
    return sum(int(text) for at, text in enumerate(columns[:NUM_COLUMNS]) if at not in IDLE)


def _count(path: Path) -> float:
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return 0.0
