"""One average layer, one micro-batch: compute, transfers and host, for each distinct layer among many layouts."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalewright.costs import collectives, compute
from scalewright.costs.attention import attention_times
from scalewright.costs.breakdown import NOTHING, FloatLike, PassTimes
from scalewright.costs.setting import Setting
from scalewright.workload.layout import COLUMNS


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """One average layer, one micro-batch: what the device computes and what it waits for."""

    matmul: PassTimes
    attention: PassTimes
    elementwise: PassTimes
    tensor: PassTimes
    context: PassTimes
    expert: PassTimes
    again_s: FloatLike
    """Forward work repeated in the backward pass."""
    gap_s: FloatLike
    """What kernels take to start and to drain."""
    host_wait_s: FloatLike
    """What the host lacks to keep up."""
    total_s: FloatLike
    """The sum. It is stored because it is needed for each layout, while the parts are added once per distinct layer."""

    def at(self, index: NDArray[np.int64] | None) -> LayerTimes:
        """These times for each layout, where they were computed once for each distinct layer."""
        if index is None:
            return self
        times: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            times[field.name] = spread(value, index) if isinstance(value, PassTimes) else _pick(value, index)
        return LayerTimes(**times)

    @property
    def passes(self) -> PassTimes:
        return self.matmul + self.attention + self.elementwise + self.tensor + self.context + self.expert


def layer_times(setting: Setting) -> LayerTimes:
    rate = setting.machine.sustained_flop_per_s(setting.recipe.matmul)
    projections = compute.matmul_times(setting, compute.attention_gemms(setting), flop_per_s=rate)
    matmul = projections + compute.feed_forward_times(setting, flop_per_s=rate)
    attention = attention_times(setting)
    elementwise = compute.elementwise_times(setting)
    tensor, context, expert = (
        _tensor_parallel(setting),
        _context_parallel(setting, attention),
        _expert_parallel(setting),
    )
    host = compute.host_times(setting)
    again: FloatLike = 0.0
    host_s = host.forward_s + host.backward_s
    gaps = compute.kernel_gap_times(setting)
    if setting.layout.recompute == "full":  # transfers of the forward pass happen again as well
        again = matmul.forward_s + attention.forward_s + elementwise.forward_s
        tensor, context, expert = (_repeated(times) for times in (tensor, context, expert))
        host_s, gaps = host_s + host.forward_s, _repeated(gaps)
    elif setting.layout.recompute == "selective":
        again = attention.forward_s
    elif setting.layout.recompute == "modules":
        again = module_recompute_s(setting, flop_per_s=rate)
    elif setting.layout.recompute == "operators":
        again = matmul.forward_s / 2.0 + elementwise.forward_s
    device = matmul + attention + elementwise + tensor + context + expert
    busy = device.forward_s + device.backward_s + again
    gap_s = gaps.forward_s + gaps.backward_s
    wait = compute.host_wait_s(device_s=busy + gap_s, host_s=host_s, blend=setting.stack_costs.host_blend)
    return LayerTimes(
        matmul=matmul, attention=attention, elementwise=elementwise, tensor=tensor, context=context, expert=expert,
        again_s=again, gap_s=gap_s, host_wait_s=wait, total_s=busy + gap_s + wait,
    )  # fmt: skip


def module_recompute_s(setting: Setting, *, flop_per_s: FloatLike) -> FloatLike:
    """Norms, activation functions and the up-projections of latent attention once more, for the backward pass.

    Equation  traffic of norms and activations / B + products of the up-projections
    Source    Megatron-Core, recompute_modules layernorm, moe_act and mla_up_proj (transformer_config.py)
    Assumes   residuals are computed again with them, though they need not be
    Checked   tests/costs/test_compute.py: more than nothing, less than a whole layer
    """
    again = compute.norm_and_activation_bytes(setting) / setting.machine.hbm_bytes_per_s
    if setting.shape.mla is None:
        return again
    products = compute.attention_gemms(setting)
    up = {name: products[name] for name in ("query_up", "key_value_up")}
    return again + compute.matmul_times(setting, up, flop_per_s=flop_per_s).forward_s


def _repeated(times: PassTimes) -> PassTimes:
    return PassTimes(forward_s=times.forward_s, backward_s=times.backward_s + times.forward_s)


def _pick(value: FloatLike, index: NDArray[np.int64] | None) -> FloatLike:
    """One value per layout from one per distinct layer, the last axis; a last axis of 1 beside others is no column."""
    if index is None or not isinstance(value, np.ndarray) or (value.ndim > 1 and value.shape[-1] == 1):
        return value
    return value.take(index, axis=-1)


def spread(times: PassTimes, index: NDArray[np.int64] | None) -> PassTimes:
    """The times of each layout, where these are the times of the distinct layers."""
    return PassTimes(forward_s=_pick(times.forward_s, index), backward_s=_pick(times.backward_s, index))


NARROW_SUM_FRAC = 0.75
"""Bytes of a 16-bit reduce-scatter and an 8-bit all-gather over those of both in 16 bit (Transformer Engine and torchao
cast before they gather)."""
LAYER_KNOBS = ("tp", "cp", "ep", "mbs")
"""What one layer's time depends on among the whole-number knobs, beside the number of devices."""


