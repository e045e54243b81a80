"""Search: cost every layout of a space, on NumPy columns. Masks first (divides, fits), then the time of what is left.

Nothing that could win is skipped: every layout that divides has its memory computed, and every one that fits its time,
by the functions that a single prediction calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from scalewright import units
from scalewright.costs.breakdown import FloatLike
from scalewright.costs.energy import Facility
from scalewright.costs.footprint import needed_bytes, step_memory
from scalewright.costs.hostmem import training_host_memory
from scalewright.costs.room import comfortable_bytes
from scalewright.costs.setting import Setting
from scalewright.costs.step import step_time, why_not_expressed
from scalewright.errors import ConfigError, NotExpressedError
from scalewright.planner.answer import Answer, answer
from scalewright.planner.question import Question, check_num_gpus
from scalewright.planner.search.constraints import (
    BEATEN,
    DEGREE_RULES,
    NO_COPIES,
    NO_HOST_MEMORY,
    NO_TENSOR_GROUP,
    SPLIT_RULES,
    TOO_LARGE,
    host_memory_problem,
    kept,
    memory_problem,
    no_copies,
    no_tensor_group,
)
from scalewright.planner.search.space import Columns, KnobChoice, Space
from scalewright.planner.stack_reason import auto_stack_reason
from scalewright.workload.layout import Layout

Objective = Literal["time", "gpu-hours", "energy", "money"]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
CHUNK = 16_384
"""Layouts per call: enough to hide the cost of calling NumPy, few enough that the columns stay in the L2 cache."""
TIES = 8
"""Layouts that are compared for each one returned: some differ in name only, such as ZeRO-1 and ZeRO-2 behind a
pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """Every layout that divides, with its memory, and its time where it fits."""

    space: Space
    columns: Columns
    """The splits that divide."""
    choices: tuple[KnobChoice, ...]
    considered: int
    rejected: dict[str, int]
    """How many layouts fell to each reason; each counts once."""
    split: Ints
    """Of each layout: its row in `columns`."""
    choice: Ints
    """Of each layout: its place in `choices`."""
    needed_bytes: Floats
    step_time_s: Floats
    """Infinite where the layout does not fit."""

    @property
    def feasible(self) -> int:
        return int(np.count_nonzero(np.isfinite(self.step_time_s)))

    @property
    def costed(self) -> int:
        """Layouts whose time was computed: all that fit."""
        return self.feasible

    def having(self, knob: str, value: int | str) -> NDArray[np.bool_]:
        """Which layouts have a knob at a value."""
        if knob in self.columns:
            among: NDArray[np.bool_] = (self.columns[knob] == int(value)).take(self.split)
            return among
        values = [c.recipe.name if knob == "precision" else getattr(c, knob) for c in self.choices]
        return np.array([v == value for v in values], dtype=np.bool_).take(self.choice)

    def fastest(self, count: int, among: NDArray[np.bool_] | None = None) -> list[int]:
        """Layouts that fit, fastest first; of those equal in time and memory the simplest only.

        Layouts whose memory is tight are left out unless there are no others. `choices` begins with the simplest
        combination of knobs, and the sort is stable: the first of equals is kept.
        """
        time = self.step_time_s if among is None else np.where(among, self.step_time_s, np.inf)
        safe = np.where(self.needed_bytes <= comfortable_bytes(self.space.machine), time, np.inf)
        time = safe if np.isfinite(safe).any() else time
        enough = min(TIES * count, int(np.count_nonzero(np.isfinite(time))))
        if enough == 0:
            return []
        near = np.flatnonzero(time <= np.partition(time, enough - 1)[enough - 1])
        distinct: dict[tuple[str, str], int] = {}
        for i in near[np.argsort(time[near], kind="stable")]:
            distinct.setdefault((f"{time[i]:.10g}", f"{self.needed_bytes[i]:.10g}"), int(i))
        return list(distinct.values())[:count]

    def smallest(self, among: NDArray[np.bool_] | None = None) -> int | None:
        """The layout that needs the least memory, whether it fits or not."""
        size = self.needed_bytes if among is None else np.where(among, self.needed_bytes, np.inf)
        return int(np.argmin(size)) if len(size) and np.isfinite(size).any() else None

    def problem(self, index: int) -> str:
        """What a layout lacks that does not fit: memory of its device, or else of its node's host."""
        machine, needed = self.space.machine, float(self.needed_bytes[index])
        if needed > machine.memory_bytes or machine.host_memory_bytes is None:
            return memory_problem(needed, machine)
        host_memory = self.prediction(index).host_memory
        assert host_memory is not None
        return host_memory_problem(float(host_memory.total), machine.host_memory_bytes)

    def layout(self, index: int) -> Layout:
        row = int(self.split[index])
        return self.choices[int(self.choice[index])].layout({k: int(c[row]) for k, c in self.columns.items()})

    def prediction(self, index: int, *, facility: Facility | None = None) -> Answer:
        """One layout, predicted as any other question."""
        return answer(self.question(index, facility=facility))

    def question(self, index: int, *, facility: Facility | None = None) -> Question:
        """The question of one layout, in the mode that was searched."""
        chosen, layout, space = self.choices[int(self.choice[index])], self.layout(index), self.space
        origin = auto_stack_reason(layout, space.machine) if space.is_auto_stack else space.stack_origin
        return Question(
            spec=self.space.spec, machine=self.space.machine, layout=layout, recipe=chosen.recipe,
            stack=chosen.stack, stack_origin=origin, facility=facility, mode=self.space.mode, feed=self.space.feed,
            catalog=self.space.catalog,
        )  # fmt: skip

    def best(self, count: int, objective: Objective, *, facility: Facility | None = None
             ) -> list[Answer]:  # fmt: skip
        """The layouts with the least of the objective on these devices.

        Devices are the same for all, so GPU-hours and money rank as time does. Energy at equal recomputed work grows
        with time, so the fastest of each recompute level and precision hold the least energy between them.
        """
        if objective != "energy":
            return [self.prediction(i, facility=facility) for i in self.fastest(count)]
        groups = {(c.recompute, c.recipe.name) for c in self.choices}
        near = [
            i
            for level, recipe in sorted(groups)
            for i in self.fastest(count, self.having("recompute", level) & self.having("precision", recipe))
        ]
        predictions = [self.prediction(i, facility=facility) for i in near]
        return sorted(predictions, key=lambda p: objective_value(p, objective))[:count]


