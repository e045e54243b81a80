"""Full training, adapters and state on the hosts: one step's time and memory follow from the mode."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from properties.cases import cost_of, degrees, policies, setting, surroundings
from scalewright.costs.memory import stored_bytes_per_layer
from scalewright.costs.setting import Setting
from scalewright.costs.shards import num_adapters_on
from scalewright.costs.step import StepCost
from scalewright.errors import ConfigError
from scalewright.workload.precision import recipe
from scalewright.workload.training import FULL, Feed, TrainingMode, training_mode

OFFLOAD, LORA = TrainingMode(name="offload"), TrainingMode(name="lora")
MODES = (FULL, OFFLOAD, LORA)


def case(mode: TrainingMode, **changed: Any) -> Setting:
    arguments: dict[str, Any] = {"model": "llama3-8b", "precision": "bf16", "dp": 8, "gbs": 64, "zero": 1}
    return replace(setting(**(arguments | changed)), mode=mode)


def times(cost: StepCost, name: str) -> float:
    return float(cost.time.part(name).total)


def test_adapters_of_llama_3_8b() -> None:
    # rank 16 on all seven matrices of a layer: 41,943,040, as PEFT prints.
    assert num_adapters_on(case(TrainingMode(name="lora", lora_rank=16)), 0) == 41_943_040


def test_full_state_of_70b_is_1120_gb_in_fp16() -> None:
    # 70e9 x (2 + 2 + 12) bytes, more than four devices of 80 GB
    fp16 = recipe("fp16")
    state = 70e9 * (fp16.weight_bytes + fp16.gradient_bytes + fp16.optimizer_bytes)
    assert state == 1120e9 > 4 * 80e9


def test_frozen_products_have_half_the_backward_work() -> None:
    full, lora = cost_of(case(FULL)), cost_of(case(LORA))
    saved = times(lora, "matmul_backward") / times(full, "matmul_backward")
    assert 0.5 <= saved <= 0.62  # one of two products, and the thin ones beside it
    assert times(lora, "matmul_forward") >= times(full, "matmul_forward")
    assert times(lora, "attention_backward") == times(full, "attention_backward")
    # NVIDIA counts 4 N per token for LoRA (735 TFLOP/s at 2643 tokens/s for 70.6e9: 278e9) where all weights have 6 N;
    # attention scores have no weights to freeze
    assert 2 / 3 <= float(lora.model_flop) / float(full.model_flop) <= 0.75


def test_adapters_have_little_to_exchange_update_and_keep() -> None:
    full, lora = cost_of(case(FULL)), cost_of(case(LORA))
    assert times(lora, "data_parallel") < 0.1 * times(full, "data_parallel")
    assert times(lora, "optimizer") < 0.02 * times(full, "optimizer")
    for name in ("gradients", "optimizer"):
        assert float(lora.memory.part(name).total) <= 0.02 * float(full.memory.part(name).total)
    assert 1.0 < float(lora.memory.part("weights").total) / float(full.memory.part("weights").total) < 1.02


def test_a_higher_rank_costs_more() -> None:
    low, high = (cost_of(case(TrainingMode(name="lora", lora_rank=r))) for r in (8, 256))
    assert float(high.time.total) > float(low.time.total)
    assert float(high.memory.total) > float(low.memory.total)


def test_state_on_the_host_leaves_the_device_and_takes_the_link() -> None:
    full, moved = cost_of(case(FULL, machine="selene")), cost_of(case(OFFLOAD, machine="selene"))
    assert float(moved.memory.part("optimizer").total) == 0.0
    assert float(moved.host_memory.total) > float(full.host_memory.total)
    assert times(moved, "offload_transfer") > 0.0 == times(full, "offload_transfer")
    assert times(moved, "optimizer") > times(full, "optimizer")
    assert float(moved.time.total) > float(full.time.total)


def test_sharded_gradients_go_to_the_host_as_they_appear() -> None:
    kept, gone = (cost_of(case(OFFLOAD, zero=zero)).memory.part("gradients").total for zero in (1, 2))
    assert float(kept) > 0.0 == float(gone)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_modes_keep_less_than_full_training_on_any_layout(data: st.DataObject) -> None:
    where = data.draw(surroundings())
    given_ = setting(**where, **data.draw(degrees(where["model"])), **data.draw(policies()))
    full, moved, lora = (cost_of(replace(given_, mode=mode)) for mode in MODES)
    assert float(moved.memory.total) <= float(full.memory.total) * (1 + 1e-9)
    assert float(lora.memory.part("optimizer").total) <= float(full.memory.part("optimizer").total)
    assert float(lora.time.part("update").total) <= float(full.time.part("update").total) * (1 + 1e-9)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_columns_say_what_single_layouts_say(mode: TrainingMode) -> None:
    dp, tp = np.array([2, 4, 8]), np.array([4, 2, 1])
    together = cost_of(case(mode, dp=dp, tp=tp, gbs=np.array([64, 64, 64])))
    for i in range(3):
        alone = cost_of(case(mode, dp=int(dp[i]), tp=int(tp[i])))
        one = together.at(i)
        assert float(one.time.total) == pytest.approx(float(alone.time.total), rel=1e-12)
        assert float(one.memory.total) == pytest.approx(float(alone.memory.total), rel=1e-12)
        assert float(one.host_memory.total) == pytest.approx(float(alone.host_memory.total), rel=1e-12)
        assert one.fits == alone.fits


@pytest.mark.parametrize(
    ("name", "optimizer", "total"),
    [
        ("fp32", "adam", 16), ("fp32", "sgd", 12), ("fp16", "adam", 16), ("fp16", "sgd", 12), ("bf16", "adam", 18),
        ("bf16", "sgd", 14), ("bf16-lean", "adam", 16), ("bf16-pure", "adam", 8), ("bf16-pure", "sgd", 6),
        ("fp8", "adam", 18),
    ],
)  # fmt: skip
def test_bytes_of_a_parameter_by_recipe(name: str, optimizer: str, total: float) -> None:
    """Rajbhandari et al. 2020, section 3.1: 2 + 2 + 12 with Adam in mixed precision; SGD keeps one moment."""
    changed = recipe(name).with_optimizer(optimizer)
    assert changed.weight_bytes + changed.gradient_bytes + changed.optimizer_bytes == total


def test_momentum_alone_keeps_less_and_updates_faster() -> None:
    adam = case(FULL, zero=0)
    sgd = replace(adam, recipe=adam.recipe.with_optimizer("sgd"))
    assert float(cost_of(sgd).memory.total) < float(cost_of(adam).memory.total)
    assert times(cost_of(sgd), "optimizer") < times(cost_of(adam), "optimizer")


def test_text_is_never_waited_for_but_a_slow_loader_is() -> None:
    plain = case(FULL)
    assert times(cost_of(plain), "data") == 0.0
    slow = plain.machine.constants.token_loader_time.model_copy(update={"value": 1e-2})
    constants = plain.machine.constants.model_copy(update={"token_loader_time": slow})
    machine = replace(plain.machine, constants=constants)
    one, four = (cost_of(replace(plain, machine=machine, feed=Feed(num_loaders=n))) for n in (1, 4))
    assert times(one, "data") > times(four, "data") > 0.0


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: training_mode("qlora"), "no training mode 'qlora'"),
        (lambda: training_mode("full", lora_rank=8), "means nothing in mode full"),
        (lambda: training_mode("lora", lora_rank=0), "must be 1 or more"),
        (lambda: recipe("bf16").with_optimizer("lion"), "no optimizer 'lion'"),
        (lambda: Feed(num_loaders=0), "give 1 or more"),
    ],
)
def test_what_means_nothing_is_refused(ask: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ask()


def test_adapters_beside_attention_alone_keep_no_input_of_the_feed_forward() -> None:
    """Frozen weights have no gradient, so nothing needs their input: norm output and activation are not kept."""
    every = case(LORA)
    attention = replace(every, mode=TrainingMode(name="lora", adapts_feed_forward=False))
    shape, tokens = every.shape, float(every.num_tokens)
    sizes = [float(stored_bytes_per_layer(one, "none", 0.0)) for one in (every, attention)]
    assert sizes[0] - sizes[1] == pytest.approx(tokens * 2.0 * (shape.hidden + shape.ffn_hidden))
    assert float(num_adapters_on(attention, 0)) < float(num_adapters_on(every, 0))
    assert times(cost_of(attention), "matmul_forward") < times(cost_of(every), "matmul_forward")


def test_an_eight_bit_gate_halves_what_the_activation_function_keeps() -> None:
    wide = replace(case(LORA), recipe=recipe("fp8"))
    narrow = replace(wide, stack=wide.stack.model_copy(update={"narrow_gates": True}))
    sizes = [float(stored_bytes_per_layer(one, "none", 0.0)) for one in (wide, narrow)]
    assert sizes[0] - sizes[1] == pytest.approx(float(wide.num_tokens) * 2.0 * wide.shape.ffn_hidden)
