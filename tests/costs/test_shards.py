"""Parameters by device: over all devices they add up to the model."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from properties.cases import DENSE, EXPERTS, MODELS, SMALL, experts_divide, setting
from scalewright.costs.setting import Setting
from scalewright.costs.shards import busiest_shards, num_expert_copies, num_spread_params, shards_on
from scalewright.workload.model import transformer_params

ROTARY = ("llama3-8b", *EXPERTS)


def added_up(case: Setting) -> float:
    """Parameters of the devices of one copy of the model."""
    layout, total = case.layout, 0.0
    for stage in range(int(layout.pp)):
        shards = shards_on(case, stage)
        total += float(shards.num_dense * layout.tp + shards.num_routed * layout.ep * case.expert_tp)
    return total


def expected(model: str, *, pp: int) -> float:
    """The model without its last norm; a tied table is on the last stage again."""
    spec, shape = MODELS[model], MODELS[model].transformer
    norm = shape.hidden * (2 if shape.norm == "layernorm" and shape.norm_bias else 1) * shape.final_norm
    repeated = shape.vocab * shape.hidden if shape.tied_embeddings and pp > 1 else 0
    return float(spec.num_params - norm + repeated)


@given(model=st.sampled_from(ROTARY), tp=SMALL, dp=SMALL, ep=SMALL, pp=st.sampled_from([1, 2, 3, 4, 7, 16]))
@settings(deadline=None, max_examples=100)
def test_all_devices_together_hold_the_model(model: str, tp: int, dp: int, ep: int, pp: int) -> None:
    moe = MODELS[model].transformer.moe
    ep = experts_divide(ep, num_experts=1 if moe is None else moe.num_experts, num_devices=dp * tp)
    case = setting(model=model, tp=tp, dp=dp, ep=ep, pp=pp, gbs=dp)
    assert added_up(case) == pytest.approx(expected(model, pp=pp), rel=1e-9)


@pytest.mark.parametrize("pp", [1, 2, 4, 5, 16])
@pytest.mark.parametrize("model", DENSE)
def test_all_stages_together_hold_a_model_with_tables(model: str, pp: int) -> None:
    assert added_up(setting(model=model, pp=pp)) == pytest.approx(expected(model, pp=pp), rel=1e-9)


@pytest.mark.parametrize(
    ("layout", "copies"),
    [
        ({"dp": 8}, 8),
        ({"dp": 8, "tp": 4}, 8),
        ({"dp": 8, "ep": 8}, 1),
        ({"dp": 8, "ep": 4}, 2),
        ({"dp": 8, "tp": 4, "ep": 8}, 4),
        ({"dp": 4, "cp": 2, "ep": 8}, 1),
    ],
    ids=str,
)
def test_devices_that_repeat_the_same_experts(layout: dict[str, int], copies: int) -> None:
    case = setting(model="mixtral-8x7b", gbs=layout["dp"], **layout)
    assert num_expert_copies(case) == copies


@pytest.mark.parametrize("pp", [1, 4, 16])
@pytest.mark.parametrize("model", ["llama3-8b", "deepseek-v3"])
def test_prediction_modules_are_on_the_last_stage(model: str, pp: int) -> None:
    plain = setting(model=model, pp=pp, dp=8, ep=8 if model == "deepseek-v3" else 1, gbs=8)
    shape = plain.shape.model_copy(update={"num_mtp_layers": 1})
    more = added_up(replace(plain, shape=shape)) - added_up(plain)
    assert more == pytest.approx(transformer_params(shape)["mtp"], rel=1e-9)
    others = [float(shards_on(replace(plain, shape=shape), i).num_params) for i in range(pp - 1)]
    assert others == [float(shards_on(plain, i).num_params) for i in range(pp - 1)]


def test_everything_spread_over_all_devices_is_about_the_model() -> None:
    """Fully spread, the devices hold the model once: no expert is counted twice or divided twice."""
    case = setting(model="deepseek-v3", machine="generic-h100", precision="bf16", pp=4, dp=64, ep=64, gbs=64)
    here = float(num_spread_params(case, busiest_shards(case)))
    assert 0.9 * 671e9 < here * 256 < 1.3 * 671e9
