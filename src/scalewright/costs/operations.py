"""The operations of one step on one device, each with its work, traffic and time: the points of a roofline."""

from __future__ import annotations

import math
from collections.abc import Iterator

from scalewright.costs import attention, compute
from scalewright.costs.breakdown import FloatLike, PassTimes
from scalewright.costs.compute import Gemms
from scalewright.costs.roofline import QUERY_TILE, Kind, Operation, Phase, product_cache_bytes
from scalewright.costs.setting import Setting
from scalewright.costs.shards import busiest_trained, num_spread_params
from scalewright.workload.flop import score_flop

ADAM_FLOP_PER_PARAM = 14.0
"""Two moments (3 + 4), two bias corrections, root, sum, quotient, product and difference (Adam's Algorithm 1)."""


def operations(setting: Setting) -> list[Operation]:
    """Every operation of a device on the fullest pipeline rank, with the output layer, without what is recomputed."""
    assert not setting.layout.is_column
    per_step = float(setting.num_micro_batches) * float(setting.num_layers)
    points = [
        *_layer_products(setting, per_step),
        *_experts(setting, per_step),
        *_attention(setting, per_step),
        *_elementwise(setting, per_step),
        *_head(setting),
        *(() if setting.mode.is_offload else (_optimizer(setting),)),  # on the host: no work of the device
    ]
    return [op for op in points if op.time_s > 0.0 and op.num_per_step > 0.0]


def _work_and_traffic(setting: Setting, m: float, n: float, k: float) -> tuple[float, float]:
    """FLOP and bytes of a product: its time with the other ceiling removed."""

    def product_s(flop_per_s: float, bytes_per_s: float) -> float:
        time = compute.gemm_time_s(
            m=m, n=n, k=k, flop_per_s=flop_per_s, bytes_per_s=bytes_per_s,
            width_bytes=setting.recipe.activation_bytes, num_units=None, constants=setting.constants,
        )  # fmt: skip
        return float(time)

    return product_s(1.0, math.inf), product_s(math.inf, 1.0)


def _through_cache(setting: Setting, m: float, n: float, k: float) -> float:
    width_bytes = setting.recipe.activation_bytes
    return product_cache_bytes(num_rows=m, num_columns=n, num_depth=k, width_bytes=width_bytes)


def _products(
    setting: Setting, gemms: Gemms, *, rate: float, calls: float, kind: Kind, has_adapters: bool = True
) -> Iterator[Operation]:  # fmt: skip
    """Three operations per matrix: forward, gradient of the input, gradient of the weight, which a frozen one lacks."""
    m = float(setting.num_tokens)
    for name, (columns, depth) in gemms.items():
        n, k = float(columns), float(depth)
        if n * k == 0.0:
            continue
        times = compute.matmul_times(setting, {name: (n, k)}, flop_per_s=rate, has_adapters=False)
        # the gradient of the input is a product like the forward one with columns and depth exchanged
        swapped = compute.matmul_times(setting, {name: (k, n)}, flop_per_s=rate, has_adapters=False).forward_s
        parts: tuple[tuple[Phase, FloatLike, tuple[float, float, float]], ...] = (
            ("forward", times.forward_s, (m, n, k)),
            ("input_gradient", swapped, (m, k, n)),
            ("weight_gradient", times.backward_s - swapped, (n, k, m)),
        )
        for phase, time, shape in parts[:2] if setting.mode.is_lora else parts:
            work, traffic = _work_and_traffic(setting, *shape)
            kept = m * k if phase == "weight_gradient" else n * k  # the input kept from the forward pass, or weights
            yield Operation(
                name=name, phase=phase, kind=kind, flop=work, traffic_bytes=traffic,
                fresh_bytes=kept * setting.recipe.activation_bytes, cache_bytes=_through_cache(setting, *shape),
                time_s=float(time), num_per_step=calls,
                shape=" x ".join(f"{side:g}" for side in map(round, shape)),
            )  # fmt: skip
        if setting.mode.is_lora and kind == "matmul" and has_adapters:
            yield from _adapter(setting, name, n, k, rate=rate, calls=calls)


