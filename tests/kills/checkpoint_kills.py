"""Kill ranks at random moments, again and again: no completed checkpoint is lost, and none that is loaded is torn.

    python tests/kills/checkpoint_kills.py --kills 1000 --processes 10 --out runs/kills

runs many run directories at once, two thirds with one rank and the others with two, and writes `summary.json`. pytest
is not needed. Ranks are forked from a process that has imported PyTorch, which takes longer than most of them live.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import platform
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import count
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

from scalewright.records import metric_names as names
from scalewright.records.events import read_events
from scalewright.records.run_directory import RunDirectory
from scalewright.run.checkpoint_files import problem_with, read_manifest
from scalewright.workload.language_run import resolve
from scalewright.workload.layout import parse_layout
from scalewright.workload.model import from_shape

ONE_RANK, TWO_RANKS = ("mbs=1,gbs=2", 1), ("dp=2,mbs=1,gbs=2,zero=1", 2)
STEPS = 10**6
"""More than any attempt reaches: every one ends by a kill."""
FIRST_CHECKPOINT_S = 60.0
PRELOADED = [
    "scalewright.run.__main__", "scalewright.run.language.train", "numpy.random", "numpy.ma", "psutil",
    "torch.utils._device", "torch.utils.serialization",
]  # fmt: skip
FIRST_PORT, PORTS_END, NUM_PORTS = 20_000, 32_000, 500
"""Ports of a process in the soak: below those that the system gives away, and no two processes have the same."""


@dataclass(slots=True)
class KillCounts:
    """What came of the kills of one run directory."""

    layout: str
    seed: int
    num_kills: int = 0
    num_lost: int = 0
    """Kills after which a checkpoint was gone that had been complete before."""
    num_torn: int = 0
    """Checkpoints with a real name whose content is not what their manifest says."""
    num_losses: int = 0
    num_unequal: int = 0
    """Steps that had another loss when they were run again."""
    problem: str = ""


def make_run(path: Path, layout: str) -> RunDirectory:
    run = resolve(
        from_shape("layers=1,hidden=16,heads=2,vocab=32,seq=8"), parse_layout(layout), precision="fp32", device="cpu",
        steps=STEPS, checkpoint_every=2, checkpoint_async=True, checkpoint_keep=2, profile_steps=0,
    )  # fmt: skip
    return RunDirectory.create_or_resume(path, run.document())


def first_port(number: int) -> int:
    """The first of the ports of a run directory or a process."""
    return FIRST_PORT + number * NUM_PORTS % (PORTS_END - FIRST_PORT)


def free_ports(first: int = 0) -> Iterator[int]:
    """Ports that nobody uses; without `first` those of this process, below those that the system gives away."""
    first = first or first_port(os.getpid())
    for number in count():
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", first + number % NUM_PORTS))
            except OSError:
                continue
            port = int(probe.getsockname()[1])
        yield port


def serve(path: str, rank: int, world_size: int, port: int) -> None:
    """Be one rank of the run until killed."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(rank))
    os.environ.update(LOCAL_WORLD_SIZE=str(world_size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    import torch

    from scalewright.run.__main__ import execute, kind_named
    from scalewright.run.world import World

    torch.set_num_threads(1)
    sys.exit(execute(kind_named("language"), RunDirectory.open(Path(path)), World.from_environment(os.environ)))


class Attempt:
    """The ranks of one attempt."""

    def __init__(self, directory: RunDirectory, world_size: int, context: BaseContext, port: int) -> None:
        self.ranks: list[Any] = [
            context.Process(target=serve, args=(str(directory.path), rank, world_size, port), daemon=True)  # type: ignore[attr-defined]
            for rank in range(world_size)
        ]
        for process in self.ranks:
            process.start()

    def kill(self, victims: list[Any]) -> None:
        """Kill these at once, and the others once they had a moment to notice."""
        for process in victims:
            os.kill(process.pid, signal.SIGKILL)
        time.sleep(0.05)
        for process in self.ranks:
            process.kill()
            process.join()


def num_torn(directory: RunDirectory) -> int:
    """Of the checkpoints that carry a real name, how many are not whole."""
    folders = [directory.checkpoint(step) for step in directory.checkpoint_steps()]
    return sum(problem_with(folder, read_manifest(folder)) is not None for folder in folders)


def losses(directory: RunDirectory) -> dict[int, set[float]]:
    """Every loss that was written for a step, over all attempts; the same step may have been run again."""
    losses_by_step: dict[int, set[float]] = {}
    for event in read_events(directory.rank_events(0)):
        if event.name == names.LOSS and event.value is not None:
            losses_by_step.setdefault(event.step, set()).add(event.value)
    return losses_by_step


def kill_again_and_again(
    directory: RunDirectory, *, layout: str, world_size: int, num_kills: int, seed: int, context: BaseContext,
    ports: Iterator[int], stop_s: float = float("inf"),
) -> KillCounts:  # fmt: skip
    """Kill a run at so many random moments, each after it got further than before. `stop_s`: when to stop killing."""
    dice, counts, newest = random.Random(f"{world_size}-{seed}"), KillCounts(layout=layout, seed=seed), -1
    while counts.num_kills < num_kills and time.monotonic() < stop_s:
        attempt = Attempt(directory, world_size, context, next(ports))
        deadline = time.monotonic() + FIRST_CHECKPOINT_S
        while max(directory.checkpoint_steps(), default=-1) <= newest:  # every attempt gets further than the last
            log = directory.path / "logs" / "rank-0.log"
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            assert all(process.is_alive() for process in attempt.ranks), log.read_text()[-2000:]
            time.sleep(0.005)
        time.sleep(dice.uniform(0.0, 0.08))  # a random moment of a step, a copy, a write or a rename
        completed = directory.checkpoint_steps()
        attempt.kill(attempt.ranks if dice.random() < 0.5 else [dice.choice(attempt.ranks)])
        counts.num_kills += 1
        counts.num_torn += num_torn(directory)
        newest = max(directory.checkpoint_steps(), default=-1)
        counts.num_lost += newest < max(completed)
    written = losses(directory)
    counts.num_losses = len(written)
    counts.num_unequal = sum(len(values) != 1 for values in written.values())
    return counts


def _soak_one(job: tuple[int, int, float, str]) -> KillCounts:
    """One run directory of the soak."""
    number, num_kills, stop_s, scratch = job
    layout, world_size = TWO_RANKS if number % 3 == 0 else ONE_RANK
    directory = make_run(Path(scratch) / f"run-{number}", layout)
    try:
        counts = kill_again_and_again(
            directory, layout=layout, world_size=world_size, num_kills=num_kills, seed=number,
            context=multiprocessing.get_context("fork"), ports=free_ports(first_port(number)),
            stop_s=stop_s,
        )  # fmt: skip
    except BaseException:
        return KillCounts(layout=layout, seed=number, problem=traceback.format_exc()[-3000:])
    shutil.rmtree(directory.path)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=2, help="run directories at a time")
    parser.add_argument("--directories", type=int, default=0, help="in all; 0: as many as processes")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop killing after this time")
    parser.add_argument("--out", type=Path, required=True, help="folder of the summary")
    options = parser.parse_args()
    for name in PRELOADED:
        importlib.import_module(name)
    num_directories = options.directories or options.processes
    began_s = time.monotonic()
    sizes = [options.kills // num_directories + (n < options.kills % num_directories) for n in range(num_directories)]
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    options.out.mkdir(parents=True, exist_ok=True)
    runs: list[KillCounts] = []
    with (
        tempfile.TemporaryDirectory(prefix="kills-", dir=memory) as scratch,
        ProcessPoolExecutor(options.processes, mp_context=multiprocessing.get_context("fork")) as pool,
    ):
        jobs = [(number, size, began_s + options.seconds, scratch) for number, size in enumerate(sizes)]
        for run in pool.map(_soak_one, jobs):
            runs.append(run)  # a soak that is cut off keeps what it has
            figures = _summary(runs, processes=options.processes, wall_s=time.monotonic() - began_s)
            (options.out / "summary.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write("".join(f"{problem}\n\n" for problem in figures["problems"]))
    sys.stdout.write(
        f"{figures['num_kills']} kills: {figures['num_lost']} checkpoints lost, {figures['num_torn']} torn; "
        f"{figures['num_unequal']} of {figures['num_losses']} losses differ; {figures['wall_s']:.0f} s\n"
    )
    is_sound = figures["num_lost"] + figures["num_torn"] + figures["num_unequal"] == 0
    return int(bool(figures["problems"]) or not is_sound)


def _summary(runs: list[KillCounts], *, processes: int, wall_s: float) -> dict[str, Any]:
    """The figures of the run directories that are done."""
    sums = ("num_kills", "num_lost", "num_torn", "num_losses", "num_unequal")
    return {
        "schema": "scalewright.kill_soak/v1", **{name: sum(getattr(run, name) for run in runs) for name in sums},
        "wall_s": round(wall_s, 1), "processes": processes, "python": platform.python_version(),
        "problems": [run.problem for run in runs if run.problem], "runs": [asdict(run) for run in runs],
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
