"""Ranks on the nodes of the current Slurm allocation, started with one srun."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

from scalewright.errors import ConfigError, EnvironmentFailedError
from scalewright.launch.ranks.forwarding import signals_to
from scalewright.records.events import Event, EventTail
from scalewright.records.run_directory import RunDirectory
from scalewright.records.types import ExitCode

POLL_S = 1.0


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
    """Run the ranks under srun until they end. The exit code of srun is the largest of its tasks."""
    if shutil.which("srun") is None:
        raise EnvironmentFailedError("srun is not on PATH inside this Slurm allocation: load Slurm's module")
    tail = EventTail(directory.rank_events(0))
    tail.skip_to_end()
    command = srun_command(env, directory, kind=kind, num_ranks=num_ranks)
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
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
    return ExitCode.INTERRUPTED if signal.SIGINT in signals else process.returncode


def _count(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name, "")
    return int(text) if text.isdigit() else default
