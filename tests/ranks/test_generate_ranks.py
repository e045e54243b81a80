"""An engine over two ranks gives the answers of one rank, from a seed and from a checkpoint of training."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from pool import RankPool
from test_layouts_agree import document

pytestmark = pytest.mark.ranks
ROUNDING = 1e-5


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    made = RankPool()
    yield made
    made.close()


def check_equal(answers: list[Any], expected: list[Any]) -> None:
    assert [answer[:3] for answer in answers] == [answer[:3] for answer in expected]
    for answer, other in zip(answers, expected, strict=True):
        assert answer[3] == pytest.approx(other[3], abs=ROUNDING)


@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_two_ranks_give_the_answers_of_one(pool: RankPool, name: str) -> None:
    alone = pool.run("jobs:generate", document(name, "dp=1"), "", "fp32", num_ranks=1)
    both = pool.run("jobs:generate", document(name, "tp=2"), "", "fp32", num_ranks=2)
    assert both[0] == both[1]
    check_equal(both[0], alone[0])
    assert len(alone[0]) == 6


def test_a_checkpoint_of_training_generates_under_any_layout(pool: RankPool, tmp_path: Path) -> None:
    pool.run("jobs:train_and_save", document("llama", "dp=2,zero=3"), str(tmp_path), num_ranks=2)
    folder = str(next((tmp_path / "checkpoints").iterdir()))
    alone = pool.run("jobs:generate", document("llama", "dp=1"), folder, "fp32", num_ranks=1)
    both = pool.run("jobs:generate", document("llama", "tp=2"), folder, "fp32", num_ranks=2)
    check_equal(both[0], alone[0])
    untrained = pool.run("jobs:generate", document("llama", "dp=1"), "", "fp32", num_ranks=1)
    assert alone[0] != untrained[0]
