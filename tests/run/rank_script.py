"""A rank whose work is a few lines of Python instead of training: `rank_script.py DIR BEHAVIOUR`."""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from pathlib import Path

from scalewright.errors import ConfigError
from scalewright.records.metric_names import LOSS, STEP_TIME
from scalewright.records.run_directory import RunDirectory
from scalewright.records.types import ExitCode
from scalewright.run.__main__ import execute
from scalewright.run.rank_context import RankContext
from scalewright.run.watchdog import Watchdog
from scalewright.run.world import World

STEP_S = 0.02
BEHAVIOUR = sys.argv[2]


def stuck_here() -> None:
    time.sleep(600)


def waits_for_the_other() -> None:
    threading.Event().wait(600)


def steps(rank: RankContext) -> ExitCode:
    metrics = rank.metrics
    for step in range(1, 10_000 if BEHAVIOUR == "endless" else 31):
        time.sleep(STEP_S)
        loss = float("nan") if BEHAVIOUR == "nan" and step > 20 else 3.0 if BEHAVIOUR == "frozen" else 5.0 / step
        metrics.write(step=step, name=STEP_TIME, value=STEP_S, unit="s")
        metrics.write(step=step, name=LOSS, value=loss, unit="1")
        work = 2e12 if BEHAVIOUR == "impossible" else 5e11
        rank.watchdog.step_done(step=step, seconds_s=STEP_S, loss=loss, flop_per_s=work, peak_flop_per_s=1e12)
        if rank.stop.requested:
            return ExitCode.REQUEUE
        if step == 20:
            misbehave(rank.world, rank.watchdog)
    return ExitCode.YES


def misbehave(world: World, watchdog: Watchdog) -> None:
    if BEHAVIOUR == "hang":
        stuck_here() if world.rank == 1 else waits_for_the_other()
    if BEHAVIOUR == "suspended":
        with watchdog.suspended():
            time.sleep(1.5)
    if BEHAVIOUR == "stuck-save":
        with watchdog.saving():
            stuck_here()
    if BEHAVIOUR == "lost" and world.rank == 0:
        raise RuntimeError("[../gloo/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:23")
    if BEHAVIOUR == "lost":
        time.sleep(1.0)
        raise ZeroDivisionError("the cause")
    if BEHAVIOUR == "refuse":
        raise ConfigError("seq 7 does not divide: use 8")
    if BEHAVIOUR == "full":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "checkpoints/step-5")
    if BEHAVIOUR == "bug":
        raise ZeroDivisionError("division by zero")
    if BEHAVIOUR == "memory":
        raise MemoryError
    if BEHAVIOUR == "port":
        raise RuntimeError("The server socket has failed to bind. EADDRINUSE: address already in use")


if __name__ == "__main__":
    sys.exit(execute(steps, RunDirectory.open(Path(sys.argv[1])), World.from_environment(os.environ)))
