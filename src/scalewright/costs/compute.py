"""Time on the device: products by shape and tile, attention, memory traffic, head and loss, optimizer, host."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from scalewright.catalog.types import Constants
from scalewright.costs.breakdown import NOTHING, FloatLike, PassTimes
from scalewright.costs.machine.machine import LATER_ARCHITECTURES
from scalewright.costs.selection import expected_largest
from scalewright.costs.setting import Setting

Gemms = Mapping[str, tuple[FloatLike, FloatLike]]


def tiled_product_time_s(
    *, m: FloatLike, n: FloatLike, k: FloatLike, flop_per_s: FloatLike, num_units: float, constants: Constants
) -> FloatLike:
    """Arithmetic of one matrix product C[m,n] = A[m,k] B[k,n], cut into tiles that run in waves.

    Equation  t = min over tiles of W U r c 2 (k + k0) / (F e),  W = ceil(ceil(m/r) ceil(n/c) / U)
    Source    nvidia2023 (Matrix Multiplication Background User's Guide), tile and wave quantisation
    Assumes   one tile per unit and wave; the library picks the best of four tile sizes r x c, whose rate over the
              largest is e; filling a tile's pipeline costs k0 of depth
    Checked   tests/costs/test_compute.py: steps at whole waves; large products reach F within 2 %
    """
    depth = k + constants.depth_overhead.value
    times = [
        num_whole(num_whole(m / rows) * num_whole(n / columns) / num_units)
        * (num_units * rows * columns * 2.0 * depth / (flop_per_s * share.value))
        for (rows, columns), share in ((num_tile_sides(name), share) for name, share in constants.tile_share.items())
    ]
    return least_time_s(times)


@functools.cache
def num_tile_sides(name: str) -> tuple[float, float]:
    """Rows and columns of a tile that is called `128x64`."""
    rows, columns = name.split("x")
    return float(rows), float(columns)


def num_whole(num_parts: FloatLike) -> FloatLike:
    """The next whole number. For single numbers this is ten times as fast as NumPy, and a step has thousands."""
    return float(math.ceil(num_parts)) if isinstance(num_parts, float) else np.ceil(num_parts)


def least_time_s(times_s: Sequence[FloatLike]) -> FloatLike:
    """The least of some times, or of some columns of times, layout by layout."""
    if all(isinstance(value, float) for value in times_s):
        return min(times_s)
    return functools.reduce(np.minimum, times_s)


def alignment_frac(setting: Setting, n: FloatLike, k: FloatLike) -> FloatLike:
    """Rate of the products with a weight [n, k], by its alignment, over that of an aligned one.

    Equation  1 where n and k are multiples of 8 elements (16 bytes in 16 bit), else the misaligned share, the odd share
              where a side is an odd number on a device from Hopper on, or what is left where a compiler copies
              operands into aligned ones
    Source    nvidia2023 (Matrix Multiplication Background User's Guide), Tensor Core requirements
    Assumes   whichever side it is: rows that do not start on 16 bytes cannot be loaded whole; vector units
              do not mind, neither a processor's nor those that 32-bit products run on
    Checked   tests/costs/test_compute.py: an odd vocabulary costs more than the next multiple of 128
    """
    if setting.machine.accelerator.num_compute_units is None or setting.recipe.matmul == "fp32":
        return 1.0
    step = setting.constants.matrix_unit_alignment.value
    constants, sides = setting.constants, (np.asarray(n), np.asarray(k))
    is_short, is_odd = (np.logical_or(*(side % unit > 0 for side in sides)) for unit in (step, 2.0))
    if setting.stack.compiled:
        return np.where(is_short, constants.padded_matmul_share.value, 1.0)[()]
    is_odd = is_odd & (setting.machine.accelerator.architecture in LATER_ARCHITECTURES)
    short = np.where(is_odd, constants.odd_matmul_share.value, constants.misaligned_matmul_share.value)
    return np.where(is_short, short, 1.0)[()]


def gemm_time_s(
    *, m: FloatLike, n: FloatLike, k: FloatLike, flop_per_s: FloatLike, bytes_per_s: float, width_bytes: float,
    num_units: float | None, constants: Constants, start_s: float = 0.0, written_bytes: float | None = None,
) -> FloatLike:  # fmt: skip
    """One matrix product on a roofline.

    Equation  t = max(tiled arithmetic, (w (m k + k n) + v m n) / B);  2 m n k / F where the device has no units to
              fill, after what a calibration found that a product takes to start; v = w, unless it is added to a sum
    Source    williams2009 (Roofline, CACM 52(4))
    Assumes   each operand crosses memory once
    Checked   tests/costs/test_compute.py: both regimes
    """
    result_bytes = width_bytes if written_bytes is None else written_bytes
    traffic = (width_bytes * (m * k + k * n) + result_bytes * (m * n)) / bytes_per_s
    if num_units is None:
        return start_s + np.maximum(2.0 * m * n * k / flop_per_s, traffic)
    work = tiled_product_time_s(m=m, n=n, k=k, flop_per_s=flop_per_s, num_units=num_units, constants=constants)
    return np.maximum(work, traffic)


def _product(
    setting: Setting,
    flop_per_s: FloatLike,
    m: FloatLike,
    n: FloatLike,
    k: FloatLike,
    *,
    written_bytes: float | None = None,
) -> FloatLike:
    units = setting.machine.accelerator.num_compute_units
    return gemm_time_s(
        m=m, n=n, k=k, flop_per_s=flop_per_s, bytes_per_s=setting.machine.hbm_bytes_per_s,
        width_bytes=setting.recipe.activation_bytes, num_units=None if units is None else units.value,
        constants=setting.constants, start_s=setting.machine.product_start_s, written_bytes=written_bytes,
    )  # fmt: skip


def matmul_times(setting: Setting, gemms: Gemms, *, flop_per_s: FloatLike, has_adapters: bool = True) -> PassTimes:
    """Forward product, and backward the products for the gradients of input and weight.

    A frozen weight has no gradient of its own; beside it run the two thin products of its adapter, both ways. A stack
    that keeps its gradients lets the product for a weight read and write their sum.
    """
    m = setting.num_tokens
    summed_bytes = 2.0 * setting.held_recipe.gradient_bytes if setting.stack.keeps_gradients else None
    forward: FloatLike = 0.0
    backward: FloatLike = 0.0
    for n, k in gemms.values():
        rate = flop_per_s * alignment_frac(setting, n, k)
        forward = forward + _product(setting, rate, m, n, k)
        backward = backward + _product(setting, rate, m, k, n)
        if not setting.mode.is_lora:
            backward = backward + _product(setting, rate, n, k, m, written_bytes=summed_bytes)
        elif has_adapters:
            adapter = adapter_times(setting, flop_per_s=flop_per_s, n=n, k=k)
            forward, backward = forward + adapter.forward_s, backward + adapter.backward_s
    return PassTimes(forward_s=forward, backward_s=backward)


def adapter_times(setting: Setting, *, flop_per_s: FloatLike, n: FloatLike, k: FloatLike) -> PassTimes:
    """Two thin products through a rank, and what moves around them.

    Equation  products m x k x r and m x r x n, both ways; m w (2 k + 3 n)/B forward, m w (4 k + 2 n)/B backward
    Source    hu2021 (LoRA, arXiv:2106.09685), section 4.1; dropout of the input, scale and sum as in NeMo's and PEFT's
              linear adapters
    Assumes   dropout, scale and sum are kernels of their own
    Checked   tests/costs/test_training_modes.py: grows with the rank; `scalewright validate`, MLPerf's LoRA rows
    """
    m, r = setting.num_tokens, float(setting.mode.lora_rank)
    moved_s = m * setting.recipe.activation_bytes / setting.machine.hbm_bytes_per_s
    forward: FloatLike = 0.0
    backward: FloatLike = 0.0
    for columns, depth in ((r, k), (n, r)):
        forward = forward + _product(setting, flop_per_s, m, columns, depth)
        backward = backward + _product(setting, flop_per_s, m, depth, columns)
        backward = backward + _product(setting, flop_per_s, columns, depth, m)
    return PassTimes(
        forward_s=forward + moved_s * (2.0 * k + 3.0 * n), backward_s=backward + moved_s * (4.0 * k + 2.0 * n)
    )


def attention_gemms(setting: Setting) -> Gemms:
    """Columns and depth of the attention block's products on one device."""
    shape, t = setting.shape, setting.layout.tp
    h, a = float(shape.hidden), shape.heads
    if shape.mla is not None:
        mla = shape.mla
        query_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim
        down = mla.q_lora_rank + mla.kv_lora_rank + mla.qk_rope_head_dim
        query_depth = float(mla.q_lora_rank or h)
        return {
            "latent_down": (float(down), h),
            "query_up": (a * query_dim / t, query_depth),
            "key_value_up": (a * (mla.qk_nope_head_dim + mla.v_head_dim) / t, float(mla.kv_lora_rank)),
            "attention_out": (h, a * mla.v_head_dim / t),
        }
    key_value = 2 * np.maximum(shape.kv_heads / t, 1) * shape.head_dim
    return {"qkv": (a * shape.head_dim / t + key_value, h), "attention_out": (h, a * shape.head_dim / t)}


def ffn_gemms(setting: Setting, width: float) -> Gemms:
    """Columns and depth of a feed-forward of the given width, split by tensor parallelism."""
    h, t = float(setting.shape.hidden), setting.layout.tp
    fan = 2 if setting.shape.gated else 1
    return {"ffn_up": (fan * width / t, h), "ffn_down": (h, width / t)}


def expert_load(setting: Setting) -> FloatLike:
    """Tokens of the busiest device's experts over the mean: all devices of an expert-parallel group wait for it.

    Equation  i = 1 + u + z(e) / sqrt(T k),  z(e) the expected largest of e standard normal draws; 1 without a group
    Source    raab1998 (Balls into Bins, RANDOM 1998) for the part of chance; u, what the router leaves, assumed
    Assumes   tokens choose independently: neighbours that agree make it worse
    Checked   tests/costs/test_compute.py: 1 alone, more with devices, less with tokens
    """
    e = np.asarray(setting.layout.ep, dtype=np.float64)
    chance = expected_largest(e) / np.sqrt(np.maximum(setting.num_routed_tokens, 1.0))
    return np.where(e > 1, 1.0 + setting.constants.expert_imbalance.value + chance, 1.0)[()]


def expert_times(setting: Setting, *, flop_per_s: FloatLike) -> PassTimes:
    """Routed experts as grouped products.

    Equation  t = tiled arithmetic of T k i rows and half a tile of 128 an expert, at least a whole one,
              + E/e n k w / B: weights of w bytes read forward and for the input's gradient, weight gradients written,
              read as well where a stack sums them
    Source    gale2022 (MegaBlocks, arXiv:2211.15841), section 5; benchmarks/results/h200_narrow.jsonl: at 128 to 2048
              rows an expert, weight gradients reach 42, 58, 75, 87 and 93 % of one large product
    Assumes   kernels do not hide the loading of weights behind the arithmetic of the expert before; routers leave an
              expert any number of rows, so that its last tile is half full on average
    Checked   tests/costs/test_compute.py: the H200's grouped products; `scalewright validate`, mixtures of experts
    """
    moe = setting.shape.moe
    if moe is None:
        return NOTHING
    experts_here = np.maximum(moe.num_experts / setting.layout.ep, 1)
    per_expert = setting.num_routed_tokens * expert_load(setting) / experts_here
    tile_rows = setting.constants.grouped_tile_rows.value
    rows = np.maximum(per_expert + tile_rows / 2.0, tile_rows) * experts_here
    width, h = moe.expert_ffn / setting.expert_tp, float(setting.shape.hidden)
    fan = 2 if setting.shape.gated else 1
    units = setting.machine.accelerator.num_compute_units
    work: FloatLike = 0.0
    for n, k in ((fan * width, h), (h, width)):
        if units is None:
            work = work + 2.0 * rows * n * k / flop_per_s
        else:
            work = work + tiled_product_time_s(
                m=rows, n=n, k=k, flop_per_s=flop_per_s, num_units=units.value, constants=setting.constants
            )
    element_s = experts_here * (fan + 1) * width * h / setting.machine.hbm_bytes_per_s
    forward = work + setting.recipe.product_bytes * element_s
    if setting.mode.is_lora:
        return PassTimes(forward_s=forward, backward_s=forward)
    recipe = setting.held_recipe
    written = 2.0 * recipe.gradient_bytes if setting.stack.keeps_gradients else recipe.weight_bytes
    return PassTimes(forward_s=forward, backward_s=forward + work + written * element_s)


def feed_forward_times(setting: Setting, *, flop_per_s: FloatLike) -> PassTimes:
    """The feed-forward of an average layer: dense ones, routed and shared experts by their share of the layers."""
    frac, moe, has_adapters = setting.moe_frac, setting.shape.moe, setting.mode.adapts_feed_forward
    total = NOTHING
    if frac < 1.0:
        gemms = ffn_gemms(setting, setting.shape.ffn_hidden)
        dense = matmul_times(setting, gemms, flop_per_s=flop_per_s, has_adapters=has_adapters)
        total = total + dense.scaled(1.0 - frac)
    if moe is not None and frac > 0.0:
        routed = expert_times(setting, flop_per_s=flop_per_s)
        if moe.num_shared:
            width = moe.num_shared * (moe.shared_ffn or moe.expert_ffn)
            gemms = ffn_gemms(setting, width)
            routed = routed + matmul_times(setting, gemms, flop_per_s=flop_per_s, has_adapters=has_adapters)
        total = total + routed.scaled(frac)
    return total


def elementwise_bytes_per_layer(
    *, hidden: int, ffn_width: float, num_tokens: FloatLike, tp: FloatLike, norm_split: FloatLike, passes: float,
    width_bytes: float, gated_traffic: float = 1.0,
) -> FloatLike:  # fmt: skip
    """Memory traffic of everything in a layer that is not a product, forward.

    Equation  c w T (h / t_s + g f / 4t) / 2:  half of the crossings at the width of the model, half at that of the
              feed-forward, g times as many where it is gated; split by t_s = t with sequence parallelism, else 1
    Source    ivanov2021 (Data Movement Is All You Need, arXiv:2007.00072), Table A.1, norm and element-wise rows
    Assumes   c, the number of crossings, belongs to the software stack
    Checked   tests/costs/test_compute.py: linear in tokens, never more with sequence parallelism
    """
    return passes * width_bytes * num_tokens * (hidden / norm_split + gated_traffic * ffn_width / (4.0 * tp)) / 2.0


def norm_and_activation_bytes(setting: Setting) -> FloatLike:
    """Memory traffic of norms, residuals and activation functions of one layer, forward."""
    width_bytes = setting.recipe.activation_bytes
    return elementwise_bytes_per_layer(
        hidden=setting.shape.hidden, ffn_width=setting.feed_forward_width, num_tokens=setting.num_tokens,
        tp=setting.layout.tp, norm_split=setting.norm_split,
        passes=setting.stack_costs.num_layer_passes(width_bytes), width_bytes=width_bytes,
        gated_traffic=setting.constants.gated_traffic.value if setting.shape.gated else 1.0,
    )  # fmt: skip


def elementwise_times(setting: Setting) -> PassTimes:
    """Norms, residuals, activation; casts to 8 bit; routed tokens on their way to the experts and back."""
    shape, constants, recipe = setting.shape, setting.constants, setting.recipe
    rate = setting.machine.hbm_bytes_per_s
    tokens = setting.num_routed_tokens * expert_load(setting) if shape.moe is not None else 0.0
    routed = constants.permute_passes.value * recipe.activation_bytes * tokens * shape.hidden
    forward = (norm_and_activation_bytes(setting) + setting.moe_frac * routed) / rate
    casts = cast_bytes(setting)
    return PassTimes(forward_s=forward + casts.forward_s / rate, backward_s=2.0 * forward + casts.backward_s / rate)


def cast_bytes(setting: Setting) -> PassTimes:
    """Traffic of one layer's casts to 8 bit and fewer, forward and backward, in bytes.

    Equation  w c T (2 h + r h + f) / t forward, w c T (2 h + r h + 2 f) / t backward for the gradients; c crossings of
              the stack; r the copies of a token that feed-forwards read, f their width; forward, weights beside it
    Source    the inputs of the four products of a layer: micikevicius2022 (FP8 Formats for Deep Learning,
              arXiv:2209.05433), section 4; c counted or measured (the stack's entry)
    Assumes   attention and the output layer are not cast
    Checked   tests/costs/test_compute.py: nothing in 16 bit; linear in tokens
    """
    recipe, stack, shape, t = setting.recipe, setting.stack, setting.shape, setting.layout.tp
    if not recipe.is_narrow:
        return NOTHING
    passes = stack.block_cast_passes.value if recipe.is_block_scaled else stack.cast_passes.value
    copies = 1.0 if shape.moe is None else 1.0 + setting.moe_frac * (shape.moe.top_k + shape.moe.num_shared - 1.0)
    inputs, width = (2.0 + copies) * shape.hidden, setting.feed_forward_width
    element_bytes = recipe.activation_bytes * passes
    weights: FloatLike = 0.0
    if stack.casts_weights:
        experts_here = 1.0 if shape.moe is None else np.maximum(shape.moe.num_experts / setting.layout.ep, 1)
        fan = 3.0 if shape.gated else 2.0
        dense = sum(n * k for n, k in attention_gemms(setting).values())
        weights = dense + (1.0 - setting.moe_frac) * fan * shape.ffn_hidden * shape.hidden / t
        if shape.moe is not None:
            weights = weights + setting.moe_frac * experts_here * fan * shape.moe.expert_ffn * shape.hidden
    return PassTimes(
        forward_s=element_bytes * (setting.num_tokens * (inputs + width) / t + weights),
        backward_s=element_bytes * setting.num_tokens * (inputs + 2.0 * width) / t,
    )


def num_output_rows(setting: Setting) -> FloatLike:
    """Rows of the output layer: the vocabulary, filled up to a step a rank where tensor parallelism splits it."""
    t = np.asarray(setting.layout.tp, dtype=np.float64)
    vocab, step = setting.shape.vocab, setting.constants.vocab_step.value
    return np.where(t > 1, np.ceil(vocab / (step * t)) * step * t, float(vocab))[()]


def head_products(setting: Setting) -> PassTimes:
    """The output layer's products on the last pipeline rank."""
    columns = num_output_rows(setting) / setting.layout.tp
    rate = setting.machine.sustained_flop_per_s(setting.recipe.head)
    gemms = {"head": (columns, float(setting.shape.hidden))}
    return matmul_times(setting, gemms, flop_per_s=rate, has_adapters=False)


def head_times(setting: Setting) -> PassTimes:
    """The output layer and the loss on the last pipeline rank.

    Equation  products [T, V/t, h] + c w T V / (t B); c a quarter where the loss is fused
    Source    shoeybi2019 (Megatron-LM, arXiv:1909.08053), section 3
    Assumes   the vocabulary is split by tensor parallelism, then padded to 128 a rank, else left as it is; scores
              cross memory c times, forward and backward
    Checked   tests/costs/test_compute.py: linear in vocabulary
    """
    width_bytes = setting.recipe.activation_bytes
    columns = num_output_rows(setting) / setting.layout.tp
    scores = setting.num_tokens * columns * width_bytes
    loss = setting.stack_costs.num_score_passes(width_bytes) * scores / setting.machine.hbm_bytes_per_s
    return head_products(setting) + PassTimes(forward_s=loss / 2.0, backward_s=loss / 2.0)


def softmax_falls_back(setting: Setting) -> FloatLike:
    """1 where unfused attention's softmax needs several kernels: its fused one takes score matrices by four."""
    if setting.stack.fused_attention:
        return 0.0
    num_matrices = np.asarray(setting.layout.mbs * setting.shape.heads / setting.layout.tp)
    return np.asarray(num_matrices % setting.constants.softmax_batch.value > 0, dtype=np.float64)[()]


def host_times(setting: Setting) -> PassTimes:
    """Host work to issue one layer: the floor under a device that is faster than its host.

    Equation  t = h (1 + f (x - 1 + y E/e)) (1 + z) (1 + j log2 t);  f the share of mixture-of-experts layers, x their
              factor, y for each of E/e experts in block-scaled 8 bit, z where softmax falls back; 3/2 of it backward
    Source    vtrain2024 (Bang et al., arXiv:2312.12391), small models on 2 to 8 GPUs, where time is flat in batch
    Assumes   one host thread issues all kernels of a device; nothing is captured in graphs; a tensor-parallel group
              waits for its slowest host at every sum
    Checked   `scalewright validate`, 540 runs of models below 1.3 B parameters
    """
    constants, layout, moe = setting.constants, setting.layout, setting.shape.moe
    more: FloatLike = constants.expert_host_factor.value - 1.0
    if moe is not None and setting.recipe.is_block_scaled:
        more = more + constants.expert_cast_host.value * np.maximum(moe.num_experts / layout.ep, 1)
    slowest = 1.0 + constants.host_spread.value * np.log2(np.asarray(layout.tp, dtype=np.float64))
    fallback = 1.0 + constants.softmax_fallback_host.value * softmax_falls_back(setting)
    forward = setting.stack_costs.layer_host_s * (1.0 + setting.moe_frac * more) * slowest * fallback
    return PassTimes(forward_s=forward, backward_s=forward * constants.host_backward_ratio.value)


def host_wait_s(*, device_s: FloatLike, host_s: FloatLike, blend: float) -> FloatLike:
    """What a layer takes beyond its device time because the host issues too slowly.

    Equation  t = (d^p + h^p)^(1/p) - d;  max(h - d, 0) for an infinite p, without a calibration
    Source    p: steps of one H200 (benchmarks/results/h200_steps.jsonl); a fitted p does not lower the error of
              published runs that are left out (benchmarks/results/fit_ablation.txt)
    Assumes   short kernels wait for the host while long ones let it run ahead, so the change-over is gradual
    Checked   tests/costs/test_compute.py: nothing without host time; the host's time when the device has none
    """
    d, h = np.maximum(device_s, 1e-12), host_s
    if math.isinf(blend):
        return np.maximum(h - d, 0.0)
    return d * ((1.0 + (h / d) ** blend) ** (1.0 / blend) - 1.0)


def kernel_gap_times(setting: Setting) -> PassTimes:
    """What the kernels of a layer take to start and to drain, however small they are.

    Equation  t = (k + (c - 1) k_c) t_0,  k kernels of a layer, forward and backward, k_c those of each further part of
              a context-parallel ring of c; a third of them forward
    Source    benchmarks/results/h200_accumulation.jsonl: steps of one H200 by size of the micro-batch
    Assumes   the same t_0 on every GPU; stacks without a count have the kernels of Transformer Engine
    Checked   tests/golden/test_h200_accumulation.py
    """
    ring = (setting.layout.cp - 1.0) * setting.constants.ring_kernels.value
    costs = setting.stack_costs
    both = costs.gap_s + ring * costs.kernel_gap_s
    return PassTimes(forward_s=both / 3.0, backward_s=both * 2.0 / 3.0)


def gradient_sum_time_s(
    *,
    num_params: FloatLike,
    num_tensors: FloatLike,
    gradient_bytes: float,
    num_passes: float,
    bytes_per_s: float,
    kernel_gap_s: float,
) -> FloatLike:
    """Adding the gradients of one micro-batch to the sum of those before, where no product does it.

    Equation  t = c N g / B + n t_0:  n tensors, each read and added to a sum of g bytes, which is read and written
    Source    benchmarks/results/h200_accumulation.jsonl: 3.3 to 3.7 ps a parameter and 2.6 us a tensor, for c
    Assumes   the first micro-batch fills the sum
    Checked   tests/golden/test_h200_accumulation.py
    """
    return num_passes * num_params * gradient_bytes / bytes_per_s + num_tensors * kernel_gap_s


def optimizer_time_s(*, num_params: FloatLike, bytes_per_param: float, bytes_per_s: float) -> FloatLike:
    """Adam over the parameters a device updates.

    Equation  t = N (g + 2 o + w) / B
    Source    rajbhandari2020 (arXiv:1910.02054), section 3.1, for the state per parameter
    Assumes   one fused pass: gradients read, state read and written, weights written
    Checked   tests/costs/test_compute.py: linear in parameters
    """
    return num_params * bytes_per_param / bytes_per_s
