"""SandboxPool: many confined jobs at once, in workers that stay warm. A job that breaks costs its own result only."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from scalewright.data.sandbox.job_process import ENVIRONMENT
from scalewright.data.sandbox.server import receive, send
from scalewright.data.sandbox.types import SandboxJob, SandboxLimits, SandboxOutcome
from scalewright.errors import EnvironmentFailedError

GRACE_S = 5.0
"""A worker that does not report a job so long after its time limit is replaced."""
START_S = 120.0
"""Longest time that a worker may take to start and to import the user's function."""
MOST_REPLACED = 3
"""Workers in a row that died before they were ready."""
START = "import sys; sys.path[:0] = {path!r}; from scalewright.data.sandbox.server import main; main({descriptor})"
PACKAGES = str(Path(__file__).resolve().parents[3])


@dataclass(slots=True, kw_only=True)
class _Worker:
    process: subprocess.Popen[bytes]
    channel: socket.socket
    scratch: str
    is_ready: bool = False
    job: tuple[int, SandboxJob] | None = None
    deadline_s: float = 0.0

    def end(self) -> None:
        """End it. What runs inside ends with it: by its process namespace, or because its socket closes."""
        self.channel.close()
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@dataclass(slots=True, kw_only=True, weakref_slot=True)
class SandboxPool:
    """Workers for jobs with the same limits. `run_many` never raises for a bad job."""

    limits: SandboxLimits = field(default_factory=SandboxLimits)
    num_workers: int = 0
    """0: one for each CPU that this process may use."""
    preload: str = ""
    """`package.module:function` or `file.py:function`: imported once a worker, for jobs without a source."""
    readable: Sequence[str] = ()
    """Folders that jobs may read, beside programs and libraries."""
    is_plain: bool = False
    """Use no namespaces, as on a host that permits none."""
    setup: dict[str, str] = field(default_factory=dict)
    """Mechanisms of the last worker that started; a text says why one is off."""
    num_replaced: int = 0
    """Workers that died or had to be ended."""
    problem: str = ""
    """Why the function could not be imported."""
    _workers: list[_Worker] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _folder: str = ""

    def run_many(self, jobs: Sequence[SandboxJob]) -> list[SandboxOutcome]:
        """The outcomes of all jobs, in their order."""
        with self._lock:
            return self._run_many(jobs)

    def run(self, job: SandboxJob) -> SandboxOutcome:
        return self.run_many([job])[0]

    def close(self) -> None:
        """End the workers and what they run."""
        for worker in self._workers:
            worker.end()
        self._workers.clear()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = ""

    def __enter__(self) -> SandboxPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def num_at_once(self) -> int:
        return self.num_workers or len(os.sched_getaffinity(0))

    def _run_many(self, jobs: Sequence[SandboxJob]) -> list[SandboxOutcome]:
        waiting = deque(enumerate(jobs))
        outcomes: dict[int, SandboxOutcome] = {}
        num_failed_starts = 0
        while len(outcomes) < len(jobs):
            while len(self._workers) < min(self.num_at_once, len(jobs) - len(outcomes)):
                self._workers.append(self._started())
            for worker in self._workers:
                if worker.is_ready and worker.job is None and waiting:
                    self._assign(worker, waiting)
            for worker in self._ready_to_read():
                was_ready = worker.is_ready
                self._advance(worker, waiting, outcomes)
                num_failed_starts = 0 if worker.is_ready else num_failed_starts + int(not was_ready)
            if num_failed_starts > MOST_REPLACED:
                raise EnvironmentFailedError(
                    f"workers of the sandbox die before they are ready ({self.problem or 'see their messages'}): "
                    "run `scalewright doctor`, or give --sandbox off"
                )
        return [outcomes[place] for place in range(len(jobs))]

    def _assign(self, worker: _Worker, waiting: deque[tuple[int, SandboxJob]]) -> None:
        place, job = waiting.popleft()
        worker.job = (place, job)
        worker.deadline_s = time.monotonic() + self.limits.time_s + GRACE_S
        with contextlib.suppress(OSError):  # a dead worker is seen when it is read
            for message in job.messages():
                send(worker.channel, message)

    def _ready_to_read(self) -> list[_Worker]:
        """Workers with a message, and those that are late."""
        busy = [worker for worker in self._workers if worker.job is not None or not worker.is_ready]
        least_s = min(worker.deadline_s for worker in busy) - time.monotonic()
        ready, _, _ = select.select([worker.channel for worker in busy], [], [], max(least_s, 0.0))
        now_s = time.monotonic()
        return [worker for worker in busy if worker.channel in ready or worker.deadline_s <= now_s]

    def _advance(
        self, worker: _Worker, waiting: deque[tuple[int, SandboxJob]], outcomes: dict[int, SandboxOutcome]
    ) -> None:
        """Take a worker's message. A worker that died or is late is replaced."""
        is_late = worker.deadline_s <= time.monotonic()
        message = None if is_late and not _has_message(worker.channel) else _received(worker.channel)
        if message is None:
            self._workers.remove(worker)
            worker.end()
            self.num_replaced += 1
            if worker.job is not None:
                place, job = worker.job
                status: Any = "time" if is_late else "lost"
                outcomes[place] = SandboxOutcome(id=job.id, status=status, why="its worker had to be replaced")
        elif not worker.is_ready:
            worker.is_ready = True
            self.setup, self.problem = dict(message["setup"]), str(message["problem"])
        else:
            assert worker.job is not None
            place, job = worker.job
            worker.job = None
            outcomes[place] = SandboxOutcome(id=job.id, **message)
        if self.problem:
            while waiting:
                place, job = waiting.popleft()
                outcomes[place] = SandboxOutcome(id=job.id, status="refused", why=self.problem)

    def _started(self) -> _Worker:
        mine, theirs = socket.socketpair()
        if not self._folder:
            self._folder = tempfile.mkdtemp(prefix="scalewright-sandbox-")
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
            Path(self._folder).chmod(0o711)
        scratch = tempfile.mkdtemp(dir=self._folder)
        Path(scratch).chmod(0o711)
        libraries = os.environ.get("LD_LIBRARY_PATH", "")
        environment = ENVIRONMENT | ({"LD_LIBRARY_PATH": libraries} if libraries else {})
        with theirs:
            command = [sys.executable, "-I", "-c", START.format(path=[PACKAGES], descriptor=theirs.fileno())]
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment, cwd="/",
                pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip
        worker = _Worker(process=process, channel=mine, scratch=scratch, deadline_s=time.monotonic() + START_S)
        config = {
            "limits": asdict(self.limits), "path": [entry for entry in sys.path if entry], "preload": self.preload,
            "readable": self._readable(libraries), "scratch": scratch, "plain": self.is_plain,
        }  # fmt: skip
        with contextlib.suppress(OSError):  # seen when it is read
            send(mine, config)
        return worker

    def _readable(self, libraries: str) -> list[str]:
        """Python, its modules, and the user's function: a file with what lies beside it, or a module alone."""
        prefixes = [sys.prefix, sys.base_prefix, sys.exec_prefix, str(Path(sys.executable).parent), PACKAGES]
        # `python -m` puts the folder it was started in on the path: that is the user's, not a library.
        private = {str(Path.cwd()), str(Path.home())}
        modules = [entry for entry in sys.path if str(Path(entry).absolute()) not in private]
        paths = [*prefixes, *modules, *libraries.split(":"), *_places_of(self.preload), *self.readable]
        existing = {str(Path(path).absolute()) for path in paths if path and Path(path).exists()}
        return sorted(existing | {os.path.realpath(path) for path in existing})


def _places_of(spec: str) -> list[str]:
    """Where the function that a text names is."""
    place = spec.rpartition(":")[0]
    if not place:
        return []
    if place.endswith(".py"):
        return [str(Path(place).resolve().parent)]
    try:
        module = importlib.util.find_spec(place.partition(".")[0])
    except (ImportError, ValueError):
        return []  # the worker says so
    if module is None:
        return []
    return list(module.submodule_search_locations or ([module.origin] if module.origin else []))


def _has_message(channel: socket.socket) -> bool:
    return bool(select.select([channel], [], [], 0.0)[0])


def _received(channel: socket.socket) -> dict[str, Any] | None:
    try:
        message = receive(channel)
    except (OSError, ValueError):
        return None
    return message if isinstance(message, dict) else None
