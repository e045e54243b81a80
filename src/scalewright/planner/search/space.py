"""Space: every layout that a request allows, as columns of whole numbers under each combination of the other knobs.

Whole-number knobs are columns because the cost models take columns: one call costs thousands of layouts. Knobs that are
no numbers (recompute, ZeRO, sequence parallel, precision) choose formulas, so the search loops over them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, get_args

import numpy as np
from numpy.typing import NDArray

from scalewright.catalog.types import Stack, TransformerShape
from scalewright.costs.machine import Machine
from scalewright.costs.setting import Setting
from scalewright.errors import ConfigError
from scalewright.workload.grammar import assignments
from scalewright.workload.layout import COLUMNS, KEYS, Layout, Recompute, interleaves, parse_layout
from scalewright.workload.model import ModelSpec
from scalewright.workload.precision import Recipe
from scalewright.workload.training import FULL, TEXT, Feed, TrainingMode

if TYPE_CHECKING:
    from scalewright.catalog.library import Catalog

Columns = dict[str, NDArray[np.int64]]
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "operators", "full")
"""Levels that are searched; `modules` is used only where it is fixed."""
ZERO = (0, 1, 2, 3)
KNOBS = ("dp", "tp", "pp", "vpp", "cp", "ep", "mbs", "zero", "sp", "recompute")
"""What a search varies unless it is fixed; ep only with experts."""
MAX_SPLITS = 2_000_000
"""Whole-number rows one search enumerates at most: beyond it the columns no longer fit a login node's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobChoice:
    """One value of each knob that is not a number."""

    recipe: Recipe
    stack: Stack
    recompute: Recompute
    zero: int
    sp: bool

    def layout(self, columns: Mapping[str, NDArray[np.int64] | int]) -> Layout:
        return Layout(**columns, zero=self.zero, sp=self.sp, recompute=self.recompute)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """Knobs that the user has decided: `tp=8,pp=4,recompute=full`. The others are searched."""

    values: Mapping[str, int | str] = field(default_factory=dict)

    def options(self, knob: str, searched: tuple[int, ...]) -> tuple[int, ...]:
        value = self.values.get(knob)
        return searched if value is None else (int(value),)

    def __str__(self) -> str:
        return ",".join(f"{k}={v}" for k, v in self.values.items())


NOTHING_FIXED = Fixed()


