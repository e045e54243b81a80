"""Memory of the worst rank: weights, gradients, optimizer state, activations, logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scalewright.catalog.types import TransformerShape
from scalewright.costs.breakdown import FloatLike
from scalewright.workload.layout import Layout, Recompute
from scalewright.workload.precision import Recipe

if TYPE_CHECKING:
    from scalewright.workload.layout import IntLike


def activation_bytes_per_layer(
    *,
    shape: TransformerShape,
    micro_batch: IntLike,
    tp: IntLike,
    sequence_parallel: bool,
    recompute: Recompute,
    width_bytes: float,
) -> FloatLike:
    """Stored activations of one transformer layer on one device.

    Equation  s b h (10 + 24/t) tensor parallel; s b h 34/t with sequence parallelism; full recompute: 2 s b h
              in general s b [4 w h + 2 h m + ((2 a + 2 k) d w + (1 + g) f w)/t], w bytes, m = 1 with dropout masks,
              k key-value heads, g = 1, or 2 when the feed-forward is gated
    Source    korthikanti2022 (arXiv:2205.05198), Table 2, without its 5 a s/h term: flash attention keeps no scores
    Assumes   dropout (and its masks) in ungated models only; full recompute keeps the layer's input, split with
              sequence parallelism
    Checked   tests/costs/test_memory.py: equals 10 + 24/t and 34/t for a GPT of width 4h
    """
    h, t, w = float(shape.hidden), tp, width_bytes
    tokens = micro_batch * float(shape.seq)
    whole_split = t if sequence_parallel else 1
    if recompute == "full":
        return tokens * w * h / whole_split
    masks = 0.0 if shape.gated else 2.0 * h
    heads = (2.0 * shape.heads + 2.0 * np.maximum(shape.kv_heads, t)) * shape.head_dim * w
    outputs = 3.0 if shape.gated else 2.0
    return tokens * ((4.0 * w * h + masks) / whole_split + (heads + outputs * shape.ffn_hidden * w) / t)


def state_bytes_per_param(*, recipe: Recipe, dp: IntLike, zero: int) -> dict[str, FloatLike]:
    """Bytes per parameter kept on a device for weights, gradients and optimizer.

    Equation  2 + 2 + 12, each divided by the data-parallel degree from ZeRO stage 3, 2, 1 on
    Source    rajbhandari2020 (arXiv:1910.02054), section 5 and Figure 1
    Assumes   Adam; even shards
    Checked   tests/costs/test_memory.py: 7.5e9 parameters on 64 devices: 120, 31.4, 16.6, 1.9 GB
    """
    d = dp
    return {
        "weights": recipe.weight_bytes / (d if zero >= 3 else 1),
        "gradients": recipe.gradient_bytes / (d if zero >= 2 else 1),
        "optimizer": recipe.optimizer_bytes / (d if zero >= 1 else 1),
    }


def logits_bytes(*, shape: TransformerShape, layout: Layout, width_bytes: float) -> FloatLike:
    """Output scores of one micro-batch on the last stage, and the fp32 copy the loss works on.

    Equation  s b V (w + 4) / t
    Source    megatron-lm (vocab-parallel cross entropy keeps fp32 scores beside the layer's output)
    Assumes   the whole micro-batch at once; no chunked loss
    Checked   tests/costs/test_memory.py: linear in vocabulary
    """
    return layout.mbs * float(shape.seq) * shape.vocab * (width_bytes + 4.0) / layout.tp


def gathered_weight_bytes(*, largest_unit_params: FloatLike, recipe: Recipe, zero: int, dp: IntLike) -> FloatLike:
    """Full weights of the two units in flight under ZeRO-3: the one at work and the one prefetched.

    Equation  2 x unit x w, if sharded
    Source    zhao2023 (PyTorch FSDP, arXiv:2304.11277), section 3.3
    Assumes   a unit is one layer; prefetch of one
    Checked   tests/costs/test_memory.py: nothing below stage 3 or for one rank
    """
    sharded = np.asarray((np.asarray(dp) > 1) & (zero >= 3), dtype=np.float64)
    return sharded * 2.0 * largest_unit_params * recipe.weight_bytes
