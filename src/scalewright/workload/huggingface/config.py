"""A model from its Hugging Face `config.json`, family by family."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from scalewright.catalog.facts import Source
from scalewright.catalog.model_details import ModelDetails
from scalewright.catalog.types import TransformerShape
from scalewright.errors import ConfigError, DocumentError, UnknownNameError, shortened
from scalewright.records.documents import parse_json, read_text
from scalewright.records.loader import explain_validation
from scalewright.workload.huggingface.details import details_of
from scalewright.workload.model import ModelSpec

Config = dict[str, Any]


class ReadConfig(dict[str, Any]):
    """A configuration that remembers which of its keys were asked for."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)


NO_COST = re.compile(
    r"^(?:architectures|auto_map|transformers_version|torch_dtype|dtype|_name_or_path|use_cache|pretraining_tp|n_ctx"
    r"|task_specific_params|gradient_checkpointing|position_embedding_type|id2label|label2id|num_labels|problem_type"
    r"|tokenizer_class|language|return_dict\w*|output_\w+|summary_\w+|router_\w+|rope_\w+|initializer_\w+|scale_\w+"
    r"|reorder_and_upcast_attn|slow_but_exact|offset_alibi|skip_bias_add\w*|masked_softmax_fusion|bias_dropout_fusion"
    r"|attention_softmax_in_fp32|apply_residual_connection_post_layernorm|hidden_dropout|unk_token_id|attn_implementation"
    r"|_attn_implementation\w*|topk_method|seq_aux|ep_size|max_window_layers|layer_types|is_encoder_decoder|is_gated_act"
    r"|dense_act_fn|relative_attention_max_distance|n_positions|max_length|generation_config|\w+_token_id|\w*dropout\w*"
    r"|\w*pdrop|\w*_eps|\w*epsilon|hidden_act|activation_function|hidden_activation|model_type|mlp_bias|type_vocab_size"
    r"|use_sliding_window|sliding_window)$"
)
"""Keys that neither time nor memory depends on, or that another key here says as well."""
MOST_NAMED = 6


def _unread(config: ReadConfig) -> tuple[str, ...]:
    """What the file switches on and no prediction follows, each in a few words."""
    notes = []
    stored = config.get("quantization_config")
    if isinstance(stored, dict):
        kind = stored.get("quant_method") or "another format"
        notes.append(f"weights stored in {shortened(str(kind))} (predicted in the precision that is asked for)")
    keys = [
        key for key, value in config.items()
        if value and key not in config.read and not NO_COST.match(key) and not (key == "moe_layer_freq" and value == 1)
    ]  # fmt: skip
    more = f" and {len(keys) - MOST_NAMED} more" if len(keys) > MOST_NAMED else ""
    if keys:
        notes.append(f"{', '.join(shortened(key) for key in keys[:MOST_NAMED])}{more} of config.json")
    return tuple(notes)


def from_hf_config(path: Path) -> ModelSpec:
    """The shape of a published architecture; a missing key or unknown family is an error that names it."""
    config = parse_json(read_text(path), where=str(path))
    if not isinstance(config, dict) or "model_type" not in config:
        raise DocumentError(f"{path}: has no model_type, so it is not a Hugging Face config.json")
    config = ReadConfig(config)
    model_type = str(config["model_type"])
    if model_type not in FAMILIES:
        raise UnknownNameError("supported model_type", model_type, FAMILIES, hint="give the model by shape instead")
    source = Source(kind="datasheet", text=f"{path} (Hugging Face config.json)", checked=date.today())
    try:
        shape = TransformerShape.model_validate({"source": source, **FAMILIES[model_type](config)})
    except KeyError as error:
        raise DocumentError(f"{path}: key {error.args[0]!r} is missing for model_type {model_type!r}") from error
    except (TypeError, ZeroDivisionError) as error:
        raise DocumentError(f"{path}: a size of model_type {model_type!r} is not a whole number above zero") from error
    except ValidationError as error:
        raise DocumentError(f"{path}: {explain_validation(error, TransformerShape)}") from error
    try:
        details = details_of(config, source)
    except (TypeError, ValueError) as error:
        text = explain_validation(error, ModelDetails) if isinstance(error, ValidationError) else str(error)
        raise DocumentError(f"{path}: {text}") from error
    name = str(config.get("_name_or_path") or path.parent.name or model_type)
    longest = ("--seq", f"sequences of {shape.seq} tokens, its longest")
    return ModelSpec(
        id=f"hf:{name}", name=name, shape=shape, details=details, assumed=(longest,), unread=_unread(config)
    )


def _head_dim(hidden: int, heads: int) -> int:
    if hidden % heads:
        raise ConfigError(f"hidden size {hidden} does not divide by {heads} heads: the configuration is inconsistent")
    return hidden // heads


def _gpt2(c: Config) -> Config:
    hidden, heads = c["n_embd"], c["n_head"]
    return {
        "layers": c["n_layer"],
        "hidden": hidden,
        "heads": heads,
        "kv_heads": heads,
        "head_dim": _head_dim(hidden, heads),
        "ffn_hidden": c.get("n_inner") or 4 * hidden,
        "vocab": c["vocab_size"],
        "seq": c["n_positions"],
        "num_positions": c["n_positions"],
        "tied_embeddings": c.get("tie_word_embeddings", True),
    }


