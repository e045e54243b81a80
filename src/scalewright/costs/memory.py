"""Memory of the worst rank: weights, gradients, optimizer state, activations, logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scalewright.catalog.types import MlaShape, TransformerShape
from scalewright.costs.breakdown import FloatLike
from scalewright.costs.setting import Setting
from scalewright.workload.layout import Recompute
from scalewright.workload.precision import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptBytes:
    """Bytes of an element that the backward pass needs, by the operation that needs it."""

    width_bytes: float
    """Residuals, queries, keys and values."""
    attention_input_bytes: float
    """Inputs of attention's linear layers."""
    feed_forward_input_bytes: float
    """Inputs of the feed-forward's linear layers."""
    gate_bytes: float
    """Inputs of the activation function."""


def even_bytes(width_bytes: float) -> KeptBytes:
    """Every element kept in the same width."""
    w = width_bytes
    return KeptBytes(width_bytes=w, attention_input_bytes=w, feed_forward_input_bytes=w, gate_bytes=w)


def kept_bytes(setting: Setting) -> KeptBytes:
    """What a training step keeps of each element.

    Equation  a linear layer's input: w, or 1 in 8-bit recipes; beside a frozen weight w for its adapter, 0 without one
    Source    hu2021 (LoRA, arXiv:2106.09685), section 4.2: only the adapters have gradients, and the gradient of a
              weight is what needs the input
    Assumes   the adapter reads its layer's input in the activations' own width
    Checked   tests/costs/test_training_modes.py: LoRA beside attention alone keeps no input of the feed-forward
    """
    recipe, mode = setting.recipe, setting.mode
    width = recipe.activation_bytes
    narrow = 1.0 if recipe.is_narrow else width
    gate = narrow if setting.stack.narrow_gates else width
    if not mode.is_lora:
        return KeptBytes(
            width_bytes=width, attention_input_bytes=narrow, feed_forward_input_bytes=narrow, gate_bytes=gate
        )
    return KeptBytes(
        width_bytes=width, attention_input_bytes=width, gate_bytes=gate,
        feed_forward_input_bytes=width if mode.adapts_feed_forward else 0.0,
    )  # fmt: skip


def activation_bytes_per_layer(
    *, shape: TransformerShape, num_tokens: FloatLike, tp: FloatLike, sequence_parallel: bool, recompute: Recompute,
    dropout: bool, kept: KeptBytes,
) -> FloatLike:  # fmt: skip
    """Stored activations of one dense transformer layer on one device.

    Equation  s b h (10 + 24/t) tensor parallel; s b h 34/t with sequence parallelism; full recompute: 2 s b h;
              in general T [(2 w + i + j) h + 2 m h + ((q + 2 k) w + o i + g f a + f j)/t], w bytes, i and j bytes of a
              linear layer's input in attention and feed-forward, a bytes of the activation function's inputs, m = 1
              with dropout masks, q, k, o the widths of queries, keys and attention output, g = 1, or 2 when the
              feed-forward is gated; modules: without the norms' outputs and the activation's; operators: input,
              attention output and half of the products' outputs
    Source    korthikanti2022 (arXiv:2205.05198), Table 2, without its 5 a s/h term: flash attention keeps no scores
    Assumes   full recompute keeps the layer's input, split with sequence parallelism
    Checked   tests/costs/test_memory.py: equals 10 + 24/t and 34/t for a GPT of width 4h
    """
    h, t, w, f = float(shape.hidden), tp, kept.width_bytes, float(shape.ffn_hidden)
    i, j = kept.attention_input_bytes, kept.feed_forward_input_bytes
    whole_split = t if sequence_parallel else 1
    if recompute == "full":
        return num_tokens * w * h / whole_split
    fan = 2.0 if shape.gated else 1.0
    qkv, out = attention_widths(shape, t)
    if recompute == "operators":
        products = (2.0 * h / whole_split + (qkv + fan * f) / t) * w / 2.0
        return num_tokens * (w * h / whole_split + w * out / t + products)
    # what norms and the activation hand to the products is computed again with recompute=modules
    handed = 0.0 if recompute == "modules" else 1.0
    if recompute == "modules" and shape.mla is not None:
        qkv = latent_width(shape.mla, t)
    whole = (2.0 * w + handed * (i + j)) * h + (2.0 * h if dropout else 0.0)
    split = qkv * w + out * i + fan * f * kept.gate_bytes + f * handed * j
    return num_tokens * (whole / whole_split + split / t)


def attention_widths(shape: TransformerShape, tp: FloatLike) -> tuple[FloatLike, FloatLike]:
    """Elements per token that attention keeps: queries, keys and values; the input of the output layer."""
    if shape.mla is None:
        key_value = 2.0 * np.maximum(shape.kv_heads, tp) * shape.head_dim
        query = float(shape.heads * shape.head_dim)
        before_norms = query + 0.5 * key_value if shape.qk_norm else 0.0  # queries and keys as their norms took them
        return query + key_value + before_norms, query
    mla = shape.mla
    query = shape.heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    values = shape.heads * mla.v_head_dim
    return 2.0 * query + values + latent_width(mla, tp), float(values)


def latent_width(mla: MlaShape, tp: FloatLike) -> FloatLike:
    """Elements per token that every device keeps of the latents, times the devices that share the others."""
    return (mla.q_lora_rank + mla.kv_lora_rank + mla.qk_rope_head_dim) * tp


