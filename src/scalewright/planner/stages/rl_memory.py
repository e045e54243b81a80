"""Memory of an RL step: what the trainer holds while it updates, and what stays on a device while it generates."""

from __future__ import annotations

from dataclasses import replace

from scalewright.costs.breakdown import Breakdown
from scalewright.costs.setting import Setting
from scalewright.costs.shards import busiest_shards, num_spread_params

STATE = ("weights", "gradients", "optimizer")


def held_memory(setting: Setting, used: Breakdown, *, reference: bool) -> Breakdown:
    """What stays on a device while it generates: the trainer's state and the reference model."""
    parts = tuple(replace(used.part(n), name=f"trainer_{n}") for n in STATE)
    if setting.mode.is_offload:  # engines move weights and gradients too while the generator runs
        parts = tuple(replace(p, value=0.0) for p in parts)
    return Breakdown(name="held", unit="bytes", parts=(*parts, _reference(setting, reference=reference)))


def _reference(setting: Setting, *, reference: bool) -> Breakdown:
    # with adapters the frozen weights are the reference; in offload mode it waits on the host
    on_device = reference and setting.mode.name == "full"
    here = float(num_spread_params(setting, busiest_shards(setting))) if on_device else 0.0
    return Breakdown(
        name="reference", unit="bytes", value=here * setting.recipe.weight_bytes, formula="hostmem.offloaded_bytes"
    )


def update_memory(setting: Setting, used: Breakdown, *, reference: bool) -> Breakdown:
    """The training step's memory and the reference model."""
    return replace(used, parts=(*used.parts, _reference(setting, reference=reference)))
