"""Memory of one step on the worst rank: the pipeline rank whose device holds the most."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalewright.costs import memory, pipeline, room
from scalewright.costs.breakdown import Breakdown, FloatLike, bytes_term
from scalewright.costs.setting import Setting
from scalewright.costs.shards import (
    busiest_trained,
    first_expert_rank,
    num_dense_layer_params,
    num_expert_copies,
    num_expert_layer_params,
    num_spread_params,
    shards_on,
    trained_shards,
)
from scalewright.workload.layout import COLUMNS


def step_memory(setting: Setting) -> Breakdown:
    """Peak allocated bytes on the worst pipeline rank: the first, second, last or first all-expert one.

    Equation  max over pipeline ranks of: state + in-flight activations + max(working set, logits on the last)
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


def update_bytes(setting: Setting) -> FloatLike:
    """What the update and the exchange need beside the step's peak: a 32-bit copy of short gradients, flat buffers.

    Equation  u N / d + B with ZeRO,  u bytes of the copy, N parameters of the device, d their shards, B buffers
    Source    rajbhandari2020 (arXiv:1910.02054) for ZeRO; DeepSpeed's stage_1_and_2.py copies its share of fp16
              gradients to fp32; the buffers are `reduce_bucket_size` and `allgather_bucket_size` of its configuration
    Assumes   these are whole tensors of the parameters' size: freed activations are too small to hold them, so the
              allocator takes new memory
    Checked   tests/golden/test_frontier_memory.py: reserved on the first pipeline rank, 8 % too low
    """
    stack, layout, recipe = setting.stack, setting.layout, setting.recipe
    copied: FloatLike = 0.0
    if stack.update_copy is not None and recipe.gradient_bytes < stack.update_copy.value:
        trained = busiest_trained(setting)
        held = num_spread_params(setting, trained) if layout.zero >= 1 else trained.num_params
        copied = stack.update_copy.value * held
    if stack.exchange_buffer is not None and layout.zero >= 1:
        copied = copied + stack.exchange_buffer.value * (np.asarray(layout.dp) > 1)
    return copied


def num_communicators(setting: Setting) -> FloatLike:
    """Communicators of a device.

    Equation  one for each of tp, pp, cp, ep and dp cp that is above 1, and one of all ranks
    Source    shoeybi2019 (Megatron-LM, arXiv:1909.08053): a process group for each axis of parallelism
    Assumes   groups that frameworks keep for embeddings or for experts' replicas are small
    Checked   tests/costs/test_room.py: none on one device, two with data parallelism alone
    """
    layout = setting.layout
    axes = (layout.tp, layout.pp, layout.cp, layout.ep, layout.dp * layout.cp)
    split = sum((np.asarray(np.asarray(axis) > 1, dtype=np.float64) for axis in axes), start=np.zeros(()))
    return (split + (np.asarray(layout.num_gpus) > 1))[()]


FREED = ("activations", "working_set", "logits")
"""What is free again when the update begins."""


def reserved_bytes(setting: Setting, used: Breakdown) -> FloatLike:
    """What the framework's allocator takes for a step whose tensors peak as `used` says.

    Equation  R = D - c - n b
    Source    room.reserved_bytes, of which a full device leaves less
    Assumes   as `device_bytes`
    Checked   tests/golden/test_frontier_memory.py: the first pipeline rank, 14 % too high
    """
    return device_bytes(setting, used) - _shown(setting, 0.0)


def device_bytes(setting: Setting, used: Breakdown) -> FloatLike:
    """What nvidia-smi or rocm-smi shows on a device for a step whose tensors peak as `used` says.

    Equation  D = R + c + n b,  R = (M + u) (1 + f); where that exceeds the device: the device's memory, or what is
              needed if it is more
    Source    room.reserved_bytes and room.device_bytes; PyTorch's caching allocator gives unused blocks back before it
              fails (docs: notes/cuda, memory management)
    Assumes   the update finds no place among freed activations as long as the device has more
    Checked   `scalewright validate`, published figures of this kind
    """
    machine = setting.machine
    taken = room.reserved_bytes(
        machine=machine, allocated_bytes=used.total, apart_bytes=update_bytes(setting), num_gpus=setting.layout.num_gpus
    )
    return np.maximum(needed_bytes(setting, used), np.minimum(_shown(setting, taken), machine.memory_bytes))


