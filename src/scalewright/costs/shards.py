"""Parameters one device holds, by part: what memory, the optimizer and the gradient exchange all start from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scalewright.catalog.types import TransformerShape
from scalewright.costs.breakdown import FloatLike
from scalewright.costs.setting import Setting
from scalewright.workload.model import attention_params, expert_params, mtp_layer_params, router_params


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """Parameters of the fullest device before any ZeRO sharding."""

    num_dense: FloatLike
    """Attention, norms, dense feed-forward, shared experts and embedding: repeated over data and context parallel."""
    num_routed: FloatLike
    """Routed experts: repeated over the expert-data-parallel group only."""

    @property
    def num_params(self) -> FloatLike:
        return self.num_dense + self.num_routed


def num_dense_layer_params(shape: TransformerShape, moe_frac: FloatLike) -> FloatLike:
    """Parameters of an average layer that every data-parallel rank repeats."""
    norms = 2 * shape.hidden * (2 if shape.norm_bias else 1)
    dense = (1.0 - moe_frac) * expert_params(shape, shape.ffn_hidden)
    if shape.moe is not None:
        shared = shape.moe.num_shared * expert_params(shape, shape.moe.shared_ffn or shape.moe.expert_ffn)
        dense = dense + moe_frac * (shared + router_params(shape))
    return attention_params(shape) + norms + dense


def num_expert_layer_params(shape: TransformerShape, moe_frac: FloatLike) -> FloatLike:
    """Parameters of the routed experts of an average layer."""
    if shape.moe is None:
        return 0.0
    return moe_frac * shape.moe.num_experts * expert_params(shape, shape.moe.expert_ffn)


def num_dense_mtp_params(shape: TransformerShape) -> float:
    """Parameters of one multi-token-prediction module that every data-parallel rank repeats."""
    norm = shape.hidden * (2 if shape.norm == "layernorm" and shape.norm_bias else 1)
    experts = num_expert_layer_params(shape, 1.0)
    return float(mtp_layer_params(shape, norm) - experts)


def shards_on(setting: Setting, pipeline_rank: FloatLike) -> Shards:
    """Parameters on a device of one pipeline rank.

    Equation  (layers x dense + tables) / t + positions + layers x experts / (e t_e); tables: V h on the first
              pipeline rank and again on the last, once where both are one and the weights are tied; positions on the
              first; multi-token-prediction modules, which share both tables, on the last
    Source    narayanan2021 (arXiv:2104.04473), section 2.3; experts spread whole as in fedus2021 (arXiv:2101.03961)
    Assumes   the vocabulary is split by tensor parallelism; norms too, which is below 0.1 % of a layer
    Checked   tests/costs/test_shards.py: over all devices they add up to the model
    """
    shape, layout = setting.shape, setting.layout
    layers, frac = setting.num_layers_on(pipeline_rank), setting.rank_moe_frac(pipeline_rank)
    table = float(shape.vocab * shape.hidden)
    positions = float(shape.num_positions * shape.hidden) if shape.positions == "learned" else 0.0
    first = _flag(np.asarray(pipeline_rank) == 0)
    last = _flag(np.asarray(pipeline_rank) == np.asarray(layout.pp) - 1)
    tables = first * table + last * table * (1.0 - first * shape.tied_embeddings)
    tables = tables + last * shape.num_mtp_layers * num_dense_mtp_params(shape)
    dense = (layers * num_dense_layer_params(shape, frac) + tables) / layout.tp + first * positions
    if shape.moe is None:
        return Shards(num_dense=dense, num_routed=0.0)
    experts = layers * num_expert_layer_params(shape, frac)
    experts = experts + last * shape.num_mtp_layers * num_expert_layer_params(shape, 1.0)
    return Shards(num_dense=dense, num_routed=experts / (layout.ep * setting.expert_tp))


def first_expert_rank(setting: Setting) -> FloatLike:
    """The first pipeline rank without dense layers, which holds the most experts; rank 0 of a dense model."""
    pp = np.asarray(setting.layout.pp)
    if setting.shape.moe is None:
        return np.zeros_like(pp)[()]
    full = np.ceil(setting.shape.moe.num_dense_layers / np.asarray(setting.num_layers))
    pipeline_rank: FloatLike = np.minimum(full.astype(pp.dtype), pp - 1)[()]
    return pipeline_rank


def busiest_shards(setting: Setting) -> Shards:
    """What the slowest update waits for: the tables of the first pipeline rank and the experts of the fullest."""
    dense = shards_on(setting, 0).num_dense
    return Shards(num_dense=dense, num_routed=shards_on(setting, first_expert_rank(setting)).num_routed)


def num_spread_params(setting: Setting, shards: Shards) -> FloatLike:
    """Parameters left on a device when its shards are spread over all that repeat them."""
    return shards.num_dense / (setting.layout.dp * setting.layout.cp) + shards.num_routed / num_expert_copies(setting)


def num_adapters_on(setting: Setting, pipeline_rank: FloatLike) -> FloatLike:
    """Parameters of low-rank adapters on a device of one pipeline rank.

    Equation  l r (sum over query, key, value, output and feed-forward matrices of their rows and columns), the side
              that tensor parallelism splits over t; without the feed-forward where only attention has adapters
    Source    hu2021 (LoRA, arXiv:2106.09685), section 4.1
    Assumes   experts carry none; latent attention counted as plain heads
    Checked   tests/costs/test_shards.py: Llama 3 8B with rank 16 has 41.9 M
    """
    shape, t = setting.shape, setting.layout.tp
    h, q, k = shape.hidden, shape.heads * shape.head_dim / t, shape.kv_heads * shape.head_dim / t
    attention = (h + q) + 2 * (h + k) + (q + h)
    is_adapted = setting.mode.adapts_feed_forward and shape.moe is None
    feed_forward = (3 if shape.gated else 2) * (h + shape.ffn_hidden / t) if is_adapted else 0.0
    return setting.num_layers_on(pipeline_rank) * setting.mode.lora_rank * (attention + feed_forward)


def trained_shards(setting: Setting, pipeline_rank: FloatLike) -> Shards:
    """Parameters of a pipeline rank that have gradients and optimizer state: all, or the adapters alone."""
    if not setting.mode.is_lora:
        return shards_on(setting, pipeline_rank)
    return Shards(num_dense=num_adapters_on(setting, pipeline_rank), num_routed=0.0)


def busiest_trained(setting: Setting, whole: Shards | None = None) -> Shards:
    """What the slowest update waits for, of what is trained; `whole` is `busiest_shards` where it is at hand."""
    if setting.mode.is_lora:
        return trained_shards(setting, 0)
    return busiest_shards(setting) if whole is None else whole


def _flag(condition: FloatLike) -> FloatLike:
    return np.asarray(condition, dtype=np.float64)[()]


def num_expert_copies(setting: Setting) -> FloatLike:
    """Devices that repeat the same experts."""
    layout = setting.layout
    return np.maximum(layout.dp * layout.cp * layout.tp / (layout.ep * setting.expert_tp), 1)