def _rotary(c: Config) -> Config:
    """Llama and its descendants: RMS norm, gated feed-forward, rotary positions, no biases unless said."""
    hidden, heads = c["hidden_size"], c["num_attention_heads"]
    bias = bool(c.get("attention_bias", False))
    return {
        "layers": c["num_hidden_layers"],
        "hidden": hidden,
        "heads": heads,
        "kv_heads": c.get("num_key_value_heads") or heads,
        "head_dim": c.get("head_dim") or _head_dim(hidden, heads),
        "ffn_hidden": c["intermediate_size"],
        "vocab": c["vocab_size"],
        "seq": c["max_position_embeddings"],
        "gated": True,
        "positions": "rotary",
        "norm": "rmsnorm",
        "norm_bias": False,
        "qkv_bias": bias,
        "out_bias": bias,
        "ffn_bias": bool(c.get("mlp_bias", False)),
        "tied_embeddings": c.get("tie_word_embeddings", False),
    }


def _qwen2(c: Config) -> Config:
    return _rotary(c) | {"qkv_bias": True, "out_bias": False}


def _qwen3(c: Config) -> Config:
    return _rotary(c) | {"qk_norm": True}


def _qwen3_moe(c: Config) -> Config:
    if c.get("decoder_sparse_step", 1) != 1 or c.get("mlp_only_layers"):
        raise ConfigError("qwen3_moe with dense layers in between is not covered: give the model by shape")
    moe = {"num_experts": c["num_experts"], "top_k": c["num_experts_per_tok"], "expert_ffn": c["moe_intermediate_size"]}
    return _qwen3(c) | {"moe": moe}


def _mixtral(c: Config) -> Config:
    moe = {
        "num_experts": c["num_local_experts"],
        "top_k": c["num_experts_per_tok"],
        "expert_ffn": c["intermediate_size"],
    }
    return _rotary(c) | {"moe": moe}


def _deepseek_v3(c: Config) -> Config:
    moe = {
        "num_experts": c["n_routed_experts"],
        "top_k": c["num_experts_per_tok"],
        "num_shared": c.get("n_shared_experts") or 0,
        "expert_ffn": c["moe_intermediate_size"],
        "num_dense_layers": c["first_k_dense_replace"],
        "router_bias": c["model_type"] == "deepseek_v3",
    }
    mla = {
        "q_lora_rank": c.get("q_lora_rank") or 0,
        "kv_lora_rank": c["kv_lora_rank"],
        "qk_nope_head_dim": c["qk_nope_head_dim"],
        "qk_rope_head_dim": c["qk_rope_head_dim"],
        "v_head_dim": c["v_head_dim"],
    }
    head_dim = mla["qk_nope_head_dim"] + mla["qk_rope_head_dim"]
    num_ahead = c.get("num_nextn_predict_layers") or 0
    return _rotary(c) | {"moe": moe, "mla": mla, "head_dim": head_dim, "num_mtp_layers": num_ahead}


def _bloom(c: Config) -> Config:
    hidden = c.get("hidden_size") or c["n_embed"]
    heads = c.get("n_head") or c["num_attention_heads"]
    return {
        "layers": c.get("n_layer") or c["num_hidden_layers"],
        "hidden": hidden,
        "heads": heads,
        "kv_heads": heads,
        "head_dim": _head_dim(hidden, heads),
        "ffn_hidden": 4 * hidden,
        "vocab": c["vocab_size"],
        "seq": c.get("seq_length", 2048),
        "positions": "alibi",
        "embedding_norm": True,
        "tied_embeddings": c.get("tie_word_embeddings", True),
    }


def _bert(c: Config) -> Config:
    hidden, heads = c["hidden_size"], c["num_attention_heads"]
    return {
        "layers": c["num_hidden_layers"],
        "hidden": hidden,
        "heads": heads,
        "kv_heads": heads,
        "head_dim": _head_dim(hidden, heads),
        "ffn_hidden": c["intermediate_size"],
        "vocab": c["vocab_size"],
        "seq": c["max_position_embeddings"],
        "num_positions": c["max_position_embeddings"],
        "num_token_types": c.get("type_vocab_size", 2),
        "causal": False,
        "embedding_norm": True,
        "final_norm": False,
        "pooler": True,
    }


def _t5(c: Config) -> Config:
    return {
        "layers": c.get("num_decoder_layers") or c["num_layers"],
        "encoder_layers": c["num_layers"],
        "hidden": c["d_model"],
        "heads": c["num_heads"],
        "kv_heads": c["num_heads"],
        "head_dim": c["d_kv"],
        "ffn_hidden": c["d_ff"],
        "vocab": c["vocab_size"],
        "seq": c.get("n_positions", 512),
        "gated": str(c.get("feed_forward_proj", "relu")).startswith("gated"),
        "positions": "relative",
        "num_positions": c.get("relative_attention_num_buckets", 32),
        "norm": "rmsnorm",
        "norm_bias": False,
        "qkv_bias": False,
        "out_bias": False,
        "ffn_bias": False,
        "tied_embeddings": c.get("tie_word_embeddings", True),
    }


FAMILIES: dict[str, Callable[[Config], Config]] = {
    "gpt2": _gpt2,
    "llama": _rotary,
    "mistral": _rotary,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "mixtral": _mixtral,
    "deepseek_v2": _deepseek_v3,
    "deepseek_v3": _deepseek_v3,
    "bloom": _bloom,
    "bert": _bert,
    "t5": _t5,
}