def distinct_layers(setting: Setting) -> tuple[Setting, NDArray[np.int64] | None]:
    """The distinct layers among columns of layouts, and the index of the one that each layout has.

    A search costs thousands of layouts, but only the degrees in LAYER_KNOBS change a layer. Layers are therefore costed
    once per distinct combination and spread over the layouts afterwards. One layout stays itself (index None).
    """
    layout = setting.layout
    columns = [np.asarray(getattr(layout, name)) for name in (*LAYER_KNOBS, "num_gpus")]
    if not any(c.ndim for c in columns):
        return setting, None
    key = np.zeros((), dtype=np.int64)  # one whole number per combination, its columns being the digits
    for column in columns:
        key = key * (int(column.max()) + 1) + column
    _, first, index = np.unique(key, return_index=True, return_inverse=True)
    every = {name: np.asarray(getattr(layout, name)) for name in COLUMNS}
    distinct: dict[str, Any] = {name: c[first] if c.ndim else int(c) for name, c in every.items()}
    return replace(setting, layout=replace(setting.layout, **distinct)), index


def tensor_path(setting: Setting) -> collectives.Path:
    layout = setting.layout
    return collectives.group_path(setting.machine, num_ranks=layout.tp, stride=1, num_job_devices=layout.num_gpus)


def tensor_bytes(setting: Setting) -> FloatLike:
    """What one sum over a tensor-parallel group adds up: the activations of a micro-batch."""
    return setting.num_tokens * setting.shape.hidden * setting.recipe.activation_bytes


def context_path(setting: Setting) -> collectives.Path:
    layout = setting.layout
    return collectives.group_path(
        setting.machine, num_ranks=layout.cp, stride=layout.tp, num_job_devices=layout.num_gpus
    )


def _tensor_parallel(setting: Setting) -> PassTimes:
    """Two sums of the activations each way; a stack that overlaps them leaves a part visible."""
    path, sp = tensor_path(setting), setting.layout.sp
    size = tensor_bytes(setting)
    if sp and setting.recipe.is_narrow:  # what is gathered goes into 8-bit products, so it travels in 8 bit
        size = size * NARROW_SUM_FRAC
    once = collectives.all_reduce_time_s(size_bytes=size, path=path, in_pieces=sp)
    exposed = setting.constants.tensor_exposure.value if setting.stack.overlaps_tensor else 1.0
    return PassTimes(forward_s=2.0 * once * exposed, backward_s=2.0 * once * exposed)


def _context_parallel(setting: Setting, attention: PassTimes) -> PassTimes:
    """Keys and values travel around the context-parallel ring beside attention, which hides what it can.

    Equation  t = x - h + o h,  x = (c - 1) messages forward, twice as many backward, h = min(x, attention), o what
              hiding costs
    Source    liu2023 (Ring Attention, arXiv:2310.01889), section 3; o as for gradients
    Assumes   messages and attention start together; gradients of keys and values travel as far as the tensors
    Checked   tests/costs/test_compute.py: a ring is never free
    """
    shape, layout = setting.shape, setting.layout
    path = context_path(setting)
    width = 2.0 * np.maximum(shape.kv_heads / layout.tp, 1) * shape.head_dim
    size = setting.num_tokens * width * setting.recipe.activation_bytes
    ring = (layout.cp - 1) * collectives.send_time_s(size_bytes=size, path=path)
    seen = 1.0 - setting.constants.overlap_cost.value
    forward = ring - seen * np.minimum(ring, attention.forward_s)
    backward = 2.0 * ring - seen * np.minimum(2.0 * ring, attention.backward_s)
    return PassTimes(forward_s=forward, backward_s=backward)


def _expert_parallel(setting: Setting) -> PassTimes:
    """Tokens to their experts and back, each way; at the mean load, since what stays visible is fitted."""
    moe, layout = setting.shape.moe, setting.layout
    if moe is None:
        return NOTHING
    size = setting.num_routed_tokens * setting.shape.hidden * setting.recipe.activation_bytes
    sent_frac: FloatLike = 1.0
    if setting.stack.sends_tokens_once:
        size = size * collectives.distinct_frac(num_places=layout.ep, num_draws=moe.top_k)
        nodes = np.ceil(layout.ep / setting.machine.gpus_per_node)
        sent_frac = collectives.distinct_frac(num_places=nodes, num_draws=moe.top_k)
        sent_frac = sent_frac / collectives.distinct_frac(num_places=layout.ep, num_draws=moe.top_k)
    once = collectives.all_to_all_time_s(
        size_bytes=size, machine=setting.machine, num_ranks=layout.ep, num_job_devices=layout.num_gpus,
        sent_frac=sent_frac,
    )  # fmt: skip
    visible = setting.moe_frac * setting.constants.all_to_all_exposure.value * 2.0 * once
    return PassTimes(forward_s=visible, backward_s=visible)