def search(space: Space) -> SearchResult:
    """Cost every layout of the space."""
    return search_each([space])[0]


def search_each(spaces: Sequence[Space], *, only_best: bool = False) -> list[SearchResult]:
    """Search several spaces in the same columns: one model and machine, other numbers of devices or batches.

    With `only_best`, layouts that another beats in both time and memory are left out: the fastest is the same.
    """
    for space in spaces:
        check_space(space)
    first, choices = spaces[0], spaces[0].choices()
    grids = [_grid(space, len(choices)) for space in spaces]
    together = {name: np.concatenate([g.columns[name] for g in grids]) for name in grids[0].columns}
    starts = np.cumsum([0, *(g.num_splits for g in grids)])
    roots = _roots(together, np.repeat(np.arange(len(grids)), np.diff(starts)))
    parts = []
    for choice in choices:
        rows = _rows_to_cost(choice, together, first, choices if only_best else ())
        parts.append(_costed(first, choice, together, roots, rows))
    return [
        _result(space, grid, choices, parts, int(at)) for space, grid, at in zip(spaces, grids, starts, strict=False)
    ]


def _rows_to_cost(choice: KnobChoice, columns: Columns, space: Space, rivals: tuple[KnobChoice, ...]) -> Ints:
    """Splits to cost under a choice. Where one of the `rivals` always wins, the splits it wins on are left out.

    Sequence parallelism keeps less and passes less on; ZeRO-2 behind a pipeline keeps what ZeRO-1 does and hides less.
    """
    keep = ~(no_tensor_group(columns, choice) | no_copies(columns, choice, space))
    if not choice.sp and any(rival.sp for rival in rivals):
        keep &= columns["tp"] == 1
    if choice.zero == 2 and any(rival.zero == 1 for rival in rivals):
        keep &= columns["pp"] == 1
    return np.flatnonzero(keep)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grid:
    """The splits of one space that divide, and what fell before."""

    columns: Columns
    considered: int
    rejected: dict[str, int]

    @property
    def num_splits(self) -> int:
        return len(self.columns["tp"])


def _grid(space: Space, num_choices: int) -> _Grid:
    degrees, num_others = space.degrees(), len(space.others())
    considered = len(degrees["tp"]) * num_others * num_choices
    degrees, first = kept(degrees, space, DEGREE_RULES)
    columns, second = kept(space.splits(degrees), space, SPLIT_RULES)
    rejected = {key: count * num_others * num_choices for key, count in first.items()}
    rejected |= {key: count * num_choices for key, count in second.items()}
    return _Grid(columns=columns, considered=considered, rejected=rejected)


Part = tuple[Ints, Floats, Floats]
"""Rows, what their devices need and their time, under one choice."""


def _result(space: Space, grid: _Grid, choices: tuple[KnobChoice, ...], parts: list[Part], start: int) -> SearchResult:
    """What of the common columns belongs to one space, which begins at row `start`."""
    own = []
    for rows, needed, time in parts:
        here = slice(*np.searchsorted(rows, (start, start + grid.num_splits)))
        own.append((rows[here] - start, needed[here], time[here]))
    split, needed, time = (np.concatenate([part[i] for part in own]) for i in range(3))
    return SearchResult(
        space=space, columns=grid.columns, choices=choices, considered=grid.considered,
        rejected=grid.rejected | _late(space, grid, choices, needed, time), split=split.astype(np.int64),
        needed_bytes=needed, step_time_s=time,
        choice=np.repeat(np.arange(len(choices)), [len(rows) for rows, _, _ in own]),
    )  # fmt: skip