def _adapter(setting: Setting, name: str, n: float, k: float, *, rate: float, calls: float) -> Iterator[Operation]:
    """The two thin products beside a frozen one; backward both gradients of each."""
    m, r = float(setting.num_tokens), float(setting.mode.lora_rank)
    thin = [(m, r, k), (m, n, r)]
    work, traffic = (sum(column) for column in zip(*(_work_and_traffic(setting, *s) for s in thin), strict=True))
    through = sum(_through_cache(setting, *s) for s in thin)
    yield from _both(
        f"{name}_adapter", "matmul", compute.adapter_times(setting, flop_per_s=rate, n=n, k=k),
        work=(work, 2.0 * work), traffic=(traffic, 2.0 * traffic), cache=(through, 2.0 * through), calls=calls,
        shape=f"{m:g} x {n:g} x {k:g} through {r:g}",
    )  # fmt: skip


def _layer_products(setting: Setting, per_step: float) -> Iterator[Operation]:
    rate = float(setting.machine.sustained_flop_per_s(setting.recipe.matmul))
    frac, moe, adapted = setting.moe_frac, setting.shape.moe, setting.mode.adapts_feed_forward
    yield from _products(setting, compute.attention_gemms(setting), rate=rate, calls=per_step, kind="matmul")
    dense, calls = compute.ffn_gemms(setting, setting.shape.ffn_hidden), per_step * (1.0 - frac)
    yield from _products(setting, dense, rate=rate, calls=calls, kind="matmul", has_adapters=adapted)
    if moe is not None and moe.num_shared:
        width = moe.num_shared * (moe.shared_ffn or moe.expert_ffn)
        shared = {f"shared_{name}": size for name, size in compute.ffn_gemms(setting, width).items()}
        yield from _products(
            setting, shared, rate=rate, calls=per_step * frac, kind="matmul", has_adapters=adapted
        )  # fmt: skip


def _experts(setting: Setting, per_step: float) -> Iterator[Operation]:
    """The grouped products of a device's experts; each expert's weights cross memory once per product."""
    moe = setting.shape.moe
    if moe is None:
        return
    times = compute.expert_times(setting, flop_per_s=setting.machine.sustained_flop_per_s(setting.recipe.matmul))
    num_here = max(moe.num_experts / int(setting.layout.ep), 1.0)
    rows, h = float(setting.num_routed_tokens) / num_here, float(setting.shape.hidden)
    width, fan = moe.expert_ffn / float(setting.expert_tp), 2 if setting.shape.gated else 1
    up, down = (_work_and_traffic(setting, rows, n, k) for n, k in ((fan * width, h), (h, width)))
    once = num_here * (up[0] + down[0]), num_here * (up[1] + down[1])
    through = num_here * sum(_through_cache(setting, rows, n, k) for n, k in ((fan * width, h), (h, width)))
    calls, shape = per_step * setting.moe_frac, f"{num_here:g} of {rows:.0f} x {fan * width:.0f} x {h:.0f}, and down"
    backward = 1.0 if setting.mode.is_lora else 2.0  # frozen experts have no gradient of their own
    traffic = once[1], backward * once[1]
    yield from _both("experts", "matmul", times, work=(once[0], backward * once[0]), traffic=traffic, fresh=traffic,
                     cache=(through, backward * through), calls=calls, shape=shape)  # fmt: skip


def _both(
    name: str, kind: Kind, times: PassTimes, *, work: tuple[float, float], traffic: tuple[float, float],
    cache: tuple[float, float], calls: float, fresh: tuple[float, float] = (0.0, 0.0), shape: str = "",
) -> Iterator[Operation]:  # fmt: skip
    passes: tuple[tuple[Phase, FloatLike], ...] = (("forward", times.forward_s), ("backward", times.backward_s))
    for i, (phase, time) in enumerate(passes):
        yield Operation(
            name=name, phase=phase, kind=kind, flop=work[i], traffic_bytes=traffic[i], cache_bytes=cache[i],
            fresh_bytes=fresh[i], time_s=float(time), num_per_step=calls, shape=shape,
        )  # fmt: skip


