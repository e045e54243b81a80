"""Kill -9 at random moments: no completed checkpoint is lost, none that is loaded is torn, and the losses are those of
a run that nobody disturbed, bit for bit."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from multiprocessing.context import BaseContext
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from checkpoint_kills import (
    ONE_RANK,
    PRELOADED,
    TWO_RANKS,
    Attempt,
    free_ports,
    kill_again_and_again,
    losses,
    make_run,
)

from scalewright.run.checkpoint_files import read_manifest

pytestmark = pytest.mark.kills

NUM_KILLS = int(os.environ.get("SCALEWRIGHT_TEST_KILLS", "50"))
KILLS = [(*TWO_RANKS, NUM_KILLS // 5, 1), (*TWO_RANKS, NUM_KILLS // 5, 2), (*ONE_RANK, NUM_KILLS * 3 // 5, 1)]
"""Layout, ranks, kills and seed: 50 kills in all. The longest come first, so that another worker can take the rest."""


@pytest.fixture(scope="module")
def context() -> BaseContext:
    """Forks ranks from a process that has imported PyTorch, and has no threads."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


@pytest.mark.parametrize(("layout", "world_size", "num_kills", "seed"), KILLS)
def test_kills_lose_nothing_and_tear_nothing(
    tmp_path: Path, context: BaseContext, layout: str, world_size: int, num_kills: int, seed: int
) -> None:
    directory = make_run(tmp_path / "run", layout)
    counts = kill_again_and_again(
        directory, layout=layout, world_size=world_size, num_kills=num_kills, seed=seed, context=context,
        ports=free_ports(),
    )  # fmt: skip
    assert (counts.num_kills, counts.num_lost, counts.num_torn) == (num_kills, 0, 0)
    assert counts.num_losses > num_kills
    assert counts.num_unequal == 0  # an attempt repeats a step exactly
    newest = max(directory.checkpoint_steps())
    assert read_manifest(directory.checkpoint(newest)).step == newest


def test_resumed_losses_equal_an_uninterrupted_run(tmp_path: Path, context: BaseContext) -> None:
    """The same steps in one go, and with a kill after each checkpoint."""
    ports = free_ports()
    whole, broken = make_run(tmp_path / "whole", "mbs=1,gbs=2"), make_run(tmp_path / "broken", "mbs=1,gbs=2")
    goal = 12
    for directory, pieces in ((whole, 1), (broken, 3)):
        for piece in range(pieces):
            attempt = Attempt(directory, 1, context, next(ports))
            step_to_reach = goal * (piece + 1) // pieces
            while max(directory.checkpoint_steps(), default=0) < step_to_reach:
                assert attempt.ranks[0].is_alive()
                time.sleep(0.01)
            attempt.kill(attempt.ranks)
    first, second = losses(whole), losses(broken)
    common = sorted(set(first) & set(second))
    assert len(common) >= goal - 2
    assert [first[step] for step in common] == [second[step] for step in common]
