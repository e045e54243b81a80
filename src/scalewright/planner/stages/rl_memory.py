"""Memory of an RL step: what the trainer holds while it updates, and what stays on a device while it generates."""

from __future__ import annotations

from dataclasses import replace

from scalewright.costs import hostmem
from scalewright.costs.breakdown import Breakdown, bytes_term
from scalewright.costs.setting import Setting
from scalewright.costs.shards import busiest_shards, num_spread_params
from scalewright.workload.rl import RlStep

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
    if not released:
        return host
    each = moved_bytes(used) + (_reference_bytes(setting) if rl.has_reference and not setting.mode.is_lora else 0.0)
    num_devices = min(setting.machine.gpus_per_node, int(setting.layout.num_gpus))
    waiting = bytes_term("released_state", num_devices * each, "stage.state_move_s", per_device_bytes=each)
    return replace(host, parts=(*host.parts, waiting))