def _attention(setting: Setting, per_step: float) -> Iterator[Operation]:
    shape, layout = setting.shape, setting.layout
    share = float(layout.mbs / (layout.cp * layout.tp))
    forward = score_flop(shape) * share
    if setting.stack.fused_attention:
        forward *= 0.5 if shape.causal else 1.0
        work = forward, forward * attention.FLASH_BACKWARD_OVER_FORWARD
        once = fused_attention_bytes(setting)
        traffic = once, once * attention.FLASH_BACKWARD_OVER_FORWARD
        # keys and values pass once per tile of queries: two operations and a multiply-add per element and query row
        passing = once + forward / (2.0 * QUERY_TILE) * setting.recipe.activation_bytes
        cache = passing, passing * attention.FLASH_BACKWARD_OVER_FORWARD
    else:
        work = forward, 2.0 * forward
        moved = attention.unfused_attention_times(
            seq=shape.seq, micro_batch=float(layout.mbs / layout.cp), heads=float(shape.heads / layout.tp),
            head_dim=attention.head_dim_sum(shape), flop_per_s=math.inf, bytes_per_s=1.0,
            width_bytes=setting.recipe.activation_bytes, constants=setting.constants,
        )  # fmt: skip
        traffic = cache = float(moved.forward_s), float(moved.backward_s)
    times = attention.attention_times(setting)
    yield from _both("attention", "attention", times, work=work, traffic=traffic, cache=cache, calls=per_step,
                     fresh=(0.0, traffic[1]))  # fmt: skip


def fused_attention_bytes(setting: Setting) -> float:
    """Memory traffic of fused attention, forward, in one layer.

    Equation  Q = 2 w T d (a/t + max(a_kv/t, 1)): queries, output, keys and values once each
    Source    dao2022 (FlashAttention, arXiv:2205.14135), section 3.2, for a cache that holds keys and values
    Assumes   keys and values are read once per pass, so the intensity is an upper bound
    Checked   tests/costs/test_operations.py: linear in tokens; fewer key-value heads never move more
    """
    shape, t = setting.shape, float(setting.layout.tp)
    d = attention.head_dim_sum(shape)
    heads, key_value = shape.heads / t, max(shape.kv_heads / t, 1.0)
    return setting.recipe.activation_bytes * float(setting.num_tokens) * 2.0 * d * (heads + key_value)


def _elementwise(setting: Setting, per_step: float) -> Iterator[Operation]:
    """Norms, residuals, activation: all traffic; one operation is counted per element moved."""
    times, width_bytes = compute.elementwise_times(setting), setting.recipe.activation_bytes
    moved = tuple(float(t) * setting.machine.hbm_bytes_per_s for t in (times.forward_s, times.backward_s))
    work, traffic = (moved[0] / width_bytes, moved[1] / width_bytes), (moved[0], moved[1])
    yield from _both("elementwise", "elementwise", times, work=work, traffic=traffic, cache=traffic, calls=per_step)


def _head(setting: Setting) -> Iterator[Operation]:
    """The output layer's product, and the loss: what the head takes beyond it."""
    rate = float(setting.machine.sustained_flop_per_s(setting.recipe.head))
    columns = compute.num_output_rows(setting) / setting.layout.tp
    gemm = {"head": (columns, float(setting.shape.hidden))}
    calls = float(setting.num_micro_batches)
    yield from _products(setting, gemm, rate=rate, calls=calls, kind="head")
    products, whole = (
        compute.matmul_times(setting, gemm, flop_per_s=rate, has_adapters=False),
        compute.head_times(setting),
    )
    loss = PassTimes(forward_s=whole.forward_s - products.forward_s, backward_s=whole.backward_s - products.backward_s)
    moved = tuple(float(t) * setting.machine.hbm_bytes_per_s for t in (loss.forward_s, loss.backward_s))
    work = moved[0] / setting.recipe.activation_bytes, moved[1] / setting.recipe.activation_bytes
    traffic = moved[0], moved[1]
    yield from _both("loss", "head", loss, work=work, traffic=traffic, cache=traffic, calls=calls)


def _optimizer(setting: Setting) -> Operation:
    recipe, shards = setting.recipe, busiest_trained(setting)
    updated = float(num_spread_params(setting, shards) if setting.layout.zero >= 1 else shards.num_params)
    passes = setting.machine.num_update_passes_of(setting.stack)
    bytes_per_param = passes * (recipe.gradient_bytes + 2.0 * recipe.optimizer_bytes + recipe.weight_bytes)

    def time(bytes_per_s: float) -> float:
        return float(
            compute.optimizer_time_s(num_params=updated, bytes_per_param=bytes_per_param, bytes_per_s=bytes_per_s)
        )

    return Operation(
        name="optimizer", phase="update", kind="optimizer", flop=ADAM_FLOP_PER_PARAM * updated,
        traffic_bytes=time(1.0), cache_bytes=time(1.0), fresh_bytes=time(1.0),
        time_s=time(setting.machine.hbm_bytes_per_s), num_per_step=1.0,
    )  # fmt: skip