def score_bytes_per_layer(setting: Setting) -> FloatLike:
    """Attention scores that a stack without fused attention keeps in one layer.

    Equation  5 a s^2 b / t:  softmax output and its dropped-out copy at 2 bytes, the mask at 1
    Source    korthikanti2022 (arXiv:2205.05198), Table 2, the 5 a s/h term
    Assumes   nothing with fused attention; selective recompute drops them
    Checked   tests/costs/test_memory.py: s b h 5 a s/h over t for a GPT; zero for fused attention
    """
    if setting.stack.fused_attention:
        return 0.0
    shape, layout = setting.shape, setting.layout
    return 5.0 * shape.heads * float(shape.seq) ** 2 * layout.mbs / (layout.tp * layout.cp)


def expert_activation_bytes_per_layer(setting: Setting, recompute: Recompute = "none") -> FloatLike:
    """Stored activations of a mixture-of-experts feed-forward on one device.

    Equation  R w (2 h + (1 + g) f_e) + T w (1 + g) f_s / t,  R routed token copies, f_s the shared experts' width;
              g for 1 + g where activations are computed again; h for 2 h where a fused dispatch weighs inside the
              experts; both where frozen experts need no inputs
    Source    korthikanti2022 (arXiv:2205.05198), Table 2, applied to each token copy
    Assumes   permuted inputs and expert outputs are kept, the latter because the combination weighs them; router scores
              are not counted
    Checked   `scalewright validate`, published peaks of mixture-of-experts runs
    """
    moe, w = setting.shape.moe, setting.recipe.activation_bytes
    if moe is None:
        return 0.0
    has_inputs = 0.0 if setting.mode.is_lora else 1.0
    outputs = (2.0 if setting.shape.gated else 1.0) + has_inputs * (recompute != "modules")
    width = moe.expert_ffn / setting.expert_tp
    whole = has_inputs + (0.0 if setting.stack.fused_dispatch else 1.0)
    routed = setting.num_routed_tokens * w * (whole * setting.shape.hidden + outputs * width)
    shared = moe.num_shared * float(moe.shared_ffn or moe.expert_ffn)
    return routed + setting.num_tokens * w * outputs * shared / setting.layout.tp


def stored_bytes_per_layer(setting: Setting, recompute: Recompute, moe_frac: FloatLike) -> FloatLike:
    """Stored activations of an average layer, dense or of experts, under a recompute policy."""
    shape, layout, recipe, kept = setting.shape, setting.layout, setting.recipe, kept_bytes(setting)
    if recompute == "operators" and recipe.matmul == "fp4":
        # the policy lists the products it keeps, and those in 4 bit are not among them: attention's output is left
        _, out = attention_widths(shape, layout.tp)
        attention = setting.num_tokens * recipe.activation_bytes * out / layout.tp
        return stored_bytes_per_layer(setting, "full", moe_frac) + attention
    dense = activation_bytes_per_layer(
        shape=shape, num_tokens=setting.num_tokens, tp=layout.tp, sequence_parallel=layout.sp,
        recompute="none" if recompute == "selective" else recompute, dropout=setting.stack.dropout,
        kept=kept,
    )  # fmt: skip
    if recompute == "full" or shape.moe is None:
        return dense
    fan, w = 2.0 if shape.gated else 1.0, recipe.activation_bytes
    handed = 0.0 if recompute == "modules" else kept.feed_forward_input_bytes
    per_element = 0.5 * fan * w if recompute == "operators" else fan * kept.gate_bytes + handed
    feed_forward = setting.num_tokens * per_element * shape.ffn_hidden / layout.tp
    return dense - moe_frac * feed_forward + moe_frac * expert_activation_bytes_per_layer(setting, recompute)


def state_bytes_per_param(*, recipe: Recipe, num_shards: FloatLike, zero: int) -> dict[str, FloatLike]:
    """Bytes per parameter kept on a device for weights, gradients and optimizer.

    Equation  w + g + o, each divided by the data-parallel degree from ZeRO stage 3, 2, 1 on
    Source    rajbhandari2020 (arXiv:1910.02054), section 5 and Figure 1
    Assumes   Adam; even shards
    Checked   tests/costs/test_memory.py: 7.5e9 parameters on 64 devices: 120, 31.4, 16.6, 1.9 GB
    """
    d = num_shards
    return {
        "weights": recipe.weight_bytes / (d if zero >= 3 else 1),
        "gradients": recipe.gradient_bytes / (d if zero >= 2 else 1),
        "optimizer": recipe.optimizer_bytes / (d if zero >= 1 else 1),
    }


def logits_bytes(setting: Setting) -> FloatLike:
    """Output scores of one micro-batch on the last pipeline rank, their copies and gradients.

    Equation  T V c / t,  c bytes per score in this stack
    Source    shoeybi2019 (Megatron-LM, arXiv:1909.08053), section 3: 16-bit output and one fp32 copy, c = 6; eager
              loss in fp32: output, copy, log-softmax and two gradients, c = 16
    Assumes   the whole micro-batch at once; no chunked loss; a compiled loss keeps less than it moves
    Checked   tests/costs/test_memory.py: linear in vocabulary
    """
    kept = setting.stack.loss_memory or setting.stack.logits_bytes
    return setting.num_tokens * setting.shape.vocab * kept.value / setting.layout.tp


def gathered_weight_bytes(*, num_unit_params: FloatLike, recipe: Recipe, zero: int, dp: FloatLike) -> FloatLike:
    """Full weights of the two units in flight under ZeRO-3: the one at work and the one prefetched.

    Equation  2 x unit x w, if sharded
    Source    zhao2023 (PyTorch FSDP, arXiv:2304.11277), section 3.3
    Assumes   a unit is one layer; prefetch of one
    Checked   tests/costs/test_memory.py: nothing below stage 3 or for one rank
    """
    sharded = np.asarray((np.asarray(dp) > 1) & (zero >= 3), dtype=np.float64)[()]
    return sharded * 2.0 * num_unit_params * recipe.weight_bytes
