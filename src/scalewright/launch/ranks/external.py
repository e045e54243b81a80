"""Ranks started from outside: torchrun or srun started this process as one of several, so it starts no ranks itself.

    torchrun --nproc-per-node 4 -m scalewright bench collectives --run-dir r
    srun --ntasks 8 scalewright bench collectives --run-dir r

The first process creates the run directory and prints. The others wait for the directory and become their rank.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from scalewright import units
from scalewright.errors import ConfigError, EnvironmentFailedError
from scalewright.launch.ranks.forwarding import signals_to
from scalewright.records.documents import read_document
from scalewright.records.run_directory import RunDirectory
from scalewright.records.types import EnvName

WAIT_S = 120.0
"""Time for the run directory of the first rank to appear. Shared file systems show new files late."""
POLL_S = 0.2


def rank_of_process(env: Mapping[str, str]) -> tuple[int, int] | None:
    """Rank and number of ranks, if torchrun or srun started this process with others; None if it is alone."""
    if "TORCHELASTIC_RUN_ID" in env:
        rank, num = env.get("RANK", ""), env.get("WORLD_SIZE", "")
    else:
        rank, num = env.get("SLURM_PROCID", ""), env.get("SLURM_STEP_NUM_TASKS", "")
    if not (rank.isdigit() and num.isdigit()) or int(num) < 2:
        return None
    return int(rank), int(num)


def num_ranks_here(env: Mapping[str, str], *, requested_ranks: int | None, has_run_dir: bool) -> int | None:
    """Ranks that were started with this process; None if it is alone. Refuses another --ranks, or no --run-dir."""
    rank_and_count = rank_of_process(env)
    if rank_and_count is None:
        return None
    num_ranks = rank_and_count[1]
    if requested_ranks not in (None, num_ranks):
        raise ConfigError(
            f"--ranks {requested_ranks}, but {num_ranks} ranks were started: leave --ranks out, or start as many"
        )
    if not has_run_dir:
        raise ConfigError(f"{num_ranks} ranks were started, and each would choose its own folder: give --run-dir")
    return num_ranks


def run_first(directory: RunDirectory, *, kind: str, look: Callable[[], None]) -> int:
    """Run the first rank as a child process, because this process prints afterwards."""
    env = {**os.environ, EnvName.HELD: "1"}
    process = subprocess.Popen(_command(directory, kind), stdin=subprocess.DEVNULL, env=env)
    with signals_to(process.send_signal):
        while process.poll() is None:
            time.sleep(POLL_S)
            look()
    return process.returncode


def become_rank(directory: RunDirectory, config: dict[str, Any], *, kind: str) -> NoReturn:
    """Become one of the other ranks, when the first has created the run directory."""
    _wait_until(lambda: directory.holds(config), directory)
    _become(directory, kind)


def follow_first(directory: RunDirectory) -> NoReturn:
    """Become one of the other ranks of the run that the first rank prepares; the kind is read from its directory."""
    _wait_until(directory.config.exists, directory)
    kind = str(read_document(directory.run, "run").get("kind", ""))
    _become(directory, kind.removesuffix("-run"))


def _wait_until(is_there: Callable[[], bool], directory: RunDirectory) -> None:
    until_s = time.monotonic() + WAIT_S
    while not is_there():
        if time.monotonic() > until_s:
            raise EnvironmentFailedError(
                f"{directory.path}: the first rank created no run here within {units.format(WAIT_S, units.SECONDS)}: "
                "choose a folder that all nodes share, and read the messages of the first rank"
            )
        time.sleep(POLL_S)


def _become(directory: RunDirectory, kind: str) -> NoReturn:
    command = _command(directory, kind)
    os.execv(command[0], command)


def _command(directory: RunDirectory, kind: str) -> list[str]:
    return [sys.executable, "-m", "scalewright.run", kind, "--run-dir", str(directory.path.resolve())]
