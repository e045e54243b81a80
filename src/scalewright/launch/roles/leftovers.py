"""Processes of an earlier supervisor that was killed: each start writes down who runs, and the next one ends them.

A process is known by its number and the time of its start, so that nobody else who got the same number is ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from scalewright.errors import ScalewrightError
from scalewright.records.documents import document, read_document, write_document
from scalewright.records.run_directory import RunDirectory

KIND = "role-processes"
GRACE_S = 5.0
POLL_S = 0.05
STARTED_FIELD = 22 - 3
"""Of /proc/PID/stat, counted after the name in brackets: when the process started, in ticks since the boot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleProcess:
    """A process as it was started."""

    pid: int
    started: int
    host: str

    @classmethod
    def of(cls, pid: int) -> RoleProcess:
        return cls(pid=pid, started=_started(pid), host=socket.gethostname())

    @property
    def is_running(self) -> bool:
        return self.host == socket.gethostname() and self.started > 0 and _started(self.pid) == self.started


def write_processes(directory: RunDirectory, pids: Sequence[int]) -> None:
    """Remember the processes of a role that was just started."""
    body = {"processes": [asdict(RoleProcess.of(pid)) for pid in pids]}
    directory.path.mkdir(parents=True, exist_ok=True)
    write_document(_path(directory), document(KIND, body))


def end_leftovers(directories: Sequence[RunDirectory], *, grace_s: float = GRACE_S) -> int:
    """End what an earlier supervisor left running in these directories; how many processes that were."""
    processes = [one for directory in directories for one in _processes(directory) if one.is_running]
    for number in (signal.SIGTERM, signal.SIGKILL):
        for one in processes:
            if one.is_running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one.pid, number)
        deadline_s = time.monotonic() + grace_s
        while any(one.is_running for one in processes) and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
    for directory in directories:
        _path(directory).unlink(missing_ok=True)
    return len(processes)


def _path(directory: RunDirectory) -> Path:
    return directory.processes


def _processes(directory: RunDirectory) -> list[RoleProcess]:
    """What was written; a damaged file names nobody."""
    try:
        rows = read_document(_path(directory), KIND)["processes"]
        return [RoleProcess(**row) for row in rows]
    except (ScalewrightError, OSError, KeyError, TypeError):
        return []


def _started(pid: int) -> int:
    """0: there is no such process, or it has ended and waits for its parent."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return 0 if words[0] == "Z" else int(words[STARTED_FIELD])
    except (OSError, ValueError, IndexError):
        return 0
