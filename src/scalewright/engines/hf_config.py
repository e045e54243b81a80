"""A model's shape and details as the keys of a Hugging Face config.json."""

from __future__ import annotations

from typing import Any

from scalewright.catalog.model_details import ModelDetails, RopeScaling
from scalewright.catalog.types import MlaShape, MoeShape, TransformerShape
from scalewright.engines.types import EngineRequest, refusal

ROPE_THETA = 10000.0
"""Base of the rotary frequencies where nothing is known of the model: the value of the paper."""
NORM_EPSILON = 1e-5
ACTIVATIONS = {"gelu-tanh": "gelu_pytorch_tanh", "squared-relu": "relu2"}
ARCHITECTURES = {
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "bloom": "BloomForCausalLM",
}
_NAME = "Hugging Face's library"


def hf_config(request: EngineRequest) -> dict[str, Any]:
    """The config.json of the request's model, with the sequence length of the run."""
    return config_of(request.shape, request.details, seq_len=request.seq_len, name=request.spec.id)


def config_of(shape: TransformerShape, details: ModelDetails | None, *, seq_len: int, name: str) -> dict[str, Any]:
    model_type = model_type_of(shape, details, name=name)
    head = {"architectures": [ARCHITECTURES[model_type]], "model_type": model_type}
    if model_type == "gpt2":
        return head | _gpt2(shape, details, seq_len)
    if model_type == "bloom":
        return head | _bloom(shape, details, seq_len)
    body = head | _rotary(shape, details, seq_len)
    if model_type in ("llama", "qwen3", "qwen3_moe"):
        body["attention_bias"] = shape.out_bias
    if model_type == "llama":
        body["mlp_bias"] = shape.ffn_bias
    if shape.moe is not None:
        body |= _experts(model_type, shape.moe, details)
    if shape.mla is not None:
        body |= _latent(shape.mla)
    return body


def model_type_of(shape: TransformerShape, details: ModelDetails | None, *, name: str) -> str:
    """The architecture that has this shape; a shape that none has is refused."""
    if details is not None and details.model_type in ARCHITECTURES:
        return details.model_type
    if not shape.causal or shape.encoder_layers:
        raise refusal(_NAME, f"model {name}", "its causal models are decoders", "choose a decoder")
    if shape.positions == "learned" and shape.norm == "layernorm" and not shape.gated and shape.moe is None:
        if not (shape.qkv_bias and shape.out_bias and shape.ffn_bias and shape.kv_heads == shape.heads):
            raise refusal(_NAME, f"model {name}", "GPT-2 has biases and one key per head", "give its config.json")
        return "gpt2"
    if shape.positions == "alibi" and shape.embedding_norm:
        return "bloom"
    if shape.positions == "rotary" and shape.norm == "rmsnorm" and shape.gated:
        return _rotary_type(shape)
    why = "no architecture has these positions, norms and feed-forward together"
    raise refusal(_NAME, f"the shape of model {name}", why, "give the model's config.json, or use --engine megatron")


def _rotary_type(shape: TransformerShape) -> str:
    if shape.mla is not None:
        return "deepseek_v3" if shape.moe is not None and shape.moe.router_bias else "deepseek_v2"
    if shape.qk_norm:
        return "qwen3" if shape.moe is None else "qwen3_moe"
    if shape.moe is not None:
        return "mixtral"
    return "qwen2" if shape.qkv_bias and not shape.out_bias else "llama"


def _rotary(shape: TransformerShape, details: ModelDetails | None, seq_len: int) -> dict[str, Any]:
    theta = (details and details.rope_theta) or ROPE_THETA
    scaling = details.rope_scaling if details is not None else None
    body = {
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn_hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": max(seq_len, details.max_positions if details is not None else 0),
        "hidden_act": activation_of(details, default="silu"),
        "rms_norm_eps": (details and details.norm_epsilon) or NORM_EPSILON,
        "tie_word_embeddings": shape.tied_embeddings,
        "rope_theta": theta,
        "rope_scaling": None if scaling is None else rope_scaling(scaling),
        "initializer_range": (details and details.init_std) or 0.02,
        "attention_dropout": 0.0,
    }
    if details is not None and details.sliding_window:
        body["sliding_window"] = details.sliding_window
    return body


