"""Ranks on this machine: one process each, with a share of the cores. When one fails, all are ended."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scalewright.errors import ConfigError, EnvironmentFailedError
from scalewright.launch.ranks.forwarding import signals_to
from scalewright.records.events import Event, EventTail
from scalewright.records.run_directory import ExitInfo, RunDirectory
from scalewright.records.types import EnvName, ExitCode

POLL_S = 0.2
GRACE_S = 5.0
"""After one rank failed: time between TERM and KILL for the others."""
REQUEUE_GRACE_S = 15.0
"""The same if the first rank exited with 75: the others are still writing a checkpoint or their stacks."""
ADDRESS = "127.0.0.1"


def rank_environment(
    env: Mapping[str, str], *, rank: int, num_ranks: int, num_cores: int, port: int, job: str
) -> dict[str, str]:
    """Environment of one rank: the variables of torchrun, and its share of the cores unless the user set threads."""
    threads = env.get("OMP_NUM_THREADS") or str(max(1, num_cores // num_ranks))
    return {
        **env,
        "RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": ADDRESS,
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": threads,
        EnvName.LAUNCHER: "local",
        EnvName.JOB: job,
    }


def pick_port(env: Mapping[str, str]) -> int:
    """A free port for the rendezvous of the ranks: MASTER_PORT if it is set and free, else any."""
    with held_port(env) as listener:
        return int(listener.getsockname()[1])


def held_port(env: Mapping[str, str]) -> socket.socket:
    """A socket that listens at such a port. Its handle is given to the first rank: nobody can take the port between."""
    requested_port = env.get("MASTER_PORT", "0")
    if not requested_port.isdigit() or int(requested_port) > 65535:
        raise ConfigError(f"MASTER_PORT is {requested_port!r}: it must be a port number from 1 to 65535")
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((ADDRESS, int(requested_port)))
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        listener.close()
        raise EnvironmentFailedError(
            f"port {requested_port} cannot be used ({error.strerror}): set MASTER_PORT to another one, or unset it"
        ) from error
    return listener


@dataclass
class LocalRanks:
    """The processes of one world on this machine."""

    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    signals: list[int] = field(default_factory=list)
    """Signals that the launcher received."""
    ended_by_us: set[int] = field(default_factory=set)
    """Ranks that the launcher killed."""
    first: tuple[int, int] | None = None
    """Rank and status of the first failure; None: no rank failed."""
    deadline_s: float = 0.0

    def send(self, number: int) -> None:
        for rank, process in enumerate(self.processes):
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(number)
                if number == signal.SIGKILL:
                    self.ended_by_us.add(rank)

    def pass_on(self, number: int) -> None:
        """Send the signal to the ranks, which stop after the current step. A second Ctrl-C kills them at once."""
        is_second = number == signal.SIGINT and number in self.signals
        self.signals.append(number)
        self.send(signal.SIGKILL if is_second else number)

    def are_running(self) -> bool:
        """Look at the ranks. When one has failed, the others are asked to end, and killed if they do not."""
        are_running = bool(self.running)  # looked at first: a rank that ends meanwhile is among the failed
        if self.first is None and self.failed:
            self.first = _cause(self.failed)
            self.send(signal.SIGTERM)
            grace_s = REQUEUE_GRACE_S if self.first[1] == ExitCode.REQUEUE else GRACE_S
            self.deadline_s = time.monotonic() + grace_s
        if self.first is not None and time.monotonic() > self.deadline_s:
            self.send(signal.SIGKILL)
        return are_running

    def kill(self) -> None:
        """Leave no process behind."""
        self.send(signal.SIGKILL)
        for process in self.processes:
            process.wait()

    @property
    def running(self) -> list[int]:
        return [rank for rank, process in enumerate(self.processes) if process.poll() is None]

    @property
    def failed(self) -> list[tuple[int, int]]:
        """Rank and exit status of ranks that failed and were not killed by the launcher."""
        codes = ((rank, p.returncode) for rank, p in enumerate(self.processes) if p.poll())
        return [(rank, code) for rank, code in codes if rank not in self.ended_by_us]


def run_ranks(
    directory: RunDirectory,
    *,
    kind: str,
    num_ranks: int,
    num_cores: int,
    on_events: Callable[[list[Event]], None],
    on_signal: Callable[[int], None] = lambda _: None,
) -> int:
    """Start the ranks and wait for them. Returns the exit code of the first rank that failed; 130 after Ctrl-C."""
    listener, job = held_port(os.environ), f"local-{int(time.time())}-{os.getpid()}"
    port = int(listener.getsockname()[1])
    tails = [EventTail(directory.rank_events(rank)) for rank in range(num_ranks)]
    for tail in tails:
        tail.skip_to_end()
    directory.exit_info.unlink(missing_ok=True)
    ranks = LocalRanks()
    with signals_to(ranks.pass_on):
        try:
            for rank in range(num_ranks):
                env = rank_environment(
                    os.environ, rank=rank, num_ranks=num_ranks, num_cores=num_cores, port=port, job=job
                )
                ranks.processes.append(start_rank(directory, kind, rank, env, listener=listener))
            _wait(ranks, lambda: on_events([event for tail in tails for event in tail.read()]), on_signal)
        finally:
            listener.close()
            ranks.kill()
    on_events([event for tail in tails for event in tail.read()])
    return _exit_code(directory, ranks, job)


def start_rank(
    directory: RunDirectory, kind: str, rank: int, env: dict[str, str], *, run_path: Path | None = None,
    listener: socket.socket | None = None,
) -> subprocess.Popen[bytes]:  # fmt: skip
    """Start one rank, whose log is in `directory`. It opens `run_path`, if that is another.

    The first rank takes over `listener`, which is closed here: if that rank ends, the others are refused at once.
    """
    handles: tuple[int, ...] = ()
    if listener is not None and rank == 0:
        handles = (listener.fileno(),)
        env = {**env, EnvName.LISTENER: str(listener.fileno())}
    command = [sys.executable, "-m", "scalewright.run", kind, "--run-dir", str(run_path or directory.path)]
    directory.log(rank).parent.mkdir(parents=True, exist_ok=True)
    with directory.log(rank).open("ab") as log:
        # In a session of its own, a rank gets Ctrl-C once, from this launcher, and not also from the terminal.
        process = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            pass_fds=handles,
        )  # fmt: skip
    if handles and listener is not None:
        listener.close()
    return process


def _wait(ranks: LocalRanks, look: Callable[[], None], on_signal: Callable[[int], None]) -> None:
    """Wait until all ranks have ended."""
    num_reported = 0
    while ranks.are_running():
        time.sleep(POLL_S)
        look()
        for number in ranks.signals[num_reported:]:  # not in the handler, which may interrupt a write
            on_signal(number)
            num_reported += 1


def _cause(failed: list[tuple[int, int]]) -> tuple[int, int]:
    """Of several failures at once, a rank killed by a signal is the cause: the others fail because they lost it."""
    return min(failed, key=lambda rank_and_status: (rank_and_status[1] > 0, rank_and_status[0]))


def _exit_code(directory: RunDirectory, ranks: LocalRanks, job: str) -> int:
    """The exit code of a world that has ended. Where no rank recorded the reason, it is recorded here."""
    if signal.SIGINT in ranks.signals:
        return ExitCode.INTERRUPTED
    if ranks.first is None:
        return ExitCode.YES
    rank, status = ranks.first
    recorded = directory.read_exit_info() if status > 0 else None
    if recorded is not None:
        # The rank that recorded its reason is the cause. A rank that lost it may have exited before it.
        return recorded.code or status
    reason = f"exit code {status}" if status > 0 else f"signal {signal.Signals(-status).name}"
    checkpoint = directory.last_checkpoint()
    info = ExitInfo(
        code=ExitCode.ENVIRONMENT,
        reason=f"rank {rank} ended with {reason}: see logs/rank-{rank}.log, then run it again to resume",
        job=job,
        attempt=0,
        rank=rank,
        last_checkpoint=None if checkpoint is None else str(checkpoint.relative_to(directory.path)),
        time=time.time(),
    )
    with contextlib.suppress(OSError):  # a full disk may be the reason why it ended
        directory.write_exit_info(info, is_cause=True)
    return ExitCode.ENVIRONMENT
