"""Megatron-LM's arguments for what of a model is no size: rotary base, norm epsilon, activation, router."""

from __future__ import annotations

from scalewright.catalog.model_details import RopeScaling
from scalewright.catalog.types import MoeShape
from scalewright.engines.types import EngineRequest, refusal

NAME = "Megatron-LM"
Arguments = list[tuple[str, ...]]
LLAMA3_SCALING = (1.0, 4.0, 8192)
"""Low and high frequency factor and context that --use-rope-scaling has built in (rotary_pos_embedding.py)."""


def number(value: float) -> str:
    """As Python's parser reads it back: whole numbers without a point."""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


def rotary_arguments(request: EngineRequest) -> Arguments:
    shape, details = request.shape, request.details
    if shape.positions != "rotary" or details is None:
        return []
    arguments: Arguments = []
    if details.rope_theta is not None:
        if details.rope_theta != int(details.rope_theta):
            raise refusal(NAME, f"rotary base {details.rope_theta}", "its base is a whole number", "round it")
        arguments.append(("--rotary-base", number(details.rope_theta)))
    if details.rotary_frac < 1:
        arguments.append(("--rotary-percent", number(details.rotary_frac)))
    if details.rope_scaling is not None:
        arguments += _scaling(request, details.rope_scaling)
    if details.sliding_window:
        arguments.append(("--window-size", f"({details.sliding_window},0)"))
    return arguments


def _scaling(request: EngineRequest, scaling: RopeScaling) -> Arguments:
    if scaling.kind == "llama3":
        if (scaling.low_freq_factor, scaling.high_freq_factor, scaling.original_positions) != LLAMA3_SCALING:
            why = "its factors of low and high frequencies are 1 and 4, from 8192 positions"
            raise refusal(NAME, "this rotary scaling", why, "use the factors of Llama 3.1, or --engine huggingface")
        return [("--use-rope-scaling",), ("--rope-scaling-factor", number(scaling.factor))]
    if scaling.kind == "yarn" and request.shape.mla is not None:
        return [
            ("--rope-type", "yarn"),
            ("--rotary-scaling-factor", number(scaling.factor)),
            ("--mscale", number(scaling.mscale)),
            ("--mscale-all-dim", number(scaling.mscale_all_dim)),
        ]
    why = "it stretches Llama's frequencies, and YaRN's of latent attention"
    raise refusal(NAME, f"{scaling.kind} scaling of rotary frequencies", why, "use --engine huggingface")


def norm_arguments(request: EngineRequest) -> Arguments:
    details = request.details
    if details is None or details.norm_epsilon is None:
        return []
    return [("--norm-epsilon", number(details.norm_epsilon))]


def activation_arguments(request: EngineRequest) -> Arguments:
    """Gated means SwiGLU here. GELU is the tanh form while it is fused with its bias, else the exact one."""
    shape, details = request.shape, request.details
    activation = None if details is None else details.activation
    if shape.gated:
        if activation not in (None, "silu"):
            raise refusal(NAME, f"a feed-forward gated by {activation}", "it has SwiGLU", "use --engine huggingface")
        return [("--swiglu",)]
    if activation == "squared-relu":
        return [("--squared-relu",)]
    if activation == "gelu":
        return [("--no-bias-gelu-fusion",)]
    if activation in ("relu", "silu"):
        raise refusal(NAME, f"activation {activation}", "it has GELU and squared ReLU", "use --engine huggingface")
    return []


def router_arguments(request: EngineRequest, moe: MoeShape) -> Arguments:
    router = None if request.details is None else request.details.router
    corrected = moe.router_bias and not request.shape.ffn_bias  # beside linear biases the router has one of its own
    sigmoid = corrected if router is None else router.score == "sigmoid"
    arguments: Arguments = []
    if sigmoid:
        arguments.append(("--moe-router-score-function", "sigmoid"))
    if corrected:
        arguments.append(("--moe-router-enable-expert-bias",))
    if not sigmoid and (moe.top_k == 1 or (router is not None and not router.normalises_top_k)):
        arguments.append(("--moe-router-pre-softmax",))  # weights are not made to sum to one
    if router is None:
        return arguments
    if router.num_groups > 1:
        arguments += [("--moe-router-num-groups", str(router.num_groups))]
        arguments += [("--moe-router-group-topk", str(router.top_groups))]
    if router.scaling != 1:
        arguments.append(("--moe-router-topk-scaling-factor", number(router.scaling)))
    kind = "seq_aux_loss" if corrected else "aux_loss"
    if router.aux_loss:
        arguments += [("--moe-router-load-balancing-type", kind), ("--moe-aux-loss-coeff", number(router.aux_loss))]
    return arguments


def unknown_details(request: EngineRequest) -> list[str]:
    """What of the model has to be taken from Megatron-LM's defaults."""
    details, shape = request.details, request.shape
    if details is None:
        return ["only sizes are known of the model: rotary base, norm epsilon and router losses are yours to set"]
    unknown = []
    if shape.positions == "rotary" and details.rope_theta is None:
        unknown.append("rotary base")
    if details.norm_epsilon is None:
        unknown.append("norm epsilon")
    if shape.moe is not None and details.router is None:
        unknown.append("router losses")
    return [f"not known of the model, and yours to set: {', '.join(unknown)}"] if unknown else []