def rope_scaling(scaling: RopeScaling) -> dict[str, Any]:
    body: dict[str, Any] = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind in ("llama3", "yarn"):
        body["original_max_position_embeddings"] = scaling.original_positions
    if scaling.kind == "llama3":
        body |= {"low_freq_factor": scaling.low_freq_factor, "high_freq_factor": scaling.high_freq_factor}
    if scaling.kind == "yarn":
        body |= {"beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow, "mscale": scaling.mscale}
        body["mscale_all_dim"] = scaling.mscale_all_dim
    return body


def activation_of(details: ModelDetails | None, *, default: str) -> str:
    if details is None or details.activation is None:
        return default
    return ACTIVATIONS.get(details.activation, details.activation)


def _experts(model_type: str, moe: MoeShape, details: ModelDetails | None) -> dict[str, Any]:
    router = details.router if details is not None else None
    body: dict[str, Any] = {"num_experts_per_tok": moe.top_k}
    if model_type == "mixtral":
        body |= {"num_local_experts": moe.num_experts, "intermediate_size": moe.expert_ffn}
    elif model_type == "qwen3_moe":
        body |= {"num_experts": moe.num_experts, "moe_intermediate_size": moe.expert_ffn, "decoder_sparse_step": 1}
        body["norm_topk_prob"] = router is None or router.normalises_top_k
    else:
        body |= {
            "n_routed_experts": moe.num_experts,
            "n_shared_experts": moe.num_shared,
            "moe_intermediate_size": moe.expert_ffn,
            "first_k_dense_replace": moe.num_dense_layers,
        }
        if router is not None:
            body |= {"n_group": router.num_groups, "topk_group": router.top_groups}
            body |= {"routed_scaling_factor": router.scaling, "norm_topk_prob": router.normalises_top_k}
    if router is not None and model_type in ("mixtral", "qwen3_moe"):
        body["router_aux_loss_coef"] = router.aux_loss
    return body


def _latent(mla: MlaShape) -> dict[str, Any]:
    return {
        "q_lora_rank": mla.q_lora_rank or None,
        "kv_lora_rank": mla.kv_lora_rank,
        "qk_nope_head_dim": mla.qk_nope_head_dim,
        "qk_rope_head_dim": mla.qk_rope_head_dim,
        "v_head_dim": mla.v_head_dim,
    }


def _gpt2(shape: TransformerShape, details: ModelDetails | None, seq_len: int) -> dict[str, Any]:
    activation = activation_of(details, default="gelu_pytorch_tanh")
    return {
        "n_layer": shape.layers,
        "n_embd": shape.hidden,
        "n_head": shape.heads,
        "n_inner": shape.ffn_hidden,
        "vocab_size": shape.vocab,
        "n_positions": max(seq_len, shape.num_positions),
        "activation_function": activation,
        "layer_norm_epsilon": (details and details.norm_epsilon) or NORM_EPSILON,
        "tie_word_embeddings": shape.tied_embeddings,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "initializer_range": (details and details.init_std) or 0.02,
    }


def _bloom(shape: TransformerShape, details: ModelDetails | None, seq_len: int) -> dict[str, Any]:
    return {
        "n_layer": shape.layers,
        "hidden_size": shape.hidden,
        "n_head": shape.heads,
        "vocab_size": shape.vocab,
        "seq_length": seq_len,
        "layer_norm_epsilon": (details and details.norm_epsilon) or NORM_EPSILON,
        "tie_word_embeddings": shape.tied_embeddings,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    }
