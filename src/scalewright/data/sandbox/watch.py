"""Watches the processes of one job from outside: reads what they write, ends them at a limit, and says how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalewright import units
from scalewright.data.sandbox.confinement import Setup

READ_BYTES = 1 << 16
TAIL_BYTES = 2000
LOOK_EVERY_S = 0.05
"""Between two looks at the memory, CPU time and number of all processes of a job."""
MOST_ROUNDS = 200
"""Of ending what a job started, where no process namespace does it."""
MOST_OVER_LIMIT = 2
"""Times the number of processes that a job may have; more show that the kernel does not hold it to its limit."""
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True, kw_only=True)
class WatchedProcess:
    """The first process of a job, with this side of its pipes."""

    pid: int
    readers: dict[str, int]
    written: dict[str, bytearray] = field(default_factory=dict)
    code: int | None = None
    """Its exit code, or minus the signal; None: it runs."""
    pidfd: int = -1

    def __post_init__(self) -> None:
        self.written = {name: bytearray() for name in self.readers}
        for descriptor in self.readers.values():
            os.set_blocking(descriptor, False)
        try:
            self.pidfd = os.pidfd_open(self.pid)
        except OSError:
            self.pidfd = -1  # Linux before 5.3: its end is looked for now and then

    @property
    def num_written(self) -> int:
        return sum(map(len, self.written.values()))

    def has_ended(self) -> bool:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is not None

    def read(self, name: str, most: int) -> bool:
        """Take what there is. False where nothing will come any more."""
        try:
            piece = os.read(self.readers[name], READ_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            piece = b""
        self.written[name] += piece[: max(most + 1 - self.num_written, 0)]
        return bool(piece)

    def end(self) -> None:
        """End it, and with it every process of its namespace."""
        if self.code is None:
            try:
                os.kill(self.pid, signal.SIGKILL)
                _, status = os.waitpid(self.pid, 0)
                self.code = os.waitstatus_to_exitcode(status)
            except (ProcessLookupError, ChildProcessError):
                self.code = -signal.SIGKILL

    def close(self) -> None:
        for descriptor in (*self.readers.values(), *([self.pidfd] if self.pidfd >= 0 else [])):
            os.close(descriptor)
        self.readers, self.pidfd = {}, -1


@dataclass(slots=True, kw_only=True)
class JobWatch:
    """One job from its start to its end."""

    setup: Setup
    channel: socket.socket
    """To the pool: when it closes, the job ends too."""
    processes: list[WatchedProcess] = field(default_factory=list)
    decider: WatchedProcess | None = None
    """Whose end is the end of the job."""
    start_s: float = field(default_factory=time.monotonic)
    status: str = ""
    """Of a limit that was passed."""

    def add(self, process: WatchedProcess, *, decides: bool) -> None:
        self.processes.append(process)
        if decides:
            self.decider = process

    def run(self, *, is_command: bool) -> dict[str, Any] | None:
        """How the job ended; None where the pool is gone."""
        assert self.decider is not None
        deadline_s = self.start_s + self.setup.limits.time_s
        look_s = self.start_s + LOOK_EVERY_S
        while not self.decider.has_ended() and not self.status:
            now_s = time.monotonic()
            if now_s >= deadline_s:
                self.status = "time"
                break
            if not self._wait(max(min(deadline_s, look_s) - now_s, 0.0)):
                return None
            if time.monotonic() >= look_s:
                self._look()
                look_s = time.monotonic() + LOOK_EVERY_S
        self.end_all(closes=False)
        self._drain()
        outcome = self._outcome(is_command=is_command)
        outcome["seconds"] = time.monotonic() - self.start_s
        outcome["stdout_tail"] = self._tail("stdout")
        outcome["stderr_tail"] = self._tail("stderr")
        return outcome

    def _wait(self, timeout_s: float) -> bool:
        """Until something happens or the time is over. False where the pool is gone."""
        poll = select.poll()
        owners: dict[int, tuple[WatchedProcess, str]] = {}
        for process in self.processes:
            for name, descriptor in process.readers.items():
                poll.register(descriptor, select.POLLIN)
                owners[descriptor] = (process, name)
            if process.pidfd >= 0:
                poll.register(process.pidfd, select.POLLIN)
                if process.has_ended():
                    poll.unregister(process.pidfd)
        poll.register(self.channel, select.POLLIN)
        most = self.setup.limits.output_bytes
        for descriptor, _ in poll.poll(timeout_s * units.KILO + 1):
            if descriptor == self.channel.fileno():
                return False  # the pool sends nothing while a job runs: it is gone
            if descriptor in owners:
                process, name = owners[descriptor]
                if not process.read(name, most):
                    os.close(process.readers.pop(name))
                if process.num_written > most:
                    self.status = "output"
        return True

    def _look(self) -> None:
        """Memory and CPU time of all processes of the job together."""
        used_bytes, cpu_s = 0, 0.0
        pids = self._pids()
        for pid in pids:
            try:
                sizes = Path(f"/proc/{pid}/statm").read_text().split()
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended
            used_bytes += (int(sizes[1]) - int(sizes[2])) * resource.getpagesize()
            cpu_s += (int(fields[11]) + int(fields[12])) / CLOCK_TICKS
        if len(pids) > MOST_OVER_LIMIT * self.setup.limits.num_processes:
            self.status = "processes"
        elif used_bytes > self.setup.limits.memory_bytes + self.setup.base_bytes:
            self.status = "memory"
        elif cpu_s > self.setup.limits.time_s * len(self.processes):
            self.status = "time"

    def _pids(self) -> list[int]:
        if self.setup.namespaces is None:
            return descendants(os.getpid())
        own = os.getpid()
        try:
            return [int(name) for name in _process_names() if int(name) != own]
        except OSError:
            return []  # this container permits no /proc in a namespace

    def end_all(self, *, closes: bool = True) -> None:
        """End every process of the job, those that left its session included."""
        for process in self.processes:
            process.end()
        if self.setup.namespaces is None:
            end_descendants()
        if closes:
            for process in self.processes:
                process.close()
            self.processes = []

    def _drain(self) -> None:
        for process in self.processes:
            for name in list(process.readers):
                before = -1
                while len(process.written[name]) != before and process.num_written <= self.setup.limits.output_bytes:
                    before = len(process.written[name])
                    process.read(name, self.setup.limits.output_bytes)

    def _tail(self, name: str) -> str:
        return b"".join(bytes(one.written[name][-TAIL_BYTES:]) for one in self.processes).decode("utf-8", "replace")

    def _outcome(self, *, is_command: bool) -> dict[str, Any]:
        assert self.decider is not None
        limits, code = self.setup.limits, self.decider.code or 0
        if not self.status and self.decider.num_written > limits.output_bytes:
            self.status = "output"
        if self.status:
            return {"status": self.status, "why": ""}
        result = bytes(self.decider.written["result"])
        if is_command and not result:
            text = self.decider.written["stdout"].decode("utf-8", "replace")
            return {"status": "ok", "value": text} if not code else {"status": _ended(code), "why": how_ended(code)}
        if code:
            refused = _parsed(result).get("refused")
            if refused:
                return {"status": "refused", "why": str(refused)[:300]}
            return {"status": _ended(code), "why": how_ended(code)}
        return _checked(_parsed(result))


def _ended(code: int) -> str:
    if code in (-signal.SIGXCPU,):
        return "time"
    if code == -signal.SIGXFSZ:
        return "output"
    return "crash" if code < 0 else "exit"


def how_ended(code: int) -> str:
    if code >= 0:
        return f"it ended with exit code {code}"
    try:
        return f"it was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"it was ended by signal {-code}"


def _parsed(result: bytes) -> dict[str, Any]:
    try:
        body = json.loads(result)
        json.dumps(body)  # what is nested too deep to be sent on is no result
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def _checked(body: dict[str, Any]) -> dict[str, Any]:
    """The result of a function. Code of the job may have written it: only its form is trusted."""
    if "value" in body:
        return {"status": "ok", "value": body["value"]}
    status = body.get("status")
    if status in ("memory", "processes", "error", "value"):
        return {"status": status, "why": str(body.get("why", ""))[:300]}
    return {"status": "crash", "why": "it ended without a result"}


def _process_names() -> list[str]:
    with os.scandir("/proc") as entries:
        return [entry.name for entry in entries if entry.name.isdigit()]


def descendants(root: int) -> list[int]:
    """All processes below one, by the parents that /proc names."""
    parents: dict[int, int] = {}
    for name in _process_names():
        try:
            parents[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue  # it ended
    below: list[int] = []
    frontier = [root]
    while frontier:
        frontier = [pid for pid, parent in parents.items() if parent in frontier]
        below += frontier
    return below


def end_descendants() -> None:
    """End all that this process started, directly or not. Orphans come to it, because it is their subreaper."""
    for _ in range(MOST_ROUNDS):
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return  # no child, so nothing below one
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)
