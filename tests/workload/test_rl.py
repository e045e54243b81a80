"""What people write about an RL step, and the lengths that follow."""

from __future__ import annotations

import pytest

from scalewright.errors import ConfigError
from scalewright.workload.lengths import cv_to_limit
from scalewright.workload.rl import RlStep, changed_step, parse_rl

PLAIN = "prompts=64,samples=32,prompt=115,response=1019"


def test_every_part_is_read() -> None:
    step = parse_rl(
        f"{PLAIN},longest=3981,cv=1.2,tp=4,pp=2,gpus=32,lag=2,chunks=4,sync=peers,reward=5,ref=0,old=0,pack=0,"
        "memory=0.6,precision=fp8,keep=1,tokens=8192"
    )
    assert (step.num_sequences, step.rollout_tp, step.rollout_pp, step.rollout_gpus, step.lag) == (2048, 4, 2, 32, 2)
    assert (step.sync, step.reward_s, step.has_reference, step.scores_old, step.packs) == (
        "peer_to_peer", 5.0, False, False, False,
    )  # fmt: skip
    assert step.rollout_recipe is not None
    assert step.rollout_recipe.name == "fp8"
    assert (step.rollout_memory_frac, step.keeps_state, step.pack_tokens, step.cv) == (0.6, True, 8192, 1.2)
    assert step.policy == "2-step off"
    assert parse_rl(PLAIN).policy == "on policy"
    assert parse_rl(f"{PLAIN},gpus=8,stale=0.5").policy == "asynchronous"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (",lag=1", "needs a generator on devices of its own"),
        (",stale=0.5", "needs a generator on devices of its own"),
        (",sync=pigeon", "choose broadcast, peers, file"),
        (",ref=2", "is 0 \\(no\\) or 1 \\(yes\\)"),
        (",memory=1.5", "share of a device's memory"),
        (",cv=wide", "not a number"),
        (",cv=0", "above 0"),
        (",gpu=8", "did you mean gpus"),
        (",tp=0", "must be 1 or more"),
        (",budget=1000", "smaller than one answer of 1019 tokens"),
        (",longest=4000,budget=2000", "smaller than one answer of 4000 tokens"),
        (",budget=-1", "budget must be 0 or more"),
        (",budget=4000,retention=0", "retention must be 1 or more"),
        (",gpus=8,staleness=-1", "staleness must be 0 or more"),
        (",gpus=8,lag=2,staleness=1", "lag=2, above staleness=1"),
        (",gpus=8,stale=0.5,budget=4000", "give one of them"),
    ],
)
def test_mistakes_are_named(more: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_rl(PLAIN + more)


def test_a_budget_is_read_and_named() -> None:
    step = parse_rl(f"{PLAIN},longest=4000,budget=2000000,retention=3,staleness=2")
    assert (step.token_budget, step.retention, step.staleness, step.lag) == (2_000_000, 3, 2, 0)
    assert step.policy == "token budget"
    assert parse_rl(f"{PLAIN},longest=4000,budget=2M,retention=3,staleness=2") == step
    with pytest.raises(ConfigError, match=r"budget=2\.5 MB, which is not a whole number"):
        parse_rl(f"{PLAIN},longest=4000,budget=2.5 MB")
    assert step.usual_budget == 64 * 32 * 1019
    ahead = parse_rl(f"{PLAIN},gpus=8,staleness=1")
    assert (ahead.lag, ahead.policy) == (1, "1-step off")
    assert changed_step(ahead, {"staleness": "2"}).lag == 2
    assert changed_step(step, {"budget": "0"}).policy == "on policy"


def test_a_change_keeps_the_rest() -> None:
    step = changed_step(parse_rl(f"{PLAIN},gpus=8"), {"gen_tp": "2", "lag": "1"})
    assert (step.rollout_tp, step.lag, step.rollout_gpus, step.num_prompts) == (2, 1, 8, 64)


def test_answers_spread_so_far_that_some_reach_the_limit() -> None:
    near = RlStep(num_prompts=64, num_responses=8, prompt_len=100, response_len=1000, longest_len=4000)
    far = RlStep(num_prompts=64, num_responses=8, prompt_len=100, response_len=1000, longest_len=28000)
    for step in (near, far):
        answers = step.answers(least_cv=0.8, limit_frac=0.001)
        assert answers.mean == pytest.approx(1000)
        assert answers.survival(step.longest_sequence - 101) == pytest.approx(0.001, rel=0.5) or step is near
        assert answers.survival(step.longest_sequence - 101) >= 0.0009
    assert cv_to_limit(28.0, limit_frac=0.001) > 1.5
    even = RlStep(num_prompts=1, num_responses=1, prompt_len=1, response_len=10)
    assert even.answers(least_cv=0.8, limit_frac=0.001).is_fixed