def parse_fixed(text: str | None) -> Fixed:
    """Part of a layout; values are checked as those of a whole one."""
    if not text:
        return NOTHING_FIXED
    written = assignments(text, allowed=KEYS, what="fix")
    whole = parse_layout(text).as_dict()
    return Fixed(values={k: whole[k] if k == "recompute" else int(whole[k]) for k in written})


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What is searched: a model on so many devices with one global batch."""

    spec: ModelSpec
    machine: Machine
    num_gpus: int
    global_batch: int
    recipes: tuple[Recipe, ...]
    stack_of: Callable[[int], Stack]
    """The software stack for a ZeRO stage."""
    is_auto_stack: bool = False
    """Whether the stack follows from the layout."""
    stack_origin: str = ""
    """Why this stack, where something else than the layout or the user decides."""
    fixed: Fixed = NOTHING_FIXED
    mode: TrainingMode = FULL
    """What training keeps on the devices."""
    feed: Feed = TEXT
    """Where samples come from and checkpoints go."""
    catalog: Catalog | None = field(default=None, repr=False, compare=False)
    """Where a what-if on a layout looks up names."""

    @property
    def shape(self) -> TransformerShape:
        return self.spec.transformer

    @property
    def num_nodes(self) -> int:
        return self.machine.num_nodes_for(self.num_gpus)

    def has_zero(self, zero: int) -> bool:
        """Whether the stack has that ZeRO stage, or it was fixed by hand."""
        return self.is_auto_stack or "zero" in self.fixed.values or zero <= self.stack_of(zero).max_zero

    def choices(self) -> tuple[KnobChoice, ...]:
        """Every combination of the other knobs, the simplest first; of equal layouts the first one wins.

        A stack that the user names is searched up to the ZeRO stage that it has, unless the user fixes the stage."""
        levels = RECOMPUTE
        if "recompute" in self.fixed.values:
            levels = tuple(r for r in get_args(Recompute) if r == self.fixed.values["recompute"])
        stages, sequence = self.fixed.options("zero", ZERO), self.fixed.options("sp", (0, 1))
        return tuple(
            KnobChoice(recipe=recipe, stack=self.stack_of(zero), recompute=recompute, zero=zero, sp=bool(sp))
            for recipe, recompute, zero, sp in itertools.product(self.recipes, levels, stages, sequence)
            if self.has_zero(zero)
        )

    def degrees(self) -> Columns:
        """Every tp, pp, cp and dp whose product is the number of devices."""
        fixed, n = self.fixed, self.num_gpus
        every = divisors(n)
        rows = [
            (tp, pp, cp, n // (tp * pp * cp))
            for tp in fixed.options("tp", every)
            for pp in fixed.options("pp", every)
            for cp in fixed.options("cp", every)
            if n % (tp * pp * cp) == 0 and n // (tp * pp * cp) in fixed.options("dp", every)
        ]
        table = np.array(rows, dtype=np.int64).reshape(-1, 4)
        return {name: table[:, i] for i, name in enumerate(("tp", "pp", "cp", "dp"))}

    def others(self) -> list[tuple[int, int, int]]:
        """Every interleaving, spread of experts and micro-batch, counting upwards."""
        fixed, moe = self.fixed, self.shape.moe
        return list(
            itertools.product(
                fixed.options("ep", divisors(moe.num_experts) if moe is not None else (1,)),
                fixed.options("vpp", self.interleavings()),
                fixed.options("mbs", divisors(self.global_batch)),
            )
        )

    def interleavings(self) -> tuple[int, ...]:
        """Every vpp that some pipeline over these devices can have."""
        layers, fixed = self.shape.layers, self.fixed
        possible = {
            vpp
            for pp in fixed.options("pp", divisors(self.num_gpus))
            if 1 < pp <= layers
            for vpp in divisors(-(-layers // pp))
            if interleaves(layers=layers, pp=pp, vpp=vpp)
        }
        return tuple(sorted({1, *possible}))

    def splits(self, degrees: Columns) -> Columns:
        """Each of the degrees with every other whole-number knob; some may not divide the model."""
        others = self.others()
        num = len(degrees["tp"])
        if num * len(others) > MAX_SPLITS:
            raise ConfigError(
                f"{num * len(others):,} splits of {self.num_gpus} devices and a batch of {self.global_batch} "
                f"are more than the {MAX_SPLITS:,} one search takes: fix a knob, such as mbs=1"
            )
        table = np.array(others, dtype=np.int64)
        spread = {name: np.repeat(column, len(others)) for name, column in degrees.items()}
        spread |= {name: np.tile(table[:, i], num) for i, name in enumerate(("ep", "vpp", "mbs"))}
        spread["gbs"] = np.full(num * len(others), self.global_batch, dtype=np.int64)
        return {name: spread[name] for name in COLUMNS}

    def setting(self, choice: KnobChoice, layout: Layout) -> Setting:
        return Setting(
            shape=self.shape, machine=self.machine, layout=layout, recipe=choice.recipe, stack=choice.stack,
            mode=self.mode, feed=self.feed,
        )  # fmt: skip

    def on(self, num_gpus: int, *, global_batch: int | None = None) -> Space:
        """The same search on another number of devices."""
        return replace(self, num_gpus=num_gpus, global_batch=global_batch or self.global_batch)


def divisors(n: int) -> tuple[int, ...]:
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return tuple(sorted({*small, *(n // d for d in small)}))


def stacks_by_zero(name: str, catalog: Catalog, machine: Machine) -> Callable[[int], Stack]:
    """The stack that a prediction takes for each ZeRO stage; each is looked up once."""
    from scalewright.planner.question import resolve_stack

    stacks = {zero: resolve_stack(name, catalog, Layout(zero=zero), machine) for zero in ZERO}
    return stacks.__getitem__
