"""Kill -9 at random moments: no completed checkpoint is lost, none that is loaded is torn, and the losses are those of
a run that nobody disturbed, bit for bit."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sys
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "ranks"))
from pool import free_port

from scalewright.records import metric_names as names
from scalewright.records.events import read_events
from scalewright.records.run_directory import RunDirectory
from scalewright.run.checkpoint_files import problem_with, read_manifest
from scalewright.workload.language_run import resolve
from scalewright.workload.layout import parse_layout
from scalewright.workload.model import from_shape

pytestmark = pytest.mark.kills

NUM_KILLS = int(os.environ.get("SCALEWRIGHT_TEST_KILLS", "50"))
KILLS = [("dp=2,mbs=1,gbs=2,zero=1", 2, NUM_KILLS * 2 // 5), ("mbs=1,gbs=2", 1, NUM_KILLS - NUM_KILLS * 2 // 5)]
"""Layout, ranks and kills: 50 in all. The longest comes first, so that another worker can take the rest."""
STEPS = 10**6
"""More than any attempt reaches: every one ends by a kill."""
FIRST_CHECKPOINT_S = 60.0


def make_run(path: Path, layout: str) -> RunDirectory:
    run = resolve(
        from_shape("layers=1,hidden=16,heads=2,vocab=32,seq=8"), parse_layout(layout), precision="fp32", device="cpu",
        steps=STEPS, checkpoint_every=2, checkpoint_async=True, checkpoint_keep=2, profile_steps=0,
    )  # fmt: skip
    return RunDirectory.create_or_resume(path, run.document())


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
    """The ranks of one attempt, forked from a process that has imported torch already."""

    def __init__(self, directory: RunDirectory, world_size: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["scalewright.run.__main__", "scalewright.run.language.train"])
        port = free_port()
        self.ranks: list[ForkServerProcess] = [
            context.Process(target=serve, args=(str(directory.path), rank, world_size, port), daemon=True)
            for rank in range(world_size)
        ]
        for process in self.ranks:
            process.start()

    def kill(self, victims: list[ForkServerProcess]) -> None:
        """Kill these at once, and the others once they had a moment to notice."""
        for process in victims:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
        time.sleep(0.05)
        for process in self.ranks:
            process.kill()
            process.join()


def whole_checkpoints(directory: RunDirectory) -> list[int]:
    """Steps of the checkpoints that carry a real name, each verified."""
    steps = directory.checkpoint_steps()
    for step in steps:
        folder = directory.checkpoint(step)
        assert problem_with(folder, read_manifest(folder)) is None
    return steps


def losses(directory: RunDirectory) -> dict[int, set[float]]:
    """Every loss that was written for a step, over all attempts; the same step may have been run again."""
    losses_by_step: dict[int, set[float]] = {}
    for event in read_events(directory.rank_events(0)):
        if event.name == names.LOSS and event.value is not None:
            losses_by_step.setdefault(event.step, set()).add(event.value)
    return losses_by_step


@pytest.mark.parametrize(("layout", "world_size", "num_kills"), KILLS)
def test_kills_lose_nothing_and_tear_nothing(tmp_path: Path, layout: str, world_size: int, num_kills: int) -> None:
    dice = random.Random(world_size)
    directory = make_run(tmp_path / "run", layout)
    newest = -1
    for _ in range(num_kills):
        attempt = Attempt(directory, world_size)
        deadline = time.monotonic() + FIRST_CHECKPOINT_S
        while max(directory.checkpoint_steps(), default=-1) <= newest:  # every attempt gets further than the last
            assert time.monotonic() < deadline, (directory.path / "logs" / "rank-0.log").read_text()[-2000:]
            assert all(process.is_alive() for process in attempt.ranks)
            time.sleep(0.005)
        time.sleep(dice.uniform(0.0, 0.08))  # a random moment of a step, a copy, a write or a rename
        completed = directory.checkpoint_steps()
        attempt.kill(attempt.ranks if dice.random() < 0.5 else [dice.choice(attempt.ranks)])
        kept = whole_checkpoints(directory)
        assert max(kept) >= max(completed)
        newest = max(kept)
    seen = losses(directory)
    assert len(seen) > num_kills
    assert [step for step, values in seen.items() if len(values) != 1] == []  # an attempt repeats a step exactly
    assert json.loads((directory.checkpoint(newest) / "manifest.json").read_text())["step"] == newest


def test_resumed_losses_equal_an_uninterrupted_run(tmp_path: Path) -> None:
    """The same steps in one go, and with a kill after each checkpoint."""
    whole, broken = make_run(tmp_path / "whole", "mbs=1,gbs=2"), make_run(tmp_path / "broken", "mbs=1,gbs=2")
    goal = 12
    for directory, pieces in ((whole, 1), (broken, 3)):
        for piece in range(pieces):
            attempt = Attempt(directory, 1)
            step_to_reach = goal * (piece + 1) // pieces
            while max(directory.checkpoint_steps(), default=0) < step_to_reach:
                assert attempt.ranks[0].is_alive()
                time.sleep(0.01)
            attempt.kill(attempt.ranks)
    first, second = losses(whole), losses(broken)
    common = sorted(set(first) & set(second))
    assert len(common) >= goal - 2
    assert [first[step] for step in common] == [second[step] for step in common]
