"""Emitted configurations: what they say, what they refuse, and that a layout comes back out of them."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.emitting import EXPRESSED, SEQ_LEN, emitted, layout_of, megatron_arguments, model
from scalewright.engines.emit import Framework, emit
from scalewright.engines.types import Emitted
from scalewright.errors import ConfigError, LayoutError, NotExpressedError
from scalewright.workload.layout import Layout, Recompute, divisibility_problems, parse_layout
from scalewright.workload.precision import RECIPES, recipe

FRAMEWORKS: tuple[Framework, ...] = get_args(Framework)
MODELS = (
    "gpt3-175b", "llama2-70b", "llama3-8b", "llama3-70b", "llama3-405b", "qwen3-0.6b", "qwen3-30b-a3b", "qwen2.5-7b",
    "mixtral-8x7b", "qwen1.5-moe-a2.7b", "deepseek-v2-lite", "deepseek-v3", "gpt-oss-20b", "bloom-7b1", "bert-large",
)  # fmt: skip
SMALL = st.sampled_from([1, 2, 4, 8])


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, Layout, str]:
    """A model, a layout that divides it, and a precision."""
    name = draw(st.sampled_from(MODELS))
    shape = model(name).transformer
    tp, pp, cp, dp, mbs = (draw(SMALL) for _ in range(5))
    layout = Layout(
        tp=tp, pp=pp, cp=cp, dp=dp, mbs=mbs, gbs=dp * mbs * draw(SMALL),
        vpp=draw(st.sampled_from([1, 1, 2])), ep=draw(SMALL) if shape.moe else 1,
        zero=draw(st.integers(0, 3)), sp=tp > 1 and draw(st.booleans()),
        recompute=draw(st.sampled_from(get_args(Recompute))),
    )  # fmt: skip
    problems = divisibility_problems(
        layout, layers=shape.layers, heads=shape.heads, kv_heads=shape.kv_heads, seq=SEQ_LEN,
        num_experts=shape.moe.num_experts if shape.moe else 0,
    )  # fmt: skip
    if problems:
        layout = replace(layout, vpp=1, ep=1, tp=1, pp=1, cp=1, sp=False)
    return name, layout, draw(st.sampled_from(sorted(RECIPES)))


def answer(framework: Framework, name: str, layout: Layout, precision: str) -> Emitted | str:
    """The file, or the sentence that refuses it."""
    try:
        return emitted(framework, name, layout, precision=precision, seq_len=SEQ_LEN)
    except NotExpressedError as error:
        return str(error)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@settings(max_examples=200, deadline=None)
@given(case=cases())
def test_a_layout_is_refused_or_comes_back_whole(framework: Framework, case: tuple[str, Layout, str]) -> None:
    name, layout, precision = case
    file_or_refusal = answer(framework, name, layout, precision)
    if isinstance(file_or_refusal, str):
        label = {"megatron": "Megatron-LM", "torchtitan": "torchtitan", "deepspeed": "DeepSpeed", "fsdp": "FSDP"}
        assert file_or_refusal.startswith(f"{label[framework]} cannot express ")
    else:
        assert layout_of(file_or_refusal, int(layout.num_gpus)) == layout


@pytest.mark.parametrize(("framework", "name", "layout", "precision"), EXPRESSED)
def test_layouts_that_a_framework_must_take(framework: Framework, name: str, layout: str, precision: str) -> None:
    requested = parse_layout(layout)
    seq_len = 512 if name == "bert-large" else SEQ_LEN
    emitted_file = emitted(framework, name, requested, precision=precision, seq_len=seq_len)
    assert layout_of(emitted_file, int(requested.num_gpus)) == requested
    assert emitted_file.framework == framework
    assert emitted_file.text.endswith("\n")


REFUSED: list[tuple[Framework, str, str, str, str]] = [
    ("megatron", "llama3-8b", "dp=8,gbs=8,recompute=operators", "bf16", "recompute=operators"),
    ("megatron", "llama3-8b", "pp=2,dp=4,gbs=8,zero=3", "bf16", "zero=3 with pp=2"),
    ("megatron", "llama3-8b", "dp=8,gbs=8", "tf32", "precision tf32"),
    ("megatron", "llama3-8b", "dp=8,gbs=8", "bf16-pure", "precision bf16-pure"),
    ("megatron", "bloom-7b1", "dp=8,gbs=8", "bf16", "alibi positions"),
    ("megatron", "bert-large", "dp=8,gbs=8", "bf16", "model bert-large"),
    ("megatron", "mixtral-8x7b", "tp=2,dp=4,gbs=8", "bf16", "tp=2,sp=0 with experts"),
    ("megatron", "mixtral-8x7b", "dp=8,ep=8,gbs=8", "fp16", "ep=8 in fp16"),
    ("torchtitan", "gpt3-175b", "dp=8,gbs=8,zero=3", "bf16", "model gpt3-175b"),
    ("torchtitan", "llama3-8b", "dp=8,gbs=8,zero=1", "bf16", "zero=1"),
    ("torchtitan", "llama3-8b", "tp=2,dp=4,gbs=8,sp=1", "bf16", "zero=0 with tp=2"),
    ("torchtitan", "llama3-8b", "tp=2,dp=4,gbs=8,zero=2", "bf16", "tp=2,sp=0"),
    ("torchtitan", "llama3-8b", "dp=8,gbs=8,zero=3,recompute=selective", "bf16", "recompute=selective"),
    ("torchtitan", "llama3-8b", "dp=8,gbs=8,zero=3", "fp16", "precision fp16"),
    ("torchtitan", "llama3-8b", "dp=8,gbs=8,zero=3", "nvfp4", "precision nvfp4"),
    ("torchtitan", "qwen3-0.6b", "pp=2,dp=4,gbs=8,zero=3", "bf16", "pp=2 with tied embeddings"),
    ("torchtitan", "llama3-405b", "tp=8,pp=16,vpp=4,dp=4,gbs=256,zero=2,sp=1", "bf16", "pp=16,vpp=4"),
    ("torchtitan", "gpt-oss-20b", "cp=2,dp=4,gbs=8,zero=3", "bf16", "cp=2 for gpt_oss"),
    ("torchtitan", "qwen3-30b-a3b", "tp=4,dp=2,ep=2,gbs=8,zero=3,sp=1", "bf16", "ep=2 with tp=4"),
    ("deepspeed", "llama3-8b", "dp=8,gbs=8", "bf16", "precision bf16 with zero=0"),
    ("deepspeed", "llama3-8b", "cp=2,dp=4,gbs=8", "fp16", "cp=2"),
    ("deepspeed", "llama3-8b", "pp=2,vpp=2,dp=4,gbs=8", "fp16", "vpp=2"),
    ("deepspeed", "llama3-8b", "pp=2,dp=4,gbs=8,zero=2", "bf16", "zero=2 with pp=2"),
    ("deepspeed", "llama3-8b", "dp=8,gbs=8,recompute=selective", "fp16", "recompute=selective"),
    ("deepspeed", "llama3-8b", "dp=8,gbs=8", "fp8", "precision fp8"),
    ("deepspeed", "mixtral-8x7b", "pp=2,dp=4,gbs=8", "fp16", "pp=2,sp=0 with experts"),
    ("deepspeed", "mixtral-8x7b", "tp=2,dp=4,gbs=8", "fp16", "tp=2,ep=1 with experts"),
    ("fsdp", "llama3-8b", "dp=8,gbs=8", "bf16", "zero=0"),
    ("fsdp", "llama3-8b", "pp=2,dp=4,gbs=8,zero=3", "bf16", "pp=2"),
    ("fsdp", "llama3-8b", "tp=2,dp=4,gbs=8,zero=3,sp=1", "bf16", "sp=1"),
    ("fsdp", "mixtral-8x7b", "dp=8,ep=8,gbs=8,zero=3", "bf16", "ep=8"),
    ("fsdp", "llama3-8b", "dp=8,gbs=8,zero=3", "mxfp8", "precision mxfp8"),
]  # fmt: skip


@pytest.mark.parametrize(("framework", "name", "layout", "precision", "knob"), REFUSED)
def test_what_cannot_be_expressed_is_named_with_a_way_out(
    framework: Framework, name: str, layout: str, precision: str, knob: str
) -> None:
    seq_len = 512 if name == "bert-large" else SEQ_LEN
    with pytest.raises(NotExpressedError) as caught:
        emitted(framework, name, layout, precision=precision, seq_len=seq_len)
    message = str(caught.value)
    assert f"cannot express {knob}" in message
    assert any(word in message for word in ("; use ", "; choose ", "; set ", "; make ", "; change "))
    assert caught.value.exit_code == 2


def test_bash_sees_the_arguments_that_were_meant(tmp_path: Path) -> None:
    emitted_file = emitted("megatron", "deepseek-v3", "tp=2,pp=16,ep=64,dp=32,mbs=1,gbs=4096,zero=1,sp=1")
    (tmp_path / emitted_file.filename).write_text(emitted_file.text)
    script = f'set -eu; source {emitted_file.filename}; printf "%s\\n" "${{MEGATRON_ARGS[@]}}"'
    out = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    words = out.stdout.splitlines()
    assert words[words.index("--moe-layer-freq") + 1] == "([0]*3+[1]*58)"
    assert words[words.index("--pipeline-model-parallel-layout") + 1].count("|") == 15
    assert words[:2] == ["--num-layers", "61"]


def test_a_hostile_model_name_stays_a_comment(tmp_path: Path) -> None:
    spec = replace(model("llama3-8b"), id="x\ntouch hacked\n$(touch hacked)")
    layout = parse_layout("dp=8,gbs=8,zero=3")
    for framework in FRAMEWORKS:
        emitted_file = emit(
            framework=framework, spec=spec, layout=layout, recipe=recipe("bf16"), seq_len=4096, gpus_per_node=8,
            num_gpus=8,
        )  # fmt: skip
        assert layout_of(emitted_file, 8) == layout
        if framework == "megatron":
            subprocess.run(["bash", "-euc", emitted_file.text], cwd=tmp_path, check=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # From the models' own configurations.
        ("llama3-70b", {"num_query_groups": 8, "swiglu": True, "normalization": "RMSNorm",
                        "untie_embeddings_and_output_weights": True, "disable_bias_linear": True,
                        "position_embedding_type": "rope", "kv_channels": 128, "ffn_hidden_size": 28672}),
        ("gpt3-175b", {"group_query_attention": False, "swiglu": False, "normalization": "LayerNorm",
                       "position_embedding_type": "learned_absolute", "disable_bias_linear": False}),
        ("qwen2.5-7b", {"disable_bias_linear": True, "add_qkv_bias": True, "num_query_groups": 4}),
        ("qwen3-30b-a3b", {"qk_layernorm": True, "num_experts": 128, "moe_router_topk": 8, "moe_ffn_hidden_size": 768,
                           "moe_router_enable_expert_bias": False}),
        ("deepseek-v3", {"multi_latent_attention": True, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_head_dim": 128,
                         "qk_pos_emb_head_dim": 64, "v_head_dim": 128, "moe_router_score_function": "sigmoid",
                         "moe_shared_expert_intermediate_size": 2048, "kv_channels": None}),
        ("deepseek-v2-lite", {"q_lora_rank": None, "moe_shared_expert_intermediate_size": 2816,
                              "moe_layer_freq": "([0]*1+[1]*26)"}),
        ("gpt-oss-20b", {"disable_bias_linear": False, "moe_router_enable_expert_bias": False, "kv_channels": 64}),
    ],
)  # fmt: skip
def test_megatron_model_arguments(name: str, expected: dict[str, object]) -> None:
    args = megatron_arguments(emitted("megatron", name, "dp=8,gbs=8", seq_len=2048).text)
    assert {key: args[key] for key in expected} == expected


def test_uneven_stages_are_those_of_the_prediction() -> None:
    args = megatron_arguments(emitted("megatron", "llama3-405b", "tp=8,pp=4,dp=2,gbs=8,sp=1").text)
    # 126 layers over 4 stages: the first two take what does not divide.
    assert args["pipeline_model_parallel_layout"] == "Et*32|t*32|t*31|t*31L"


def test_vocabulary_padding_is_noted() -> None:
    exact = emitted("megatron", "llama3-8b", "tp=4,dp=2,gbs=8")
    assert megatron_arguments(exact.text)["make_vocab_size_divisible_by"] == 64  # 128256 = 4 x 64 x 501
    assert not any("padded" in note for note in exact.notes)
    padded = emitted("megatron", "gpt2-xl", "dp=8,gbs=8", seq_len=1024)
    assert any("50257 is padded to 50304" in note for note in padded.notes)


def test_devices_and_nodes_must_agree() -> None:
    layout, spec = parse_layout("dp=8,gbs=8"), model("llama3-8b")
    with pytest.raises(ConfigError, match="takes 8 devices, not 16"):
        emit(framework="megatron", spec=spec, layout=layout, recipe=recipe("bf16"), seq_len=4096, gpus_per_node=8,
             num_gpus=16)  # fmt: skip
    with pytest.raises(ConfigError, match="do not spread evenly"):
        emitted("megatron", "llama3-8b", "dp=13,gbs=13")
    with pytest.raises(LayoutError, match="tp=3"):
        emitted("megatron", "llama3-8b", "tp=3,gbs=1")


def test_training_modes_are_expressed_or_refused() -> None:
    moved = json.loads(emitted("deepspeed", "llama3-8b", "dp=8,gbs=8,zero=2", mode="offload").text)
    assert moved["zero_optimization"]["offload_optimizer"]["device"] == "cpu"
    args = megatron_arguments(emitted("megatron", "llama3-8b", "dp=8,gbs=8,zero=1", mode="offload").text)
    assert args["optimizer_cpu_offload"]
    for framework in ("deepspeed", "fsdp"):
        emitted_file = emitted(framework, "llama3-8b", "dp=8,gbs=8,zero=3", mode="lora")
        assert any("adapters of rank 16" in note for note in emitted_file.notes)
    for framework, mode in (
        ("megatron", "lora"),
        ("torchtitan", "lora"),
        ("torchtitan", "offload"),
        ("fsdp", "offload"),
    ):
        with pytest.raises(NotExpressedError, match="cannot express"):
            emitted(framework, "llama3-8b", "dp=8,gbs=8,zero=3", mode=mode)  # type: ignore[arg-type]
