"""Memory of an RL step: what the trainer holds while it updates, and what stays on a device while it generates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from scalewright.costs import hostmem
from scalewright.costs.breakdown import Breakdown, bytes_term
from scalewright.costs.footprint import needed_bytes, step_memory
from scalewright.costs.room import comfortable_bytes
from scalewright.costs.setting import Setting
from scalewright.costs.shards import busiest_shards, num_spread_params
from scalewright.workload.rl import RlStep

PACKS = (16384, 8192, 4096, 2048, 1024)
"""Usual tokens of a micro-batch of packed sequences; the fastest is taken that memory has room for. verl's
ppo_max_token_len_per_gpu is 16,384, and a longest sequence that has more is alone in its own."""
STATE = ("weights", "gradients", "optimizer")
MOVED = ("weights", "optimizer")
"""What waits on the hosts during a rollout; gradients are dropped."""


def held_memory(setting: Setting, used: Breakdown, *, reference: bool) -> Breakdown:
    """What stays on a device while it generates: the trainer's state and the reference model."""
    parts = tuple(replace(used.part(n), name=f"trainer_{n}") for n in STATE)
    if setting.mode.is_offload:  # engines move weights and gradients too while the generator runs
        parts = tuple(replace(p, value=0.0) for p in parts)
    return Breakdown(name="held", unit="bytes", parts=(*parts, _reference(setting, reference=reference)))


def with_released(held: Breakdown) -> Breakdown:
    """Nothing held: the state waits on the hosts, or is on other devices."""
    return replace(held, parts=tuple(replace(part, value=0.0, parts=()) for part in held.parts))


def packed_memory_setting(setting: Setting, rl: RlStep, pack_tokens: float) -> Setting:
    """The setting whose micro-batch has as many tokens as the largest of an update."""
    if not rl.packs:
        return setting
    layout, together = setting.layout, max(pack_tokens / rl.longest_sequence, 1.0)
    num = max(int(layout.gbs) // int(layout.dp), 1)
    mbs: Any = np.float64(together)  # tokens count, not whole sequences
    return replace(setting, layout=replace(layout, mbs=mbs, gbs=mbs * int(layout.dp) * num))


def packings_with_room(setting: Setting, rl: RlStep) -> list[tuple[RlStep, float]]:
    """How a micro-batch may be filled, as far as memory has room: with the tokens that the step says, else with any of
    the usual numbers, whatever the longest answer is, or with `mbs` padded sequences."""
    if not rl.packs or rl.pack_tokens is not None:
        return [(rl, float(rl.pack_tokens or 0))]
    reference = rl.has_reference and not is_released(setting, rl)

    def has_room(tokens: float) -> bool:
        own = packed_memory_setting(setting, rl, tokens)
        used = update_memory(own, step_memory(own), reference=reference)
        return float(needed_bytes(own, used)) <= comfortable_bytes(setting.machine)

    packed = [(rl, float(tokens)) for tokens in PACKS if has_room(tokens)]
    padded_tokens = float(setting.layout.mbs * rl.longest_sequence)
    if packed and has_room(padded_tokens):
        return [*packed, (replace(rl, packs=False), 0.0)]
    return packed or [(rl, float(PACKS[-1]))]  # it does not fit either way: what needs the least


def moved_bytes(used: Breakdown) -> float:
    """State of one device that leaves it for a rollout."""
    return sum(float(used.part(name).total) for name in MOVED)


def _reference(setting: Setting, *, reference: bool) -> Breakdown:
    # with adapters the frozen weights are the reference; in offload mode it waits on the host
    on_device = reference and setting.mode.name == "full"
    here = _reference_bytes(setting) if on_device else 0.0
    return Breakdown(name="reference", unit="bytes", value=here, formula="hostmem.offloaded_bytes")


def _reference_bytes(setting: Setting) -> float:
    return float(num_spread_params(setting, busiest_shards(setting))) * setting.recipe.weight_bytes


def update_memory(setting: Setting, used: Breakdown, *, reference: bool) -> Breakdown:
    """The training step's memory and the reference model."""
    return replace(used, parts=(*used.parts, _reference(setting, reference=reference)))


def is_released(setting: Setting, rl: RlStep) -> bool:
    """Whether the trainer's state leaves the devices for the rollout: they take turns, and nobody keeps it there."""
    return not rl.is_split and not rl.keeps_state and not setting.mode.is_offload


def rl_host_memory(setting: Setting, used: Breakdown, rl: RlStep, *, released: bool) -> Breakdown:
    """Host memory of one node: a training job's, and the state that waits there during the rollout."""
    host = hostmem.training_host_memory(setting, num_weight_copies=2 if rl.has_reference else 1)
    return waiting_host_memory(setting, host, used, has_reference=rl.has_reference) if released else host


def waiting_host_memory(setting: Setting, host: Breakdown, used: Breakdown, *, has_reference: bool) -> Breakdown:
    """A training job's host memory with the state of the devices that waits there."""
    each = moved_bytes(used) + (_reference_bytes(setting) if has_reference and not setting.mode.is_lora else 0.0)
    num_devices = min(setting.machine.gpus_per_node, int(setting.layout.num_gpus))
    waiting = bytes_term("released_state", num_devices * each, "stage.state_move_s", per_device_bytes=each)
    return replace(host, parts=(*host.parts, waiting))
