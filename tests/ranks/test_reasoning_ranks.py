"""Trainers of answered prompts over two ranks train as one rank does, and go on from each other's checkpoints."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from pool import RankPool

from scalewright.workload.reasoning.lora_settings import LoraSettings

pytestmark = pytest.mark.ranks

# fp32 sums in another order, and three steps of Adam at a rate of 1e-2
ROUNDING_FRAC = 1e-4


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    made = RankPool()
    yield made
    made.close()


@pytest.fixture(scope="module")
def alone(pool: RankPool) -> dict[str, Any]:
    cases = {"sft": ("even-llama", ""), "grpo": ("even-llama", "grpo"), "dapo": ("even-gpt", "dapo")}
    return {
        key: pool.run("jobs:train_sequences", name, "dp=1", policy, {}, num_ranks=1)[0]
        for key, (name, policy) in cases.items()
    }


def check_equal(answer: dict[str, Any], expected: dict[str, Any]) -> None:
    for key in ("losses", "norms"):
        assert answer[key] == pytest.approx(expected[key], rel=ROUNDING_FRAC, abs=1e-6)
    assert answer["num_tokens"] == expected["num_tokens"]
    assert answer["numbers"] == pytest.approx(expected["numbers"], rel=1e-3, abs=1e-5)
    for index, values in expected["log_probs"].items():
        assert answer["log_probs"][index] == pytest.approx(values, abs=2e-3)


@pytest.mark.parametrize("layout", ["dp=2", "dp=2,zero=1", "dp=2,zero=2", "dp=2,zero=3", "tp=2"])
@pytest.mark.parametrize(("case", "name", "policy"), [("sft", "even-llama", ""), ("grpo", "even-llama", "grpo")])
def test_two_ranks_train_as_one(
    pool: RankPool, alone: dict[str, Any], layout: str, case: str, name: str, policy: str
) -> None:
    answers = pool.run("jobs:train_sequences", name, layout, policy, {}, num_ranks=2)
    for answer in answers:
        check_equal(answer, alone[case])
    assert answers[0]["weights"] == answers[1]["weights"]
    assert answers[0]["weights"].keys() == alone[case]["weights"].keys()


@pytest.mark.parametrize("layout", ["dp=2,zero=3", "tp=2"])
def test_tied_tables_and_learned_positions_too(pool: RankPool, alone: dict[str, Any], layout: str) -> None:
    answers = pool.run("jobs:train_sequences", "even-gpt", layout, "dapo", {}, num_ranks=2)
    check_equal(answers[0], alone["dapo"])


@pytest.mark.parametrize(
    ("layout", "lora"), [("dp=2", False), ("dp=2,zero=3", False), ("tp=2", False), ("dp=2,zero=3", True)]
)
def test_a_trainer_goes_on_from_its_checkpoint_as_if_it_had_not_stopped(
    pool: RankPool, tmp_path: Path, layout: str, lora: bool
) -> None:
    for losses, resumed in pool.run("jobs:resume_sequences", "even-llama", layout, str(tmp_path), lora, num_ranks=2):
        assert resumed == losses[2:]
        assert losses[3] < losses[0]


def test_adapters_train_over_two_ranks_as_on_one(pool: RankPool) -> None:
    options = {"lora": LoraSettings(rank=3)}
    alone = pool.run("jobs:train_sequences", "even-llama", "dp=1", "grpo", options, num_ranks=1)[0]
    for layout in ("dp=2", "dp=2,zero=3"):
        check_equal(pool.run("jobs:train_sequences", "even-llama", layout, "grpo", options, num_ranks=2)[0], alone)
