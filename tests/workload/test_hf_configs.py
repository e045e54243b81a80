"""Hugging Face config.json files, with the keys and numbers the hub carries, against published counts."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from scalewright.catalog.library import Catalog, packaged_data
from scalewright.errors import ConfigError, DocumentError, UnknownNameError
from scalewright.workload.huggingface.config import FAMILIES, from_hf_config
from scalewright.workload.model import from_catalog, from_shape

CATALOG = Catalog((packaged_data(),))

GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257}
LLAMA3_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "attention_bias": False,
}
QWEN25_7B = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
}
QWEN3_8B = {
    "model_type": "qwen3",
    "hidden_size": 4096,
    "head_dim": 128,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "max_position_embeddings": 40960,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
    "attention_bias": False,
}
QWEN3_30B_A3B = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "max_position_embeddings": 40960,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}
MIXTRAL_8X7B = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 32768,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "num_hidden_layers": 61,
    "first_k_dense_replace": 3,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "max_position_embeddings": 163840,
    "vocab_size": 129280,
    "tie_word_embeddings": False,
}
BLOOM = {
    "model_type": "bloom",
    "hidden_size": 14336,
    "n_head": 112,
    "n_layer": 70,
    "vocab_size": 250880,
    "seq_length": 2048,
}
BERT = {
    "model_type": "bert",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "vocab_size": 30522,
}
T5_BASE = {
    "model_type": "t5",
    "d_model": 768,
    "d_kv": 64,
    "d_ff": 3072,
    "num_heads": 12,
    "num_layers": 12,
    "num_decoder_layers": 12,
    "n_positions": 512,
    "relative_attention_num_buckets": 32,
    "vocab_size": 32128,
}


def write(tmp_path: Path, config: Any) -> Path:
    path = tmp_path / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return path


@pytest.mark.parametrize(
    ("config", "params", "entry"),
    [
        (GPT2, 124_439_808, "gpt2"),
        (LLAMA3_8B, 8_030_261_248, "llama3-8b"),
        (LLAMA3_8B | {"model_type": "mistral", "vocab_size": 32000}, 7_241_732_096, None),
        (QWEN25_7B, 7_615_616_512, "qwen2.5-7b"),
        (QWEN3_8B, 8_190_735_360, "qwen3-8b"),
        (QWEN3_30B_A3B, 30_532_122_624, "qwen3-30b-a3b"),
        (MIXTRAL_8X7B, 46_702_792_704, "mixtral-8x7b"),
        (DEEPSEEK_V3, 671_026_419_200, "deepseek-v3"),
        (BLOOM, 176_247_271_424, "bloom-176b"),
        (BERT, 109_482_240, "bert-base"),
        (T5_BASE, 222_903_552, "t5-base"),
    ],
    ids=lambda v: v["model_type"] if isinstance(v, dict) else None,
)
def test_config_counts_like_the_hub_and_the_catalogue(
    tmp_path: Path, config: dict[str, Any], params: int, entry: str | None
) -> None:
    spec = from_hf_config(write(tmp_path, config))
    assert spec.num_params == params
    if entry is not None:
        known = from_catalog(CATALOG.model(entry))
        assert spec.params_by_part() == known.params_by_part()
        assert spec.num_active_params == known.num_active_params


def test_unknown_family_lists_what_is_supported(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"lama.*llama") as error:
        from_hf_config(write(tmp_path, LLAMA3_8B | {"model_type": "lama"}))
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    "config", [GPT2, LLAMA3_8B, MIXTRAL_8X7B, DEEPSEEK_V3, BERT, T5_BASE], ids=lambda c: c["model_type"]
)
def test_missing_vocabulary_is_named_with_the_file(tmp_path: Path, config: dict[str, Any]) -> None:
    without = {k: v for k, v in config.items() if k != "vocab_size"}
    with pytest.raises(DocumentError, match=r"config\.json.*'vocab_size' is missing"):
        from_hf_config(write(tmp_path, without))


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "not valid JSON"), ("[]", "no model_type"), ('{"hidden_size": 3}', "no model_type"), ("", "not valid JSON")],
)
def test_what_is_no_config_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DocumentError, match=message):
        from_hf_config(write(tmp_path, text))


@pytest.mark.parametrize(
    "change",
    [
        {"num_attention_heads": 0},
        {"hidden_size": "4096"},
        {"hidden_size": None},
        {"hidden_size": [4096]},
        {"num_hidden_layers": -1},
        {"vocab_size": 1.5},
        {"tie_word_embeddings": "perhaps"},
    ],
    ids=str,
)
def test_value_of_the_wrong_kind_is_one_error_with_the_file(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        from_hf_config(write(tmp_path, LLAMA3_8B | change))


def test_hidden_size_that_heads_do_not_divide_is_refused_unless_the_head_size_is_given(tmp_path: Path) -> None:
    odd = LLAMA3_8B | {"hidden_size": 4100}
    with pytest.raises(ConfigError):
        from_hf_config(write(tmp_path, odd))
    assert from_hf_config(write(tmp_path, odd | {"head_dim": 128})).transformer.head_dim == 128


def test_dense_layers_between_sparse_ones_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="dense layers in between"):
        from_hf_config(write(tmp_path, QWEN3_30B_A3B | {"decoder_sparse_step": 2}))


def test_every_supported_family_is_tried_here() -> None:
    tried = {"gpt2", "llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "mixtral", "deepseek_v3", "bloom", "bert", "t5"}
    assert set(FAMILIES) - tried == {"deepseek_v2"}, "a new family needs a count to be held against"


def test_deepseek_v2_lite_counts_like_the_hub(tmp_path: Path) -> None:
    config = DEEPSEEK_V3 | {
        "model_type": "deepseek_v2",
        "hidden_size": 2048,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "num_hidden_layers": 27,
        "first_k_dense_replace": 1,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "q_lora_rank": None,
        "vocab_size": 102400,
    }
    assert from_hf_config(write(tmp_path, config)).num_params == 15_706_484_224


FAMILY_CONFIGS = [GPT2, LLAMA3_8B, QWEN25_7B, QWEN3_8B, QWEN3_30B_A3B, MIXTRAL_8X7B, DEEPSEEK_V3, BLOOM, BERT, T5_BASE]
WITHOUT_COST = {
    "architectures": ["X"], "bos_token_id": 1, "torch_dtype": "bfloat16", "attention_dropout": 0.1, "rope_theta": 1e6,
    "transformers_version": "4.40", "use_cache": True, "initializer_range": 0.02, "hidden_act": "silu",
}  # fmt: skip


@pytest.mark.parametrize("config", FAMILY_CONFIGS, ids=lambda c: c["model_type"])
def test_every_key_is_read_or_has_no_cost_or_is_named(tmp_path: Path, config: dict[str, Any]) -> None:
    assert from_hf_config(write(tmp_path, config | WITHOUT_COST)).not_modelled == ()
    named = from_hf_config(write(tmp_path, config | {"attention_sinks": 4, "a_new_part": {"layers": 3}})).words()
    assert "attention_sinks, a_new_part of config.json" in named
    off = {"attention_sinks": 0, "a_new_part": {}, "switch": False, "other": None}
    assert from_hf_config(write(tmp_path, config | off)).not_modelled == ()


def test_multi_token_prediction_of_the_file_is_the_knob_of_the_shape(tmp_path: Path) -> None:
    spec = from_hf_config(write(tmp_path, DEEPSEEK_V3 | {"num_nextn_predict_layers": 1}))
    plain = from_hf_config(write(tmp_path, DEEPSEEK_V3))
    assert spec.transformer == plain.transformer.model_copy(update={"num_mtp_layers": 1})
    assert "with 1 multi-token prediction layer" in spec.words()
    assert spec.generating.transformer == plain.transformer, "an engine loads the main model only"
    assert "drafts by multi-token prediction" in spec.generating.words()


def test_windows_and_stored_formats_are_named(tmp_path: Path) -> None:
    windowed = from_hf_config(write(tmp_path, LLAMA3_8B | {"model_type": "mistral", "sliding_window": 4096}))
    assert "not modelled: attention windows of 4096 tokens" in windowed.words()
    unused = {"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}
    assert from_hf_config(write(tmp_path, QWEN25_7B | unused)).not_modelled == ()
    stored = from_hf_config(write(tmp_path, LLAMA3_8B | {"quantization_config": {"quant_method": "fp8"}}))
    assert "weights stored in fp8" in stored.words()


def test_the_longest_sequence_is_an_assumption_until_a_length_is_given(tmp_path: Path) -> None:
    spec = from_hf_config(write(tmp_path, LLAMA3_8B))
    assert spec.words() == "8.03 B parameters; assumed: sequences of 8192 tokens, its longest (--seq)"
    assert spec.with_seq(4096).words() == spec.words(uses_seq=False) == "8.03 B parameters"


OF_A_SHAPE = {"gated": "1", "ffn": "17920", "kv_heads": "8", "vocab": "32000", "seq": "4096"}


@pytest.mark.parametrize("given", [c for n in range(6) for c in itertools.combinations(OF_A_SHAPE, n)], ids="-".join)
def test_a_shape_names_what_it_was_not_told(given: tuple[str, ...]) -> None:
    spec = from_shape(",".join(["layers=60,hidden=6656,heads=52", *(f"{key}={OF_A_SHAPE[key]}" for key in given)]))
    assumed = "; ".join(spec.assumptions())
    assert [f"({key}=)" in assumed for key in OF_A_SHAPE] == [key not in given for key in OF_A_SHAPE]
    assert "as in GPT-2" in assumed
