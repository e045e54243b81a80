"""Time of attention: scores, softmax and weighted values, fused or written to memory, whole or along a ring."""

from __future__ import annotations

import numpy as np

from scalewright.catalog.types import Constants, TransformerShape
from scalewright.costs.breakdown import FloatLike, PassTimes
from scalewright.costs.setting import Setting

FLASH_BACKWARD_OVER_FORWARD = 2.5
"""Fused attention's backward pass does five matrix products where the forward does two (dao2023, section 3.1)."""
TILE_QUERIES = 128.0
"""Queries of one head that one unit works on at a time, in fused attention."""
REFERENCE_HEAD = 128.0
"""Head size that a stack's attention share is stated for."""


def head_dim_sum(shape: TransformerShape, *, step: int = 1) -> float:
    """Query-key plus value size of one head, halved: the d of 4 b s^2 a d. Padded up to a multiple of `step`."""

    def padded(size: int) -> int:
        return -(-size // step) * step

    if shape.mla is None:
        return float(padded(shape.head_dim))
    mla = shape.mla
    return (padded(mla.qk_nope_head_dim + mla.qk_rope_head_dim) + padded(mla.v_head_dim)) / 2.0


def flash_attention_time_s(
    *,
    seq: int,
    micro_batch: FloatLike,
    heads: FloatLike,
    head_dim: float,
    causal: bool,
    flop_per_s: float,
    constants: Constants,
    cp: FloatLike = 1.0,
    num_units: float | None = 0.0,
) -> FloatLike:
    """Forward pass of fused attention in one layer, on one device of a context-parallel group of `cp`.

    Equation  t = 4 b s^2 a d (1/2 if causal) / (c F r(d)/r(128) x/(x + s0)) (1 + f U c / (b a s/128)),
              r(d) = d/(d + d0);  x = min(s, 2 s/c), since a kernel of a ring of c has s/c keys and no causal half; U
              units of the device share tiles of 128 queries
    Source    dao2023 (FlashAttention-2, arXiv:2307.08691), section 4.1, for the work and the tiles; s0, d0 and f
              measured on an H200
    Assumes   scores never reach memory; F is the stack's rate for heads of 128 and long sequences; no ramps on devices
              without units to fill (CPUs: `num_units` None)
    Checked   tests/costs/test_compute.py: causal is half; the H200's table of 28 sizes within 20 %; never less work in
              all for a longer ring
    """
    b, s, d, a = micro_batch, float(seq), head_dim, heads
    work = 4.0 * b * s * s * a * d * (0.5 if causal else 1.0) / cp
    if num_units is None:
        return work / flop_per_s
    d0, s0 = constants.attention_head_ramp.value, constants.attention_seq_ramp.value
    reach = np.minimum(s, 2.0 * s / cp)
    ramp = d / (d + d0) * (REFERENCE_HEAD + d0) / REFERENCE_HEAD * reach / (reach + s0)
    num_tiles = b * a * s / cp / TILE_QUERIES
    return work / (flop_per_s * ramp) * (1.0 + constants.attention_fill.value * num_units / num_tiles)


def unfused_attention_times(
    *, seq: int, micro_batch: FloatLike, heads: FloatLike, head_dim: float, flop_per_s: float, bytes_per_s: float,
    width_bytes: float, constants: Constants,
) -> PassTimes:  # fmt: skip
    """Attention whose scores are written to memory: batched products, softmax and dropout over b a s^2 elements.

    Equation  t = 4 b s^2 a d / F + c b a s^2 w / B forward; twice the products and 3/2 the traffic backward
    Source    ivanov2021 (Data Movement Is All You Need, arXiv:2007.00072), Table A.1; dao2022 (arXiv:2205.14135)
    Assumes   the whole square is computed; heads whose size is no multiple of 8 run on the vector units
    Checked   `scalewright validate`, the runs before fused attention
    """
    b, s, ahead = micro_batch, float(seq), constants.unfused_forward_share.value
    products = 4.0 * b * s * s * heads * head_dim / flop_per_s
    traffic = constants.unfused_attention_passes.value * b * heads * s * s * width_bytes / bytes_per_s
    return PassTimes(forward_s=products + ahead * traffic, backward_s=2.0 * products + (1.0 - ahead) * traffic)


def attention_times(setting: Setting) -> PassTimes:
    """Scores, softmax and weighted values of one layer, by the way the stack computes them."""
    shape, machine, recipe, constants = setting.shape, setting.machine, setting.recipe, setting.constants
    heads = shape.heads / setting.layout.tp
    if setting.stack.fused_attention:
        units = machine.accelerator.num_compute_units
        forward = flash_attention_time_s(
            seq=shape.seq,
            micro_batch=setting.layout.mbs,
            heads=heads,
            head_dim=head_dim_sum(shape, step=1 if units is None else int(constants.attention_head_step.value)),
            causal=shape.causal,
            flop_per_s=machine.attention_flop_per_s(recipe.attention, setting.stack),
            constants=constants,
            cp=setting.layout.cp,
            num_units=None if units is None else units.value,
        )
        ratio = machine.attention_backward_ratio.get(recipe.attention, FLASH_BACKWARD_OVER_FORWARD)
        return PassTimes(forward_s=forward, backward_s=forward * ratio) + ring_merge_times(setting)
    rate = machine.sustained_flop_per_s(recipe.attention) * constants.unfused_product_share.value
    if shape.head_dim % constants.matrix_unit_alignment.value and "fp32" in machine.accelerator.peak:
        rate = machine.peak_flop_per_s("fp32")
    return unfused_attention_times(
        seq=shape.seq,
        micro_batch=setting.layout.mbs / setting.layout.cp,
        heads=heads,
        head_dim=head_dim_sum(shape),
        flop_per_s=rate,
        bytes_per_s=machine.hbm_bytes_per_s,
        width_bytes=recipe.activation_bytes,
        constants=constants,
    )


def ring_merge_times(setting: Setting) -> PassTimes:
    """What a context-parallel ring adds to attention: each part's result is merged into a sum.

    Equation  t = 2 (c - 1) w T a d / (t B) forward; T (a + 2 a_kv) d / t backward, for the three gradients
    Source    liu2023 (Ring Attention, arXiv:2310.01889), section 3: outputs and gradients are summed block by block
    Assumes   the kernel of a part reads and writes the sum of w bytes an element
    Checked   tests/costs/test_compute.py: nothing without a ring
    """
    shape, layout, width_bytes = setting.shape, setting.layout, setting.recipe.activation_bytes
    element_s = 2.0 * (layout.cp - 1.0) * width_bytes * setting.num_tokens / setting.machine.hbm_bytes_per_s
    query = shape.heads * head_dim_sum(shape) / layout.tp
    key_value = 2.0 * np.maximum(shape.kv_heads / layout.tp, 1) * head_dim_sum(shape)
    return PassTimes(forward_s=element_s * query, backward_s=element_s * (query + key_value))
