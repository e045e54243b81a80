"""What of a Hugging Face `config.json` is no size: rotary base, norm epsilon, activation, router."""

from __future__ import annotations

from typing import Any

from scalewright.catalog.facts import Source
from scalewright.catalog.model_details import ModelDetails, RopeScaling, RouterDetails

Config = dict[str, Any]
ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh",
    "gelu_fast": "gelu-tanh", "relu": "relu", "relu2": "squared-relu",
}  # fmt: skip
SCALINGS = ("llama3", "yarn", "linear", "dynamic")
SIGMOID_FAMILIES = ("deepseek_v3",)


def details_of(config: Config, source: Source) -> ModelDetails:
    """The details that the file states. What it does not state is absent, not a default of some library."""
    rope = _rope(config)
    activation = config.get("hidden_act") or config.get("activation_function") or config.get("hidden_activation")
    epsilons = (config.get(name) for name in ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_epsilon"))
    windowed = config.get("use_sliding_window", True)
    return ModelDetails.model_validate({
        "source": source,
        "model_type": config["model_type"],
        "norm_epsilon": next((value for value in epsilons if value is not None), None),
        "activation": ACTIVATIONS.get(str(activation)),
        "rope_theta": rope.get("rope_theta"),
        "rotary_frac": config.get("partial_rotary_factor") or 1.0,
        "rope_scaling": _scaling(rope, config),
        "sliding_window": (config.get("sliding_window") or 0) if windowed else 0,
        "router": _router(config),
        "init_std": config.get("initializer_range") or None,
        "weights": _published_weights(config),
        "max_positions": config.get("max_position_embeddings") or config.get("n_positions") or 0,
    })  # fmt: skip


def _published_weights(config: Config) -> str:
    quantized = config.get("quantization_config")
    method = quantized.get("quant_method") if isinstance(quantized, dict) else ""
    return method if method in ("fp8", "mxfp4") else ""


def _rope(config: Config) -> Config:
    """Base and scaling of the rotary frequencies: keys of their own, or one table as transformers 5 writes them."""
    table = config.get("rope_parameters")
    if isinstance(table, dict):
        return table
    scaling = config.get("rope_scaling")
    return {"rope_theta": config.get("rope_theta"), **(scaling if isinstance(scaling, dict) else {})}


def _scaling(rope: Config, config: Config) -> RopeScaling | None:
    kind = rope.get("rope_type") or rope.get("type")
    if kind not in SCALINGS or not rope.get("factor"):
        return None
    names = {"low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"}
    original = rope.get("original_max_position_embeddings") or config.get("max_position_embeddings") or 8192
    given = {name: rope[name] for name in names if rope.get(name) is not None}
    return RopeScaling.model_validate({"kind": kind, "factor": rope["factor"], "original_positions": original, **given})


def _router(config: Config) -> RouterDetails | None:
    if not any(config.get(name) for name in ("num_experts", "num_local_experts", "n_routed_experts")):
        return None
    sigmoid = config["model_type"] in SIGMOID_FAMILIES or config.get("scoring_func") == "sigmoid"
    return RouterDetails.model_validate({
        "score": "sigmoid" if sigmoid else "softmax",
        "normalises_top_k": config.get("norm_topk_prob", True),
        "scaling": config.get("routed_scaling_factor") or 1.0,
        "num_groups": config.get("n_group") or 1,
        "top_groups": config.get("topk_group") or 1,
        "aux_loss": config.get("router_aux_loss_coef") or config.get("aux_loss_alpha") or 0.0,
    })  # fmt: skip
