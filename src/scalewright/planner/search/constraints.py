"""Constraints: which layouts are impossible, and why. In words for one layout, as masks for columns of layouts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from scalewright import units
from scalewright.planner.search.space import Columns, KnobChoice, Space
from scalewright.workload.layout import Layout, divisibility_problems, interleaves

if TYPE_CHECKING:
    from scalewright.costs.machine import Machine

Mask = NDArray[np.bool_]
NUMBER_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRule:
    """One thing that must hold of a split."""

    key: str
    """What the count of rejected layouts is filed under."""
    breaks: Callable[[Columns, Space], Mask]
    """True where the split breaks it."""


def _spans(c: Columns, space: Space) -> Mask:
    if "tp" in space.fixed.values:  # the user decides: its time is counted, and the prediction warns
        return np.zeros(len(c["tp"]), dtype=np.bool_)
    per_node = space.machine.gpus_per_node
    uneven = (per_node % np.minimum(c["tp"], per_node) != 0) & (space.num_gpus > per_node)
    broken: Mask = (c["tp"] > per_node) | uneven
    return broken


def _heads(c: Columns, space: Space) -> Mask:
    shape, tp = space.shape, c["tp"]
    groups = np.maximum(shape.kv_heads, tp) % np.minimum(shape.kv_heads, tp)
    broken: Mask = (shape.heads % tp != 0) | (groups != 0)
    return broken


def _stages(c: Columns, space: Space) -> Mask:
    return c["pp"] > space.shape.layers


def _sequence(c: Columns, space: Space) -> Mask:
    seq, cp = space.shape.seq, c["cp"]
    broken: Mask = (seq % cp != 0) | ((cp > 1) & (seq % (2 * cp) != 0))
    return broken


def _copies(c: Columns, space: Space) -> Mask:
    broken: Mask = space.global_batch % c["dp"] != 0
    return broken


def _chunks(c: Columns, space: Space) -> Mask:
    fitting: Mask = interleaves(layers=space.shape.layers, pp=c["pp"], vpp=c["vpp"])
    unequal: Mask = (c["vpp"] > 1) & ((c["pp"] == 1) | ~fitting)
    return unequal


def _batch(c: Columns, space: Space) -> Mask:
    broken: Mask = space.global_batch % (c["dp"] * c["mbs"]) != 0
    return broken


def _rounds(c: Columns, space: Space) -> Mask:
    broken: Mask = (c["vpp"] > 1) & ((space.global_batch // (c["dp"] * c["mbs"])) % c["pp"] != 0)
    return broken


def _experts(c: Columns, space: Space) -> Mask:
    num = space.shape.moe.num_experts if space.shape.moe is not None else 1
    broken: Mask = ((c["dp"] * c["cp"] * c["tp"]) % c["ep"] != 0) | (num % c["ep"] != 0)
    return broken


DEGREE_RULES: tuple[SplitRule, ...] = (
    SplitRule(key="tp spans nodes", breaks=_spans),
    SplitRule(key="tp does not divide the attention heads", breaks=_heads),
    SplitRule(key="more stages than layers", breaks=_stages),
    SplitRule(key="cp does not split the sequence", breaks=_sequence),
    SplitRule(key="batch is not a multiple of dp", breaks=_copies),
)
"""Rules of tp, pp, cp and dp alone. They are checked before the other knobs are multiplied in, because each split
that falls here saves hundreds of rows later."""
SPLIT_RULES: tuple[SplitRule, ...] = (
    SplitRule(key="chunks of layers are not equal", breaks=_chunks),
    SplitRule(key="batch is not a multiple of dp x mbs", breaks=_batch),
    SplitRule(key="micro-batches are not a multiple of the stages", breaks=_rounds),
    SplitRule(key="ep does not divide experts and devices", breaks=_experts),
)
NO_TENSOR_GROUP = "sequence parallel without tensor parallel"
NO_COPIES = "ZeRO with one copy of the model"
BEATEN = "another is better in time and memory"
TOO_LARGE = "does not fit the device memory"
NO_HOST_MEMORY = "does not fit the host memory of a node"


def no_tensor_group(columns: Columns, choice: KnobChoice) -> Mask:
    alone: Mask = (columns["tp"] == 1) & choice.sp
    return alone


def no_copies(columns: Columns, choice: KnobChoice, space: Space) -> Mask:
    """State sharded over one copy is not sharded. A user who fixes the ZeRO stage gets it anyway."""
    searched = choice.zero > 0 and "zero" not in space.fixed.values
    alone: Mask = (columns["dp"] * columns["cp"] == 1) & searched
    return alone


def kept(columns: Columns, space: Space, rules: tuple[SplitRule, ...]) -> tuple[Columns, dict[str, int]]:
    """The rows that break no rule, and how many fell to each rule first."""
    is_left = np.ones(len(columns["tp"]), dtype=np.bool_)
    rejected: dict[str, int] = {}
    for rule in rules:
        falls = is_left & rule.breaks(columns, space)
        if count := int(np.count_nonzero(falls)):
            rejected[rule.key] = count
        is_left &= ~falls
    return {name: column[is_left] for name, column in columns.items()}, rejected


def reasons(layout: Layout, space: Space) -> list[str]:
    """Why one layout is impossible, in words; empty when it divides. Memory is not checked."""
    shape, problems = space.shape, []
    sentence = span_problem(int(layout.tp), space.machine, num_gpus=space.num_gpus)
    if sentence and "tp" not in space.fixed.values:
        problems.append(sentence)
    return problems + divisibility_problems(
        layout,
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        seq=shape.seq,
        num_experts=shape.moe.num_experts if shape.moe else 0,
    )


def span_problem(tp: int, machine: Machine, *, num_gpus: int) -> str | None:
    """Why a tensor-parallel group does not stay inside a node, or None."""
    per_node = machine.gpus_per_node
    if tp <= per_node and (per_node % tp == 0 or num_gpus <= per_node):
        return None
    num = max(-(-tp // per_node), 2)
    word = NUMBER_WORDS[num] if num < len(NUMBER_WORDS) else str(num)
    return f"tp {tp} spans {word} nodes of {per_node}"


def memory_problem(needed_bytes: float, machine: Machine) -> str:
    needs, has = (units.format(v, units.BYTES) for v in (needed_bytes, machine.memory_bytes))
    return f"needs {needs} of {has}"


def host_memory_problem(needed_bytes: float, host_bytes: float) -> str:
    needs, has = (units.format(v, units.BYTES) for v in (needed_bytes, host_bytes))
    return f"needs {needs} of {has} host memory a node"
