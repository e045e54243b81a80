"""Started by torchrun or srun as one of several: this process is a rank itself, and starts none.

    torchrun --nproc-per-node 4 -m scalewright bench collectives --run-dir r
    srun --ntasks 8 scalewright bench collectives --run-dir r

The first makes the run directory and prints; the others wait for it and become their rank.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from scalewright.errors import ConfigError, EnvironmentFailedError
from scalewright.launch.ranks.forwarding import signals_to
from scalewright.records.documents import read_document
from scalewright.records.run_directory import RunDirectory

WAIT_S = 120.0
"""For the first rank to make the run directory: file systems of clusters show a new file late."""
POLL_S = 0.2


def place_here(env: Mapping[str, str]) -> tuple[int, int] | None:
    """Rank and number of ranks where torchrun or srun started this process beside others; None where it is alone."""
    if "TORCHELASTIC_RUN_ID" in env:
        rank, num = env.get("RANK", ""), env.get("WORLD_SIZE", "")
    else:
        rank, num = env.get("SLURM_PROCID", ""), env.get("SLURM_STEP_NUM_TASKS", "")
    if not (rank.isdigit() and num.isdigit()) or int(num) < 2:
        return None
    return int(rank), int(num)


def num_ranks_here(env: Mapping[str, str], *, wanted: int | None, has_run_dir: bool) -> int | None:
    """Ranks that were started with this process; None where it is alone. What they cannot agree on is refused."""
    place = place_here(env)
    if place is None:
        return None
    if wanted not in (None, place[1]):
        raise ConfigError(f"--ranks {wanted}, but {place[1]} were started: leave --ranks out, or start as many")
    if not has_run_dir:
        raise ConfigError(f"{place[1]} ranks were started, and each would name its own folder: give --run-dir")
    return place[1]


def run_first(directory: RunDirectory, *, kind: str, look: Callable[[], None]) -> int:
    """Run the first rank beside this process, which has something to print afterwards."""
    process = subprocess.Popen(_command(directory, kind), stdin=subprocess.DEVNULL)
    with signals_to(process.send_signal):
        while process.poll() is None:
            time.sleep(POLL_S)
            look()
    return process.returncode


def become_rank(directory: RunDirectory, config: dict[str, Any], *, kind: str) -> NoReturn:
    """Become one of the other ranks, once the first has made the run directory."""
    _wait_until(lambda: directory.holds(config), directory)
    _become(directory, kind)


def follow_first(directory: RunDirectory) -> NoReturn:
    """Become one of the other ranks of whatever run the first makes there: what it is to be, the first works out."""
    _wait_until(directory.config.exists, directory)
    found = str(read_document(directory.run, "run").get("kind", ""))
    _become(directory, found.removesuffix("-run"))


def _wait_until(is_there: Callable[[], bool], directory: RunDirectory) -> None:
    until_s = time.monotonic() + WAIT_S
    while not is_there():
        if time.monotonic() > until_s:
            raise EnvironmentFailedError(
                f"{directory.path}: the first rank made no run here within {WAIT_S:.0f} s: name a folder that all "
                "nodes share, and see what the first rank said"
            )
        time.sleep(POLL_S)


def _become(directory: RunDirectory, kind: str) -> NoReturn:
    command = _command(directory, kind)
    os.execv(command[0], command)


def _command(directory: RunDirectory, kind: str) -> list[str]:
    return [sys.executable, "-m", "scalewright.run", kind, "--run-dir", str(directory.path.resolve())]
