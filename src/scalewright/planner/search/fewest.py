"""The fewest devices on which any layout fits, by what training keeps on them: full state, offload, LoRA."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np

from scalewright.costs.footprint import needed_bytes, step_memory
from scalewright.costs.hostmem import training_host_memory
from scalewright.costs.room import Room, comfortable_bytes, room
from scalewright.planner.search.constraints import DEGREE_RULES, SPLIT_RULES, kept, no_copies, no_tensor_group
from scalewright.planner.search.space import Columns, Fixed, KnobChoice, Space
from scalewright.workload.layout import Layout, Recompute
from scalewright.workload.training import ModeName, TrainingMode

LEANEST: tuple[Recompute, ...] = ("selective", "operators", "full")
"""Storing everything never takes less than leaving out the scores."""
LEANEST_ZERO = (0, 1, 3)
"""ZeRO-2 keeps as much as ZeRO-3, except for gathered layers. With a pipeline, ZeRO-1 keeps as little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fewest:
    """The smallest power of two of devices that a mode fits on, and the leanest layout there."""

    mode: TrainingMode
    num_gpus: int
    num_nodes: int
    layout: Layout
    needed_bytes: float
    room: Room
    """Whether the memory model's error leaves it within the device."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "mode": self.mode.name,
            "assumption": self.mode.title,
            "num_gpus": self.num_gpus,
            "num_nodes": self.num_nodes,
            "layout": self.layout.brief,
            "needed_bytes": self.needed_bytes,
            "room": self.room,
        }


def fewest_gpus(space: Space, *, is_tight_enough: bool = False) -> list[Fewest]:
    """A row for each mode that fits at all, with one sample per micro-batch and no interleaving.

    Both knobs only add memory, so the fewest devices have them at one. `is_tight_enough`: what fits without the memory
    model's error to spare counts.
    """
    counts = _counts(space)
    lean = {"mbs": 1, "vpp": 1} | {k: v for k, v in space.fixed.values.items() if k != "dp"}
    feed = replace(space.feed, async_checkpoint=False)  # a second copy of the state on the hosts is not needed to fit
    spaces = [replace(space, num_gpus=count, fixed=Fixed(values=lean), feed=feed) for count in counts]
    columns = _columns(spaces)
    limit_bytes = space.machine.memory_bytes if is_tight_enough else comfortable_bytes(space.machine)
    modes = [replace(spaces[0], mode=TrainingMode(name=name)) for name in get_args(ModeName)]
    rows = [_fewest(each, columns, limit_bytes) for each in modes]
    return [row for row in rows if row is not None]


def _counts(space: Space) -> list[int]:
    """Powers of two that the machine has: parts of a node, then whole nodes."""
    machine = space.machine
    is_one_node = machine.network_bytes_per_s_per_gpu is None
    most = machine.gpus_per_node * (1 if is_one_node else machine.num_nodes or 2**12)
    powers = [2**i for i in range(most.bit_length()) if 2**i <= most]
    return [n for n in powers if n <= machine.gpus_per_node or n % machine.gpus_per_node == 0]


def _columns(spaces: Sequence[Space]) -> Columns:
    """Every split of every count that divides."""
    parts = []
    for space in spaces:
        degrees, _ = kept(space.degrees(), space, DEGREE_RULES)
        parts.append(kept(space.splits(degrees), space, SPLIT_RULES)[0])
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _choices(space: Space) -> list[KnobChoice]:
    """Choices that can hold the least memory: the leanest recipe, without those that another always undercuts."""
    fixed, recipe = space.fixed, min(space.recipes, key=lambda r: r.weight_bytes + r.gradient_bytes + r.optimizer_bytes)
    levels = tuple(c.recompute for c in space.choices()) if "recompute" in fixed.values else LEANEST
    zero_stages = tuple(zero for zero in fixed.options("zero", LEANEST_ZERO) if space.has_zero(zero))
    return [
        KnobChoice(recipe=recipe, stack=space.stack_of(zero), recompute=level, zero=zero, sp=bool(sp))
        for level, zero, sp in itertools.product(dict.fromkeys(levels), zero_stages, fixed.options("sp", (0, 1)))
    ]


def _fewest(space: Space, columns: Columns, limit_bytes: float) -> Fewest | None:
    best: Fewest | None = None
    machine = space.machine
    for choice in _choices(space):
        free = "sp" not in space.fixed.values and not choice.sp  # split activations are never larger
        keep = ~(no_tensor_group(columns, choice) | no_copies(columns, choice, space))
        rows = np.flatnonzero(keep & (columns["tp"] == 1) if free else keep)
        if not len(rows):
            continue
        layout = choice.layout({name: column.take(rows) for name, column in columns.items()})
        setting = space.setting(choice, layout)
        needed = np.broadcast_to(needed_bytes(setting, step_memory(setting)), len(rows))
        fits = needed <= limit_bytes
        if machine.host_memory_bytes is not None:
            fits = fits & (training_host_memory(setting).total <= machine.host_memory_bytes)
        counts = np.where(fits, np.asarray(layout.num_gpus), np.iinfo(np.int64).max)
        at = int(np.lexsort((needed, counts))[0])
        if fits[at] and (best is None or (int(counts[at]), needed[at]) < (best.num_gpus, best.needed_bytes)):
            num = int(counts[at])
            best = Fewest(
                mode=space.mode, num_gpus=num, num_nodes=machine.num_nodes_for(num), layout=layout.at(at),
                needed_bytes=float(needed[at]), room=room(machine, float(needed[at])),
            )  # fmt: skip
    return best
