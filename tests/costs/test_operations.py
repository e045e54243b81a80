"""The operations of a step: they are the step's own compute terms, product by product."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from properties.cases import changed, setting, settings_of
from scalewright.costs.operations import Operation, fused_attention_bytes, operations
from scalewright.costs.setting import Setting
from scalewright.costs.step import step_time
from scalewright.workload.training import TrainingMode

TERMS = {
    "matmul": ("matmul_forward", "matmul_backward"),
    "attention": ("attention_forward", "attention_backward"),
    "elementwise": ("elementwise_forward", "elementwise_backward"),
    "head": ("head_and_loss",),
    "optimizer": ("optimizer",),
}
EXAMPLES = [
    setting(model="gpt3-6.7b", tp=8, pp=4, dp=8, gbs=64),
    setting(model="gpt2-xl", machine="generic-v100", stack="eager-unfused", dp=8, gbs=8),
    setting(model="llama3-8b", machine="generic-h100", precision="fp8", tp=2, cp=2, dp=4, gbs=8, zero=1, sp=True),
    setting(model="deepseek-v3", machine="generic-h100", precision="bf16", pp=16, ep=64, dp=64, gbs=128, zero=1),
    setting(model="mixtral-8x7b", machine="lumi", precision="bf16", tp=4, pp=2, dp=2, gbs=8),
]
EXAMPLES += [
    replace(EXAMPLES[2], mode=TrainingMode(name="lora")),
    replace(EXAMPLES[4], mode=TrainingMode(name="lora", lora_rank=64)),
    replace(EXAMPLES[2], mode=TrainingMode(name="offload")),
]
IDS = ["dense", "unfused", "fp8", "latent-experts", "experts", "lora", "lora-experts", "offload"]


def of_kind(ops: list[Operation], kind: str) -> float:
    return sum(op.total_s for op in ops if op.kind == kind)


def check_sums(case: Setting) -> None:
    ops, time = operations(case), step_time(case)
    for kind, names in TERMS.items():
        if kind == "optimizer" and case.mode.is_offload:
            assert of_kind(ops, kind) == 0.0  # the host's work
            continue
        expected = sum(float(time.part(name).total) for name in names)
        if kind == "head":  # the part that other stages hide is work all the same
            expected += float(time.part("head_and_loss").inputs["hidden_s"]) * float(case.num_micro_batches)
        assert of_kind(ops, kind) == pytest.approx(expected, rel=0.01), kind


@pytest.mark.parametrize("case", EXAMPLES, ids=IDS)
def test_operations_add_up_to_the_compute_terms_of_the_step(case: Setting) -> None:
    check_sums(case)


@settings(max_examples=60, deadline=None)
@given(settings_of())
def test_operations_add_up_for_any_layout(case: Setting) -> None:
    check_sums(case)


@pytest.mark.parametrize("case", EXAMPLES, ids=IDS)
def test_no_operation_beats_the_device(case: Setting) -> None:
    recipe = case.recipe
    peak = max(case.machine.peak_flop_per_s(p) for p in (recipe.matmul, recipe.attention, recipe.head))
    for op in operations(case):
        assert op.flop > 0.0
        assert op.traffic_bytes > 0.0
        assert op.achieved_flop_per_s <= peak, op


@pytest.mark.parametrize("case", EXAMPLES[:3], ids=IDS[:3])
def test_products_stay_below_the_memory_roof(case: Setting) -> None:
    for op in operations(case):
        if op.shape:
            roof = op.intensity_flop_per_byte * case.machine.hbm_bytes_per_s
            assert op.achieved_flop_per_s <= roof * (1 + 1e-9), op


def test_a_product_has_the_work_and_traffic_of_its_shape() -> None:
    case = setting(model="gpt3-6.7b", tp=8, mbs=2, gbs=2)
    m, h = 2 * 2048, 4096
    up = {op.phase: op for op in operations(case) if op.name == "ffn_up"}
    assert set(up) == {"forward", "input_gradient", "weight_gradient"}
    n = 4 * h // 8
    for op in up.values():
        assert op.flop == 2 * m * n * h
        assert op.traffic_bytes == 2 * (m * h + h * n + m * n)
        assert op.intensity_flop_per_byte == op.flop / op.traffic_bytes
    assert up["forward"].shape == f"{m} x {n} x {h}"
    assert up["weight_gradient"].shape == f"{n} x {h} x {m}"


def test_names_are_those_of_the_model() -> None:
    dense = {op.name for op in operations(EXAMPLES[0])}
    assert dense == {
        "qkv",
        "attention_out",
        "ffn_up",
        "ffn_down",
        "attention",
        "elementwise",
        "head",
        "loss",
        "optimizer",
    }
    assert "experts" in {op.name for op in operations(EXAMPLES[4])}
    assert {"shared_ffn_up", "latent_down", "query_up"} <= {op.name for op in operations(EXAMPLES[3])}


def test_fused_attention_traffic_is_linear_in_tokens_and_fewer_key_value_heads_never_move_more() -> None:
    case = setting(model="gpt3-6.7b", gbs=1)
    assert fused_attention_bytes(changed(case, mbs=2, gbs=2)) == 2 * fused_attention_bytes(case)
    fewer = replace(case, shape=case.shape.model_copy(update={"kv_heads": 8}))
    assert fused_attention_bytes(fewer) < fused_attention_bytes(case)
