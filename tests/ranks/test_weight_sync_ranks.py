"""Weights of trainers over two ranks, pulled by engines: those that the trainer gathers, from the parts it is said to
hold."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from pool import RankPool

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    made = RankPool()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("name", "layout", "lora"),
    [("even-gpt", "dp=2", False), ("llama", "dp=2,zero=1", False), ("qwen", "dp=2,zero=3", False),
     ("even-llama", "tp=2", False), ("even-gpt", "tp=2", False), ("even-llama", "dp=2,zero=3", True)],
)  # fmt: skip
def test_engines_pull_what_the_trainer_gathers(
    pool: RankPool, tmp_path: Path, name: str, layout: str, lora: bool
) -> None:
    answers = pool.run("jobs:sync_sequences", name, layout, lora, str(tmp_path), num_ranks=2)
    for answer in answers:
        assert answer["equal"] == {"peers": True, "broadcast": True, "file": True}
        assert answer["boxes"]
        assert answer["firsts"]
    assert len({one for answer in answers for one in answer["checksums"]}) == 1
    assert sum(answer["num_written"] for answer in answers) == answers[0]["num_bytes"]


def test_a_trainer_of_both_kinds_of_splits_is_pulled_too(pool: RankPool, tmp_path: Path) -> None:
    answers = pool.run("jobs:sync_sequences", "even-llama", "dp=2,zero=3,tp=2", False, str(tmp_path), num_ranks=4)
    for answer in answers:
        assert all(answer["equal"].values())
        assert answer["boxes"]
        assert answer["firsts"]
    assert sum(answer["num_written"] for answer in answers) == answers[0]["num_bytes"]
