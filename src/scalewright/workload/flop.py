"""Floating-point work of a model, part by part, from the shape."""

from __future__ import annotations

from scalewright.catalog.types import ConvShape, TransformerShape
from scalewright.workload.convolutions import resnet_forward_flop
from scalewright.workload.model import ModelSpec


def forward_flop_by_part(spec: ModelSpec) -> dict[str, float]:
    """Forward work of one sample: a sequence, or an image."""
    if isinstance(spec.shape, ConvShape):
        return resnet_forward_flop(spec.shape)
    return transformer_forward_flop(spec.shape)


def transformer_forward_flop(shape: TransformerShape) -> dict[str, float]:
    """Forward work of one sequence, by part.

    Equation  2 s x (matrix parameters a token meets) + 4 s^2 a d per attention layer; each multi-token-prediction
              module a layer, a head and a projection of 2 h to h more
    Source    narayanan2021 (arXiv:2104.04473), appendix; chowdhery2022 (arXiv:2204.02311), appendix B
    Assumes   attention counted over the full square, as those sources do, although causal kernels skip half;
              norms, softmax, biases and activation functions not counted (below 1 % for hidden >= 1024)
    Checked   72 B s l h^2 (1 + s/6h + V/12lh) of narayanan2021 without its recompute factor, exactly
    """
    s, h = float(shape.seq), shape.hidden
    layers = shape.layers + shape.encoder_layers
    cross = shape.layers if shape.encoder_layers else 0
    projections = (layers + cross) * attention_matrix_params(shape)
    scores = (layers + cross) * score_flop(shape)
    dense_width, moe = shape.ffn_hidden, shape.moe
    matrices = 3 if shape.gated else 2
    dense_layers = shape.layers if moe is None else min(moe.num_dense_layers, shape.layers)
    parts = {
        "attention_projections": 2.0 * s * projections,
        "attention_scores": scores,
        "feed_forward": 2.0 * s * (dense_layers + shape.encoder_layers) * matrices * h * dense_width,
        "head": 2.0 * s * h * shape.vocab,
    }
    if moe is not None:
        width = moe.top_k * moe.expert_ffn + moe.num_shared * (moe.shared_ffn or moe.expert_ffn)
        moe_layers = shape.layers - dense_layers
        parts["experts"] = 2.0 * s * moe_layers * matrices * h * width
        parts["router"] = 2.0 * s * moe_layers * h * moe.num_experts
    if shape.num_mtp_layers:
        parts["multi_token"] = shape.num_mtp_layers * _prediction_module_flop(shape)
    return parts


def _prediction_module_flop(shape: TransformerShape) -> float:
    """Forward work of a multi-token-prediction module: a projection of two states to one, a layer and a head."""
    s, h, moe, matrices = float(shape.seq), shape.hidden, shape.moe, 3 if shape.gated else 2
    width = shape.ffn_hidden
    if moe is not None:
        width = moe.top_k * moe.expert_ffn + moe.num_shared * (moe.shared_ffn or moe.expert_ffn)
    router = 0 if moe is None else h * moe.num_experts
    met = 2 * h * h + attention_matrix_params(shape) + matrices * h * width + router + h * shape.vocab
    return 2.0 * s * met + score_flop(shape)


def attention_matrix_params(shape: TransformerShape) -> int:
    """Parameters of one attention block that multiply: no biases, no norms."""
    h, a = shape.hidden, shape.heads
    if shape.mla is None:
        return h * shape.head_dim * (a + 2 * shape.kv_heads) + a * shape.head_dim * h
    mla = shape.mla
    query_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    query = h * mla.q_lora_rank + mla.q_lora_rank * a * query_dim if mla.q_lora_rank else h * a * query_dim
    latent = h * (mla.kv_lora_rank + mla.qk_rope_head_dim)
    expand = mla.kv_lora_rank * a * (mla.qk_nope_head_dim + mla.v_head_dim)
    return query + latent + expand + a * mla.v_head_dim * h


def score_flop(shape: TransformerShape) -> float:
    """Query-key products and the weighted sum of values, one layer, one sequence, full square."""
    s = float(shape.seq)
    if shape.mla is None:
        return 4.0 * s * s * shape.heads * shape.head_dim
    mla = shape.mla
    return 2.0 * s * s * shape.heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim + mla.v_head_dim)


def training_flop_per_sample(spec: ModelSpec, *, frozen: bool = False) -> float:
    """Model FLOP of one sample's forward and backward pass: three times the forward pass; recompute not counted.

    Frozen weights have no gradient: twice the forward pass, except for attention scores, which have no weights.
    Adapters are not counted.
    """
    parts = forward_flop_by_part(spec)
    if not frozen:
        return 3.0 * sum(parts.values())
    return 2.0 * sum(parts.values()) + parts.get("attention_scores", 0.0)


def six_nd_flop(*, num_params: float, num_tokens: float) -> float:
    """The usual estimate of a whole training run.

    Equation  C = 6 N D
    Source    kaplan2020 (arXiv:2001.08361), section 2.1
    Assumes   dense model, sequence short against 6 x hidden, so that attention scores do not count
    Checked   1e12 parameters x 20e12 tokens = 1.2e26 FLOP
    """
    n, d = num_params, num_tokens
    return 6.0 * n * d
