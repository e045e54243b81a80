"""RL steps: what more devices, a lag and a tail may do, and what they may not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs.machine import machine_from_system
from scalewright.errors import ConfigError
from scalewright.planner.answer import Answer, answer
from scalewright.planner.question import Question
from scalewright.workload.layout import parse_layout
from scalewright.workload.model import from_catalog
from scalewright.workload.precision import RECIPES
from scalewright.workload.rl import RlStep

CATALOG = Catalog((packaged_data(),))
MACHINE = machine_from_system(CATALOG, "generic-h100")
USUAL = settings(deadline=None, max_examples=12)
MODELS = st.sampled_from(["llama3-8b", "qwen3-32b", "qwen3-30b-a3b"])
LENGTHS = st.fixed_dictionaries(
    {"response_len": st.integers(200, 3000), "longest_len": st.just(4000), "cv": st.floats(0.3, 2.0)}
)


def step(model: str = "qwen3-30b-a3b", layout: str = "tp=2,dp=8,gbs=512,zero=1,sp=1", **changed: Any) -> Answer:
    rl = {"num_prompts": 64, "num_responses": 16, "prompt_len": 100, "response_len": 1000, "rollout_tp": 2} | changed
    return answer(
        Question(
            spec=from_catalog(CATALOG.model(model)), machine=MACHINE, layout=parse_layout(layout), stage=RlStep(**rl),
            recipe=RECIPES["bf16"], stack=CATALOG.stack("megatron-core"),
        )
    )  # fmt: skip


@USUAL
@given(model=MODELS, lengths=LENGTHS, gpus=st.sampled_from([8, 16, 32]))
def test_more_devices_never_slow_generation_down(model: str, lengths: dict[str, Any], gpus: int) -> None:
    few, many = (step(model, rollout_gpus=n, lag=1, **lengths).rl.part("rollout").whole_s for n in (gpus, 2 * gpus))
    assert many <= few * (1.0 + 1e-9)


@USUAL
@given(model=MODELS, lengths=LENGTHS, gpus=st.sampled_from([8, 16]))
def test_being_ahead_is_never_slower_on_the_same_devices(model: str, lengths: dict[str, Any], gpus: int) -> None:
    """On policy, one and two steps off, and asynchronous, with the same devices in each role."""
    on_policy = step(model, rollout_gpus=gpus, **lengths).time_s
    one, two = (step(model, rollout_gpus=gpus, lag=lag, **lengths).time_s for lag in (1, 2))
    stale = step(model, rollout_gpus=gpus, staleness_frac=0.5, **lengths).time_s
    assert two <= one * (1.0 + 1e-9)
    assert one <= on_policy * (1.0 + 1e-9)
    assert stale <= one * (1.0 + 1e-9)


@USUAL
@given(lengths=LENGTHS)
def test_parts_add_up_to_what_is_visible(lengths: dict[str, Any]) -> None:
    prediction = step(rollout_gpus=16, lag=1, **lengths)
    visible = sum(part.whole_s - part.hidden_s for part in prediction.rl.parts)
    assert prediction.time_s == pytest.approx(visible)
    assert all(0.0 <= part.hidden_s <= part.whole_s for part in prediction.rl.parts)
    assert prediction.bound_s < prediction.time_s


@USUAL
@given(model=MODELS, lengths=LENGTHS)
def test_packing_never_takes_longer_than_padding(model: str, lengths: dict[str, Any]) -> None:
    packed, padded = (step(model, packs=packs, **lengths).rl.part("update").whole_s for packs in (True, False))
    assert packed <= padded * 1.02  # a micro-batch may be cut at another place


@USUAL
@given(lengths=LENGTHS)
def test_less_work_takes_less_time(lengths: dict[str, Any]) -> None:
    whole = step(**lengths)
    assert step(has_reference=False, **lengths).time_s < whole.time_s
    assert step(scores_old=False, **lengths).time_s < whole.time_s
    assert step(sync="peer_to_peer", **lengths).time_s <= whole.time_s


def test_a_tail_takes_longer_than_equal_answers() -> None:
    long, even = (step("llama3-8b", **more).rl.part("rollout").whole_s for more in ({"longest_len": 8000}, {}))
    assert long > even


def test_experts_in_a_loop_take_longer_than_grouped_ones() -> None:
    assert step(loops_experts=True).time_s > step().time_s
    assert step("llama3-8b", loops_experts=True).time_s == step("llama3-8b").time_s


def test_a_budget_of_many_steps_is_refused_before_it_is_simulated() -> None:
    with pytest.raises(ConfigError, match=r"more than 8 times the 1,024 tokens .* give at most budget=8192"):
        step("llama3-8b", response_len=1, token_budget=1_000_000)
    assert step("llama3-8b", response_len=1, token_budget=8192).fits
