"""Memory of one step on the worst rank: the pipeline rank whose device holds the most."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalewright.costs import memory, pipeline
from scalewright.costs.breakdown import Breakdown, FloatLike, bytes_term
from scalewright.costs.setting import Setting
from scalewright.costs.shards import (
    first_expert_rank,
    num_dense_layer_params,
    num_expert_copies,
    num_expert_layer_params,
    shards_on,
    trained_shards,
)
from scalewright.workload.layout import COLUMNS


def step_memory(setting: Setting) -> Breakdown:
    """Peak allocated bytes on the worst pipeline rank: the first, second, last or first all-expert one.

    Equation  max over pipeline ranks of: state + in-flight activations + working set + logits on the last
    Source    korthikanti2022 (arXiv:2205.05198), section 4; rajbhandari2020 (arXiv:1910.02054), section 3
    Assumes   rank i holds p - i micro-batches; ranks between the second and the last need less than the second
    Checked   tests/golden/test_frontier_memory.py: 16 pipeline ranks of a 175B run within 3 %
    """
    distinct, index = _distinct(setting)
    if index is not None:
        memory_of_each = step_memory(distinct)
        parts_of_all = (replace(p, value=np.asarray(p.total)[index]) for p in memory_of_each.parts)
        return replace(memory_of_each, parts=tuple(parts_of_all))
    pp = np.asarray(setting.layout.pp)
    candidates = [np.zeros_like(pp), np.minimum(1, pp - 1), pp - 1]
    if setting.shape.moe is not None:
        candidates.append(np.asarray(first_expert_rank(setting)))
    footprints = [memory_on(setting, pipeline_rank[()]) for pipeline_rank in candidates]
    totals = [np.asarray(one.total, dtype=np.float64) for one in footprints]
    worst = np.argmax(np.stack(np.broadcast_arrays(*totals)), axis=0)
    if worst.ndim == 0:
        return footprints[int(worst)]
    parts = []
    for leaves in zip(*(one.parts for one in footprints), strict=True):
        value = leaves[0].total
        for i, leaf in enumerate(leaves[1:], start=1):
            if isinstance(leaf.total, np.ndarray) or leaf.total != value:
                value = np.where(worst == i, leaf.total, value)
        parts.append(replace(leaves[0], value=np.broadcast_to(value, worst.shape), inputs={}))
    return replace(footprints[0], parts=tuple(parts))


def _distinct(setting: Setting) -> tuple[Setting, NDArray[np.int64] | None]:
    """The layouts among columns whose memory differs, and which of them each has; None where most of them do.

    The batch counts only as far as a pipeline rank holds its micro-batches, fewer than two for each rank.
    """
    layout = setting.layout
    if not layout.is_column:
        return setting, None
    columns = {name: np.asarray(getattr(layout, name)) for name in COLUMNS}
    held = np.minimum(layout.num_micro_batches, 2 * columns["pp"])
    columns["gbs"] = held * columns["dp"] * columns["mbs"]
    key, size = np.zeros((), dtype=np.int64), 1
    for column in (*(c for name, c in columns.items() if name != "gbs"), held):
        most = int(column.max()) + 1
        key, size = key * most + column, size * most
    if key.ndim == 0 or size >= 2**63:  # one layout after all, or a key that would wrap around
        return setting, None
    _, first, index = np.unique(key, return_index=True, return_inverse=True)
    if 2 * len(first) > key.size:
        return setting, None
    distinct: dict[str, Any] = {name: c[first] if c.ndim else int(c) for name, c in columns.items()}
    return replace(setting, layout=replace(layout, **distinct)), index


def reserved_bytes(setting: Setting, used_bytes: FloatLike) -> FloatLike:
    """What a device must have for the allocator to hand out `used_bytes`: fragments, context and libraries as well.

    Equation  R = M (1 + f) + r
    Source    engine constants allocator_overhead and device_reserve, with their sources
    Assumes   fragments grow with what is allocated; context, libraries and collective buffers do not
    Checked   tests/properties/test_step.py: a step fits exactly where this is within the device's memory
    """
    constants = setting.constants
    return used_bytes * (1.0 + constants.allocator_overhead.value) + constants.device_reserve.value


def memory_on(setting: Setting, pipeline_rank: FloatLike) -> Breakdown:
    """Peak allocated bytes on a device of one pipeline rank."""
    layout, recipe, shape = setting.layout, setting.held_recipe, setting.shape
    shards, copies = shards_on(setting, pipeline_rank), num_expert_copies(setting) if shape.moe else 1.0
    trained = trained_shards(setting, pipeline_rank) if setting.mode.is_lora else shards
    layers, frac = setting.num_layers_on(pipeline_rank), setting.rank_moe_frac(pipeline_rank)
    dense = memory.state_bytes_per_param(recipe=recipe, num_shards=layout.dp * layout.cp, zero=layout.zero)
    routed = memory.state_bytes_per_param(recipe=recipe, num_shards=copies, zero=layout.zero)
    held = pipeline.num_in_flight(
        pp=layout.pp, vpp=layout.vpp, pipeline_rank=pipeline_rank, num_micro_batches=layout.num_micro_batches
    )
    stored = memory.stored_bytes_per_layer(setting, layout.recompute, frac)
    if layout.recompute in ("none", "modules"):
        stored = stored + memory.score_bytes_per_layer(setting)
    working: FloatLike = 0.0  # while a layer is computed again, its activations and gradients exist side by side
    if layout.recompute == "full":
        working = 2.0 * memory.stored_bytes_per_layer(setting, "none", frac) + memory.score_bytes_per_layer(setting)
    elif layout.recompute == "selective":
        working = memory.score_bytes_per_layer(setting)
    is_last = np.asarray(np.asarray(pipeline_rank) == np.asarray(layout.pp) - 1, dtype=np.float64)[()]
    beside = is_last * shape.num_mtp_layers  # multi-token-prediction modules: a layer and scores of its own each
    unit = num_dense_layer_params(shape, frac) / layout.tp + num_expert_layer_params(shape, frac) / (
        layout.ep * setting.expert_tp
    )
    gathered = memory.gathered_weight_bytes(
        num_unit_params=unit, recipe=recipe, zero=layout.zero, dp=layout.dp * layout.cp
    )

    activations = held * (layers + beside) * stored
    logits = (is_last + beside) * memory.logits_bytes(setting)

    # a pipeline keeps gradients whole until its last micro-batch, so ZeRO-2 does not shard them there
    whole = np.asarray((layout.zero == 2) & (np.asarray(layout.pp) > 1))

    def state(name: str) -> Breakdown:
        held = shards if name == "weights" else trained
        value = held.num_dense * dense[name]
        if shape.moe is not None:
            value = value + held.num_routed * routed[name]
        if name == "weights" and setting.mode.is_lora:
            value = value + trained.num_dense * dense[name]
        if name == "gradients" and np.any(whole):
            value = np.where(whole, held.num_params * recipe.gradient_bytes, value)[()]
        if setting.mode.is_offload and (name == "optimizer" or (name == "gradients" and layout.zero >= 2)):
            value = 0.0 * value  # on the host; sharded gradients go there as they appear
        if name == "gradients" and not setting.stack.keeps_gradients:
            # they take the place of activations as the backward pass frees them: only the excess adds to the peak
            value = np.maximum(value - activations - logits, 0.0)
        return bytes_term(
            name, value, "memory.state_bytes_per_param", num_params=held.num_params, bytes_per_param=dense[name]
        )

    return Breakdown(
        name="peak_allocated",
        unit="bytes",
        formula="footprint.step_memory",
        parts=(
            *(state(name) for name in dense),
            bytes_term("gathered_weights", gathered, "memory.gathered_weight_bytes", zero=layout.zero),
            bytes_term(
                "activations", activations, "memory.activation_bytes_per_layer", in_flight=held, stage=pipeline_rank
            ),
            bytes_term("working_set", working, "memory.activation_bytes_per_layer"),
            bytes_term("logits", logits, "memory.logits_bytes"),
        ),
    )