def needed_bytes(setting: Setting, used: Breakdown) -> FloatLike:
    """The least that a device must have for a step whose tensors peak as `used` says.

    Equation  D with R = max(M, M - freed + u) (1 + g),  g fragments that a full device still has
    Source    PyTorch's caching allocator gives unused blocks back before it fails, so the update can have the place of
              the activations (docs: notes/cuda, memory management)
    Assumes   as room.least_reserved_bytes
    Checked   `scalewright validate`, published runs that ran out of memory and runs that did not
    """
    freed: FloatLike = sum((part.total for part in used.parts if part.name in FREED), start=0.0)
    updating = used.total - freed + update_bytes(setting)
    most = np.maximum(used.total, updating)
    num_gpus = setting.layout.num_gpus
    return _shown(setting, room.least_reserved_bytes(machine=setting.machine, allocated_bytes=most, num_gpus=num_gpus))


def _shown(setting: Setting, taken_bytes: FloatLike) -> FloatLike:
    return room.device_bytes(
        machine=setting.machine, reserved_bytes=taken_bytes, num_communicators=num_communicators(setting)
    )


def has_gathered_weights_only(setting: Setting) -> bool:
    """Whether 16-bit weights exist only while they are gathered from the 32-bit shards, as with PyTorch's FSDP."""
    masters = setting.recipe.master_bytes > 0.0 and not setting.mode.is_lora
    return setting.layout.zero >= 3 and masters and not setting.stack.has_short_weights


def _frozen_divisor(setting: Setting) -> float:
    """Weights that LoRA freezes take one byte each where the stack keeps them in 8 bit."""
    is_narrow = setting.recipe.is_narrow and setting.stack.narrow_frozen_weights
    return setting.recipe.weight_bytes if is_narrow else 1.0


def _working_bytes(
    setting: Setting, *, layer_bytes: FloatLike, logits_bytes: FloatLike, saved_bytes: FloatLike
) -> FloatLike:
    """What computing a layer again holds beside what is stored, once the scores are gone; of few layers that is more
    than it saves, and then as much is held as if none were computed again."""
    if setting.layout.recompute == "full":
        return np.minimum(np.maximum(layer_bytes - logits_bytes, 0.0), saved_bytes)
    if setting.layout.recompute in ("selective", "operators"):
        return np.maximum(memory.score_bytes_per_layer(setting) - logits_bytes, 0.0)
    return 0.0 * logits_bytes


def _excess_gradient_bytes(setting: Setting, *, gradient_bytes: FloatLike, freed_bytes: FloatLike) -> FloatLike:
    """Gradients without a buffer of their own, beyond the memory that they take over.

    Those of a single micro-batch take the place of activations as the backward pass frees them, but for the last
    layer's, which are there with them. With several micro-batches they are there when the second one's activations are.
    """
    is_alone = np.asarray(setting.num_micro_batches) <= 1
    excess = np.maximum(gradient_bytes - np.maximum(freed_bytes, 0.0), 0.0)
    return np.where(is_alone, excess, gradient_bytes)[()]


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
    # while a layer is computed again, its activations and gradients exist side by side
    every = memory.stored_bytes_per_layer(setting, "none", frac) + memory.score_bytes_per_layer(setting)
    layer = every + memory.stored_bytes_per_layer(setting, "none", frac)
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
    saved = held * (layers + beside) * (every - stored)
    working = _working_bytes(setting, layer_bytes=layer, logits_bytes=logits, saved_bytes=saved)

    # a pipeline keeps gradients whole until its last micro-batch, so ZeRO-2 does not shard them there
    whole = np.asarray((layout.zero == 2) & (np.asarray(layout.pp) > 1))

    def state(name: str) -> Breakdown:
        held = shards if name == "weights" else trained
        value = held.num_dense * dense[name]
        if shape.moe is not None:
            value = value + held.num_routed * routed[name]
        if name == "weights" and setting.mode.is_lora:
            value = value / _frozen_divisor(setting) + trained.num_dense * dense[name]
        if name == "gradients" and np.any(whole):
            value = np.where(whole, held.num_params * recipe.gradient_bytes, value)[()]
        if setting.mode.is_offload and (name == "optimizer" or (name == "gradients" and layout.zero >= 2)):
            value = 0.0 * value  # on the host; sharded gradients go there as they appear
        if name == "gradients" and not setting.stack.keeps_gradients:
            freed = activations + logits - np.maximum(layer - working, 0.0)
            value = _excess_gradient_bytes(setting, gradient_bytes=value, freed_bytes=freed)
        if name == "weights" and has_gathered_weights_only(setting):
            value = 0.0 * value  # the 32-bit shards are the optimizer's; 16-bit ones exist while they are gathered
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
