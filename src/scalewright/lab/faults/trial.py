"""Trial: one real run of a benchmark, with or without a fault, and what is done to it from outside while it runs."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scalewright.errors import ConfigError
from scalewright.lab.faults.leftovers import Leftovers, descendants
from scalewright.records import metric_names as names
from scalewright.records.events import EventTail
from scalewright.records.run_directory import RunDirectory

POLL_S = 0.02
LONGEST_S = 150.0
"""A run that takes longer is ended: every trial is made to take seconds."""
DROPPED_PREFIXES = ("SLURM", "SBATCH_", "SCALEWRIGHT_")
"""Variables of the caller that would change the run."""
Act = Callable[["Running"], None]


@dataclass(kw_only=True)
class Trial:
    """A run that is about to start. Injections change it."""

    folder: Path
    """What is left to explain: the run directory `run`, the text on the screen `console.log`, and what lies beside."""
    data: Path
    leftovers: Leftovers
    command: list[str]
    env: dict[str, str] = field(default_factory=dict)
    prefix: list[str] = field(default_factory=list)
    """Before the command, such as `taskset -c 0`."""
    acts: list[Act] = field(default_factory=list)
    """Each runs in a thread of its own while the run goes on."""
    start: Callable[[Trial], list[subprocess.Popen[bytes]]] | None = None
    """Another way to start the run; None: the command, once."""
    run_dir: Path = Path()
    at_end: list[Callable[[], None]] = field(default_factory=list)
    """Called when the run has ended, before anything is removed: they save evidence."""

    def __post_init__(self) -> None:
        self.run_dir = self.folder / "run"

    @property
    def arguments(self) -> list[str]:
        """The whole command of one process."""
        words = [word.replace("{data}", str(self.data)) for word in self.command]
        return [*self.prefix, sys.executable, "-m", "scalewright", *words, "--run-dir", str(self.run_dir)]

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(DROPPED_PREFIXES)}
        return kept | {"COLUMNS": "80", "NO_COLOR": "1"} | self.env | dict(extra or {})


@dataclass(kw_only=True)
class Running:
    """A run that goes on: its processes, and which step it has reached."""

    trial: Trial
    processes: list[subprocess.Popen[bytes]]
    ended: threading.Event = field(default_factory=threading.Event)

    def wait_for_step(self, step: int, *, rank: int = 0) -> bool:
        """Wait until a rank has done a step; false if the run ended before."""
        tail = EventTail(RunDirectory(self.trial.run_dir).rank_events(rank))
        while True:
            for event in tail.read():
                if event.name == names.STEP_TIME and event.step >= step:
                    return True
            if self.ended.wait(POLL_S):
                return False

    def ranks(self) -> dict[int, int]:
        """Process ids of the ranks."""
        every = (pid for process in self.processes for pid in (process.pid, *descendants(process.pid)))
        return {rank: pid for pid in every if (rank := _rank_of(pid)) is not None}

    def rank(self, number: int) -> int | None:
        """Process id of one rank, as soon as it is there; None if the run ended."""
        while not self.ended.is_set():
            pid = self.ranks().get(number)
            if pid is not None:
                return pid
            self.ended.wait(POLL_S)
        return None

    def pause(self, time_s: float) -> bool:
        """Wait; false if the run ended meanwhile."""
        return not self.ended.wait(time_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEnd:
    """How a run ended."""

    exit_code: int
    took_s: float
    timed_out: bool


def run_trial(trial: Trial, *, longest_s: float = LONGEST_S) -> TrialEnd:
    """Run it to its end, with everything that is done to it. Nothing that it started is left."""
    trial.folder.mkdir(parents=True, exist_ok=True)
    started_s = time.monotonic()
    running = Running(trial=trial, processes=[])
    threads: list[threading.Thread] = []
    timed_out = False
    try:
        running.processes += (trial.start or start_command)(trial)
        threads = [threading.Thread(target=_act, args=(act, running), daemon=True) for act in trial.acts]
        for thread in threads:
            thread.start()
        timed_out = not _wait(running.processes, until_s=started_s + longest_s)
    finally:
        running.ended.set()
        for process in running.processes:
            end_process(process)
        for thread in threads:
            thread.join()
        for save in trial.at_end:
            save()
    codes = [process.returncode for process in running.processes]
    code = next((code for code in codes if code), 0)
    return TrialEnd(exit_code=code, took_s=time.monotonic() - started_s, timed_out=timed_out)


def start_command(trial: Trial) -> list[subprocess.Popen[bytes]]:
    """The command, once; its ranks are its children."""
    return [start_process(trial, trial.arguments, trial.environment(), "console.log")]


def start_process(trial: Trial, arguments: list[str], env: Mapping[str, str], log: str) -> subprocess.Popen[bytes]:
    """Start a process whose output goes to a file of the trial's folder. It is written down to be ended."""
    with (trial.folder / log).open("ab") as file:
        process = subprocess.Popen(
            arguments, env=dict(env), cwd=trial.folder, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
            start_new_session=True,
        )  # fmt: skip
    trial.leftovers.process(process.pid)
    return process


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Kill it and everything below it, if it is still there."""
    if process.poll() is None:
        for pid in [*descendants(process.pid), process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    process.wait()


def _act(act: Act, running: Running) -> None:
    with contextlib.suppress(ProcessLookupError):  # the run ended first
        act(running)


def _wait(processes: list[subprocess.Popen[bytes]], *, until_s: float) -> bool:
    while any(process.poll() is None for process in processes):
        if time.monotonic() > until_s:
            return False
        time.sleep(POLL_S)
    return True


def _rank_of(pid: int) -> int | None:
    """The rank that a process is; None if it is none, or only belongs to one."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"scalewright.run" not in words:
            return None
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    if _rank_of_parent(pid):
        return None
    for name in (b"RANK=", b"SLURM_PROCID="):
        for variable in variables:
            if variable.startswith(name) and variable[len(name) :].isdigit():
                return int(variable[len(name) :])
    return None


def _rank_of_parent(pid: int) -> bool:
    """Whether the process was forked by a rank: a worker of its loader has its command line and variables."""
    try:
        parent = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        return b"scalewright.run" in Path(f"/proc/{parent}/cmdline").read_bytes().split(b"\0")
    except (OSError, IndexError, ValueError):
        return False


def workers_of(pid: int) -> list[int]:
    """Processes that a rank forked to prepare its data."""
    return [child for child in descendants(pid) if _rank_of_parent(child)]


@contextlib.contextmanager
def prepared_folder(path: Path) -> Iterator[Path]:
    """An empty folder for a trial."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"{path}: is not an empty folder: choose another --run-dir")
    path.mkdir(parents=True, exist_ok=True)
    yield path


def copy_evidence(source: Path, target: Path) -> None:
    """Keep what lies on a disk that is about to be removed. Sockets and locks stay behind."""
    shutil.copytree(source, target, dirs_exist_ok=True, symlinks=True, ignore=shutil.ignore_patterns(".lock"))
