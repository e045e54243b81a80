"""Memory by part: activations of a layer, state of a parameter, output scores, gathered weights."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from properties.cases import MODELS, changed, setting
from scalewright.costs.footprint import memory_on, step_memory
from scalewright.costs.memory import (
    activation_bytes_per_layer,
    even_bytes,
    gathered_weight_bytes,
    logits_bytes,
    score_bytes_per_layer,
    state_bytes_per_param,
    stored_bytes_per_layer,
)
from scalewright.workload.layout import Recompute
from scalewright.workload.model import from_shape
from scalewright.workload.precision import recipe

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


def golden(name: str) -> dict[str, Any]:
    return tomllib.loads((GOLDEN / name).read_text(encoding="utf-8"))


KORTHIKANTI = golden("korthikanti2022_table2.toml")
ZERO = golden("rajbhandari2020_figure1.toml")
GPT = from_shape("layers=2,hidden=6144,heads=64,vocab=51200,seq=2048").transformer


def kept(*, tp: int, sp: bool, recompute: Any = "none", dropout: bool = True) -> float:
    return float(
        activation_bytes_per_layer(
            shape=GPT, num_tokens=4 * 2048.0, tp=tp, sequence_parallel=sp, recompute=recompute, dropout=dropout,
            kept=even_bytes(2.0),
        )
    )  # fmt: skip


@pytest.mark.parametrize("tp", KORTHIKANTI["inputs"]["tp"])
@pytest.mark.parametrize("row", KORTHIKANTI["rows"], ids=lambda r: r["configuration"])
def test_activations_of_a_gpt_layer_are_the_papers(row: dict[str, Any], tp: int) -> None:
    sbh = 2048 * 4 * 6144
    expected = sbh * (row["whole"] + row["split"] / tp)
    activations_bytes = kept(tp=tp, sp=row["sequence_parallel"], recompute=row["recompute"])
    assert activations_bytes == pytest.approx(expected, rel=KORTHIKANTI["tolerance"]["relative"])


def test_without_dropout_the_masks_are_not_kept() -> None:
    # Two masks of one byte: one after attention, one after the feed-forward.
    assert kept(tp=8, sp=False) - kept(tp=8, sp=False, dropout=False) == 2 * 2048 * 4 * 6144


def test_policies_keep_less_in_their_order() -> None:
    sizes = [kept(tp=8, sp=True, recompute=policy) for policy in ("none", "modules", "operators", "full")]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 4


def test_modules_computed_again_leave_out_what_norms_and_the_activation_give() -> None:
    # Two norms' outputs of the model's width and the activation's output of four times that, two bytes each.
    assert kept(tp=8, sp=True) - kept(tp=8, sp=True, recompute="modules") == (2 + 4) * 2 * 2048 * 4 * 6144 / 8


def test_modules_of_latent_attention_and_experts_leave_out_the_most() -> None:
    policies: tuple[Recompute, ...] = ("none", "modules", "full")
    most, some, least = (float(stored_bytes_per_layer(setting(model="deepseek-v3"), p, 1.0)) for p in policies)
    assert most > 1.2 * some > 2.0 * least


def test_gradients_take_what_the_stack_keeps_of_them() -> None:
    bridge, core = (
        setting(model="llama3-8b", machine="generic-h100", precision="bf16", stack=stack, dp=8, gbs=8)
        for stack in ("megatron-bridge", "megatron-core")
    )
    whole, half = (memory_on(given, 0).part("gradients").total for given in (core, bridge))
    assert half == whole / 2


@pytest.mark.parametrize("row", ZERO["rows"], ids=lambda r: f"stage {r['zero']}")
def test_state_of_a_device_is_the_papers(row: dict[str, Any]) -> None:
    inputs = ZERO["inputs"]
    by_part = state_bytes_per_param(recipe=recipe("fp16"), num_shards=inputs["num_devices"], zero=row["zero"])
    found_gb = inputs["num_params"] * sum(float(v) for v in by_part.values()) / 1e9
    assert found_gb == pytest.approx(row["gb"], abs=ZERO["tolerance"]["absolute_gb"])


def test_output_scores_are_linear_in_vocabulary() -> None:
    case = setting(mbs=2, gbs=2, tp=4)

    def size(vocab: int) -> float:
        return float(logits_bytes(replace(case, shape=case.shape.model_copy(update={"vocab": vocab}))))

    assert size(3 * 51200) == pytest.approx(3 * size(51200))
    # Output and its transposed copy in 16 bit, an fp32 copy, 16-bit gradients: ten bytes a score, two sequences of
    # 2048, a quarter of the vocabulary.
    assert size(51200) == 2 * 2048 * 51200 / 4 * 10


@pytest.mark.parametrize(("zero", "dp"), [(0, 8), (1, 8), (2, 8), (3, 1)])
def test_no_weights_are_gathered_below_stage_three_or_for_one_rank(zero: int, dp: int) -> None:
    assert gathered_weight_bytes(num_unit_params=1e9, recipe=recipe("bf16"), zero=zero, dp=dp) == 0


def test_two_units_of_weights_are_whole_at_stage_three() -> None:
    assert gathered_weight_bytes(num_unit_params=1e9, recipe=recipe("bf16"), zero=3, dp=2) == 4e9


def test_latent_attention_keeps_its_latents_on_every_rank() -> None:
    shape = MODELS["deepseek-v3"].transformer

    def size(tp: int) -> float:
        return float(
            activation_bytes_per_layer(
                shape=shape, num_tokens=4096.0, tp=tp, sequence_parallel=True, recompute="none", dropout=False,
                kept=even_bytes(2.0),
            )
        )  # fmt: skip

    latents = 4096 * 2 * (1536 + 512 + 64)
    assert size(8) - latents == pytest.approx((size(1) - latents) / 8)


def test_scores_of_unfused_attention_are_kept_unless_recomputed() -> None:
    """Korthikanti 2022, Table 2: 5 a s / h beside 34 for each s b h, which selective recompute drops."""
    plain = setting(model="gpt3-6.7b", stack="eager-unfused", tp=8, mbs=4, gbs=4)
    shape = plain.shape
    scores = 5.0 * shape.heads * shape.seq**2 * 4 / 8
    assert score_bytes_per_layer(plain) == pytest.approx(scores)
    assert score_bytes_per_layer(setting(model="gpt3-6.7b", stack="megatron-core", tp=8, mbs=4, gbs=4)) == 0.0
    kept = {r: float(step_memory(changed(plain, recompute=r)).part("activations").total) for r in ("none", "selective")}
    assert kept["none"] - kept["selective"] == pytest.approx(scores * shape.layers)


def test_a_prediction_module_keeps_a_layer_and_scores_of_its_own() -> None:
    plain = setting(model="llama3-8b", precision="bf16", pp=4, gbs=4)
    more = replace(plain, shape=plain.shape.model_copy(update={"num_mtp_layers": 1}))
    last, before = memory_on(more, 3), memory_on(plain, 3)
    assert float(last.part("logits").total) == 2 * float(before.part("logits").total)
    layers = plain.shape.layers // 4
    kept = float(last.part("activations").total) / float(before.part("activations").total)
    assert kept == pytest.approx((layers + 1) / layers)
    assert float(memory_on(more, 1).total) == float(memory_on(plain, 1).total)