def _late(space: Space, grid: _Grid, choices: tuple[KnobChoice, ...], needed: Floats, time: Floats) -> dict[str, int]:
    """How many layouts fell after their split was found to divide, by reason."""
    alone = [no_tensor_group(grid.columns, choice) for choice in choices]
    single = [no_copies(grid.columns, c, space) & ~none for c, none in zip(choices, alone, strict=True)]
    large = needed > space.machine.memory_bytes
    fallen = {
        NO_TENSOR_GROUP: np.count_nonzero(alone),
        NO_COPIES: np.count_nonzero(single),
        TOO_LARGE: np.count_nonzero(large),
        NO_HOST_MEMORY: np.count_nonzero(np.isinf(time) & ~large),
    }
    fallen[BEATEN] = grid.num_splits * len(choices) - fallen[NO_TENSOR_GROUP] - fallen[NO_COPIES] - len(time)
    return {key: int(count) for key, count in fallen.items() if count}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Roots:
    """Of all splits that differ in micro-batch and interleaving only: the one with the least of both."""

    rows: Ints
    of: Ints
    """Of each split: the place of its root in `rows`."""


def _roots(columns: Columns, problem: Ints) -> _Roots:
    key = problem.copy()
    for name in ("tp", "pp", "cp", "ep"):  # dp follows from these and the number of devices
        key = key * (int(columns[name].max(initial=0)) + 1) + columns[name]
    _, rows, of = np.unique(key, return_index=True, return_inverse=True)  # the first of each: `splits` counts upwards
    return _Roots(rows=rows, of=of)


def _costed(space: Space, choice: KnobChoice, columns: Columns, roots: _Roots, rows: Ints) -> Part:
    """What a device of every row needs, and time of those that fit.

    Memory never falls with the micro-batch or with interleaving, so if a root does not fit, none of its rows does:
    they keep its memory, which is a lower bound of theirs.
    """

    def over(some: Ints, cost: Callable[[Setting], FloatLike]) -> Floats:
        chunks = _chunks(space, choice, columns, some)
        parts = [np.broadcast_to(cost(setting), len(chunk)) for chunk, setting in chunks]
        return np.concatenate(parts) if parts else np.empty(0)

    def needed_by(setting: Setting) -> FloatLike:
        return needed_bytes(setting, step_memory(setting))

    room, of = space.machine.memory_bytes, roots.of.take(rows)
    used = np.flatnonzero(columns["tp"].take(roots.rows) > 1) if choice.sp else np.arange(len(roots.rows))
    least = np.full(len(roots.rows), np.inf)
    least[used] = over(roots.rows.take(used), needed_by)
    needed = least.take(of)
    near = np.flatnonzero(needed <= room)
    needed[near] = over(rows.take(near), needed_by)
    fits = near[needed[near] <= room]
    if space.machine.host_memory_bytes is not None:
        on_host = over(rows.take(fits), lambda s: training_host_memory(s).total)
        fits = fits[on_host <= space.machine.host_memory_bytes]
    time = np.full(len(rows), np.inf)
    time[fits] = over(rows.take(fits), lambda s: step_time(s).total)
    return rows, needed, time


def _chunks(space: Space, choice: KnobChoice, columns: Columns, rows: Ints) -> Iterator[tuple[Ints, Setting]]:
    for start in range(0, len(rows), CHUNK):
        here = rows[start : start + CHUNK]
        layout = choice.layout({name: column.take(here) for name, column in columns.items()})
        yield here, space.setting(choice, layout)


def objective_value(prediction: Answer, objective: Objective) -> float:
    """What a step costs in the unit of the objective: s, GPU-hours, J or USD."""
    time_s, num_gpus = prediction.time_s, prediction.question.num_gpus
    if objective == "time":
        return time_s
    if objective == "gpu-hours":
        return time_s * num_gpus / units.HOUR_S
    used = prediction.footprint
    assert used is not None
    if objective == "energy":
        return float(used.energy.total)
    if used.cost_usd is None:
        device = prediction.question.machine.accelerator.id
        raise ConfigError(f"objective money needs a price of {device}: add one to the catalogue or take gpu-hours")
    return used.cost_usd


def check_space(space: Space) -> None:
    """Refuse what no layout can do: models not covered, machines too small."""
    reason = why_not_expressed(space.spec)
    if reason is not None:
        raise NotExpressedError(f"{space.spec.id}: {reason}")
    check_num_gpus(space.machine, space.num_gpus)
