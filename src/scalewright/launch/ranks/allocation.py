"""Ranks on the nodes of the current Slurm allocation, started with one srun."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import IO

from scalewright.errors import ConfigError, EnvironmentFailedError
from scalewright.launch.ranks.forwarding import signals_to
from scalewright.records.events import Event, EventTail
from scalewright.records.run_directory import ExitInfo, RunDirectory
from scalewright.records.types import EnvName, ExitCode

POLL_S = 1.0
MOST_KEPT_BYTES = 1 << 16
OUT_OF_MEMORY = re.compile(r"oom[-_ ]kill|Out Of Memory|exceeded (?:job|step) memory limit", re.IGNORECASE)
SLURM_KILLED = "Slurm killed a rank that took more host memory than the job has; ask for more: --directive mem=64G"


def is_inside(env: Mapping[str, str]) -> bool:
    """True in a batch script or an interactive allocation, false in a task that srun started."""
    return "SLURM_JOB_ID" in env and "SLURM_STEP_ID" not in env


def num_nodes(env: Mapping[str, str]) -> int:
    """Nodes of the allocation, or of the step that this process is a task of; 1 outside of Slurm."""
    return max(_count(env, "SLURM_JOB_NUM_NODES" if is_inside(env) else "SLURM_STEP_NUM_NODES", 1), 1)


def default_num_ranks(env: Mapping[str, str]) -> int:
    """One rank per GPU of the allocation; without GPUs one per task of the allocation."""
    nodes, gpus = _count(env, "SLURM_JOB_NUM_NODES", 1), _count(env, "SLURM_GPUS_ON_NODE", 0)
    return nodes * gpus if gpus else _count(env, "SLURM_NTASKS", nodes)


def srun_command(env: Mapping[str, str], directory: RunDirectory, *, kind: str, num_ranks: int) -> list[str]:
    """The srun command. Ranks are spread evenly over the nodes; a number that does not divide is refused."""
    nodes = _count(env, "SLURM_JOB_NUM_NODES", 1)
    used = min(nodes, num_ranks)
    if num_ranks % used:
        raise ConfigError(f"--ranks {num_ranks} does not spread evenly over {nodes} nodes: use a multiple of {nodes}")
    per_node = num_ranks // used
    return [
        "srun", f"--nodes={used}", f"--ntasks={num_ranks}", f"--ntasks-per-node={per_node}", "--kill-on-bad-exit=1",
        sys.executable, "-m", "scalewright.run", kind, "--run-dir", str(directory.path.resolve()),
    ]  # fmt: skip


def run_in_allocation(
    env: Mapping[str, str],
    directory: RunDirectory,
    *,
    kind: str,
    num_ranks: int,
    on_events: Callable[[list[Event]], None],
) -> int:
    """Run the ranks under srun until they end, and return the exit code of the rank that was the cause.

    The exit code of srun is the largest of its tasks: often 137, of a rank that srun itself killed because another had
    ended. What a rank recorded comes first.
    """
    if shutil.which("srun") is None:
        raise EnvironmentFailedError("srun is not on PATH inside this Slurm allocation: load Slurm's module")
    tail = EventTail(directory.rank_events(0))
    tail.skip_to_end()
    command = srun_command(env, directory, kind=kind, num_ranks=num_ranks)
    directory.exit_info.unlink(missing_ok=True)
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
        env={**env, EnvName.HELD: "1"},
    )  # fmt: skip
    messages = PassedOn(process.stderr)
    signals: list[int] = []

    def pass_on(number: int) -> None:
        """Send the signal to srun, which passes TERM and USR1 to its tasks. On INT it only prints: INT becomes TERM."""
        signals.append(number)
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM if number == signal.SIGINT else number)

    with signals_to(pass_on):
        while process.poll() is None:
            time.sleep(POLL_S)
            on_events(tail.read())
    on_events(tail.read())
    messages.finish()
    if signal.SIGINT in signals:
        return ExitCode.INTERRUPTED
    return process.returncode and code_of_cause(directory, process.returncode, messages.end, job=env["SLURM_JOB_ID"])


class PassedOn:
    """What srun says: passed on as it comes, and its end kept, because srun alone tells why Slurm killed a rank."""

    def __init__(self, stream: IO[bytes] | None) -> None:
        assert stream is not None
        self._stream = stream
        self._kept = b""
        self._thread = threading.Thread(target=self._pass_on, name="messages of srun", daemon=True)
        self._thread.start()

    def _pass_on(self) -> None:
        while piece := os.read(self._stream.fileno(), 4096):
            self._kept = (self._kept + piece)[-MOST_KEPT_BYTES:]
            with contextlib.suppress(OSError):
                os.write(2, piece)

    def finish(self) -> None:
        self._thread.join(timeout=POLL_S)

    @property
    def end(self) -> str:
        return self._kept.decode("utf-8", "replace")


def code_of_cause(directory: RunDirectory, status: int, messages: str, *, job: str) -> int:
    """The exit code of a job whose srun ended with `status`. Where Slurm told more than the ranks, it is recorded."""
    with contextlib.suppress(ConfigError):  # not as it was written: srun's status then
        recorded = directory.read_exit_info()
        if recorded is not None and not recorded.finished and not recorded.lost_another:
            return recorded.code
    is_out_of_memory = OUT_OF_MEMORY.search(messages) is not None
    killed = f"a rank ended with exit code {status}: see logs/"
    reason = f"out of memory: {SLURM_KILLED}" if is_out_of_memory else killed
    checkpoint = directory.last_checkpoint()
    info = ExitInfo(
        code=status, reason=reason, job=job, attempt=0, rank=-1, time=time.time(),
        last_checkpoint=None if checkpoint is None else str(checkpoint.relative_to(directory.path)),
    )  # fmt: skip
    with contextlib.suppress(OSError, EnvironmentFailedError):  # a full disk may be the reason
        directory.write_exit_info(info, is_cause=True)
    return status


def _count(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name, "")
    return int(text) if text.isdigit() else default
