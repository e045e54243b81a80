"""Time on the device: matrix products by shape on a roofline, attention, memory traffic, optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from scalewright.catalog.types import TransformerShape
from scalewright.costs.breakdown import FloatLike
from scalewright.costs.machine import Machine
from scalewright.workload.layout import Layout
from scalewright.workload.precision import Recipe

if TYPE_CHECKING:
    from scalewright.workload.layout import IntLike

ELEMENTWISE_KERNELS_PER_LAYER = 8
"""Two norms, two residual adds, two dropouts or rotary embeddings, bias and activation: kernels of an eager layer."""
FLASH_BACKWARD_OVER_FORWARD = 2.5
"""Flash attention's backward pass does five matrix products where the forward does two (dao2023, section 3.1)."""


def gemm_time_s(
    *,
    m: FloatLike,
    n: FloatLike,
    k: FloatLike,
    flop_per_s: float,
    bytes_per_s: float,
    width_bytes: float,
    floor_s: float,
) -> FloatLike:
    """One matrix product C[m,n] = A[m,k] B[k,n].

    Equation  t = max(2 m n k / F, w (m k + k n + m n) / B, floor)
    Source    williams2009 (Roofline, CACM 52(4))
    Assumes   each operand crosses memory once; F is the best product published for the device, whatever the shape
    Checked   tests/costs/test_compute.py: both regimes and the floor
    """
    work = 2.0 * m * n * k / flop_per_s
    traffic = width_bytes * (m * k + k * n + m * n) / bytes_per_s
    return np.maximum(np.maximum(work, traffic), floor_s)


def flash_attention_time_s(
    *, seq: int, micro_batch: IntLike, head_dim_total: FloatLike, causal: bool, flop_per_s: float, floor_s: float
) -> FloatLike:
    """Forward pass of fused attention in one layer.

    Equation  t = max(4 b s^2 d_total (1/2 if causal) / F, floor)
    Source    dao2023 (FlashAttention-2, arXiv:2307.08691), section 4.1
    Assumes   scores never reach memory; F is attention's own rate; heads of one device run together
    Checked   tests/costs/test_compute.py: causal is half; quadratic in the sequence
    """
    b, s, d = micro_batch, float(seq), head_dim_total
    half = 0.5 if causal else 1.0
    return np.maximum(4.0 * b * s * s * d * half / flop_per_s, floor_s)


def elementwise_bytes_per_layer(
    *, shape: TransformerShape, tokens: FloatLike, tp: IntLike, sequence_parallel: bool, width_bytes: float
) -> FloatLike:
    """Memory traffic of everything in a layer that is not a product, forward.

    Equation  w T (10 h / t_s + c f / t):  norms 2 x 2h, residual adds 2 x 3h; activation c = 2, or 3 when gated
    Source    ivanov2021 (Data Movement Is All You Need, arXiv:2007.00072), Table A.1, norm and element-wise rows
    Assumes   bias, dropout and the residual add fused with their neighbour; t_s = t with sequence parallelism, else 1
    Checked   tests/costs/test_compute.py: linear in tokens, never more with sequence parallelism
    """
    h, f, t = shape.hidden, shape.ffn_hidden, tp
    split = t if sequence_parallel else 1
    activation = 3.0 if shape.gated else 2.0
    return width_bytes * tokens * (10.0 * h / split + activation * f / t)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTimes:
    """Seconds of one micro-batch: forward and backward, one layer or the head."""

    forward_s: FloatLike
    backward_s: FloatLike


def layer_gemms(shape: TransformerShape, layout: Layout) -> dict[str, tuple[FloatLike, FloatLike]]:
    """Columns n and depth k of each product of a layer on one device."""
    h, t = shape.hidden, layout.tp
    width = shape.heads * shape.head_dim
    kv_width = 2 * np.maximum(shape.kv_heads / t, 1) * shape.head_dim
    fan = 2 if shape.gated else 1
    return {
        "qkv": (width / t + kv_width, float(h)),
        "attention_out": (float(h), width / t),
        "ffn_up": (fan * shape.ffn_hidden / t, float(h)),
        "ffn_down": (float(h), shape.ffn_hidden / t),
    }


def matmul_times(
    *,
    gemms: Mapping[str, tuple[FloatLike, FloatLike]],
    tokens: FloatLike,
    machine: Machine,
    recipe: Recipe,
    head: bool = False,
) -> PassTimes:
    """Forward product and, backward, the products for input and weight gradients."""
    precision = recipe.head if head else recipe.matmul
    rate = machine.matmul_flop_per_s(precision)
    width, floor = recipe.activation_bytes, machine.constants.kernel_floor.value

    def time(m: FloatLike, n: FloatLike, k: FloatLike) -> FloatLike:
        return gemm_time_s(
            m=m, n=n, k=k, flop_per_s=rate, bytes_per_s=machine.hbm_bytes_per_s, width_bytes=width, floor_s=floor
        )

    forward: FloatLike = 0.0
    backward: FloatLike = 0.0
    for n, k in gemms.values():
        forward = forward + time(tokens, n, k)
        backward = backward + time(tokens, k, n) + time(n, k, tokens)
    return PassTimes(forward_s=forward, backward_s=backward)


def attention_times(*, shape: TransformerShape, layout: Layout, machine: Machine, recipe: Recipe) -> PassTimes:
    constants = machine.constants
    forward = flash_attention_time_s(
        seq=shape.seq,
        micro_batch=layout.mbs,
        head_dim_total=shape.heads * shape.head_dim / layout.tp,
        causal=shape.causal,
        flop_per_s=machine.matmul_flop_per_s(recipe.attention) * constants.attention_share.value,
        floor_s=constants.kernel_floor.value,
    )
    return PassTimes(forward_s=forward, backward_s=forward * FLASH_BACKWARD_OVER_FORWARD)


def elementwise_times(*, shape: TransformerShape, layout: Layout, machine: Machine, recipe: Recipe) -> PassTimes:
    traffic = elementwise_bytes_per_layer(
        shape=shape,
        tokens=layout.mbs * float(shape.seq),
        tp=layout.tp,
        sequence_parallel=layout.sp,
        width_bytes=recipe.activation_bytes,
    )
    floor = ELEMENTWISE_KERNELS_PER_LAYER * machine.constants.kernel_floor.value
    forward = np.maximum(traffic / machine.hbm_bytes_per_s, floor)
    return PassTimes(forward_s=forward, backward_s=2.0 * forward)


def optimizer_time_s(*, num_params_per_device: FloatLike, recipe: Recipe, machine: Machine) -> FloatLike:
    """Adam over the parameters a device updates.

    Equation  t = N (g + 2 o + w) / B
    Source    rajbhandari2020 (arXiv:1910.02054), section 3.1, for the state per parameter
    Assumes   one fused pass: gradients read, state read and written, weights written
    Checked   tests/costs/test_compute.py: linear in parameters
    """
    per_param = recipe.gradient_bytes + 2.0 * recipe.optimizer_bytes + recipe.weight_bytes
    return num_params_per_device * per_param / machine.hbm_bytes_per_s
