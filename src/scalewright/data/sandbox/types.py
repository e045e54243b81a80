"""What a job may use, what it is, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from scalewright import units
from scalewright.errors import ConfigError

SandboxMode = Literal["off", "auto", "strict"]
"""off: rewards run with the rights of the user; auto: with what the host permits; strict: with everything or not."""
JobStatus = Literal[
    "ok", "time", "memory", "processes", "output", "crash", "error", "exit", "value", "refused", "lost"
]  # fmt: skip
FAILURES: dict[str, str] = {
    "time": "it ran past its time limit",
    "memory": "it needed more memory than its limit",
    "processes": "it started more processes than its limit",
    "output": "it wrote more output than its limit",
    "crash": "its process died, or ended without a result",
    "error": "it raised an exception",
    "exit": "its program ended with an exit code above 0",
    "value": "its result is no value that can be used",
    "refused": "it could not be started",
    "lost": "the worker that ran it died",
}
"""Every status but ok, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """What one job may use."""

    time_s: float = 10.0
    """From its start to its end, and CPU time of all its processes together."""
    memory_bytes: int = 512 * units.MIB
    """On top of what the worker holds before the job starts."""
    num_processes: int = 16
    """Processes and threads at once, the job's own included."""
    output_bytes: int = units.MIB
    """Standard output and error together, and the result."""
    file_bytes: int = 16 * units.MIB
    """All files in its private /tmp together."""
    network: bool = False
    writes: bool = False
    """May see and change the files of the user; false: sees programs and libraries only, and writes to its own /tmp."""

    def __post_init__(self) -> None:
        if not 0.0 < self.time_s < float("inf"):
            raise ConfigError(f"the time limit of a reward is {self.time_s:g} s: give a time above 0 s")
        for name, least in (("memory_bytes", 16 * units.MIB), ("num_processes", 1), ("output_bytes", 1024),
                            ("file_bytes", 4096)):  # fmt: skip
            if getattr(self, name) < least:
                raise ConfigError(f"the {name} of a reward is {getattr(self, name)}: give {least} or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxJob:
    """One thing to run: a command, Python source, a call of the preloaded function, or an answer with its tests."""

    id: str
    command: tuple[str, ...] = ()
    """A program without a shell. Its standard output is the value."""
    source: str = ""
    """Python code."""
    function: str = ""
    """Function of `source` to call; empty: running the source is all."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Of the function, as JSON."""
    tests: str = ""
    """Python code with asserts on what `source` defines. It runs in a process of its own, and calls the other's."""
    stdin: str = ""
    """Of the command."""

    @property
    def kind(self) -> Literal["command", "tests", "source", "preloaded"]:
        if self.command:
            return "command"
        if self.tests:
            return "tests"
        return "source" if self.source else "preloaded"

    def messages(self) -> list[dict[str, Any]]:
        """For a worker: the kind, then one message for each process of the job, which that process reads itself."""
        if self.kind == "tests":
            return [{"kind": "tests"}, {"tests": self.tests}, {"source": self.source}]
        return [{"kind": self.kind}, asdict(self) | {"arguments": dict(self.arguments)}]


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxOutcome:
    """How a job ended."""

    id: str
    status: JobStatus
    value: Any = None
    """Of an `ok` job: what the function returned, or the command wrote."""
    why: str = ""
    """One phrase where the status is not `ok`."""
    stdout_tail: str = ""
    stderr_tail: str = ""
    seconds: float = 0.0
    """From its start in a worker to its end."""

    @property
    def is_ok(self) -> bool:
        return self.status == "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """One promise of the sandbox, as tried on this host."""

    name: str
    is_on: bool
    why_not: str = ""
    """Why it is off; empty where it is on."""
    how: str = ""
    """What enforces it here."""
