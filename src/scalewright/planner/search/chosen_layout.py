"""The layout that a search recommends: of those that the model cannot tell apart, the safest.

Predicted times of two layouts of one job differ from measured ones by errors of their own, the model's resolution.
Among layouts within it, a layout is safer that leaves device memory free, multiplies in 16 bit, keeps the groups that
exchange data in every layer on few nodes, and needs little pipeline, interleaving and context parallelism. Of equally
safe layouts the fastest is taken. Its time is what `predict` says of it; beside it stands what choosing by predicted
times costs on average (`costs.selection`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalewright import units
from scalewright.costs.energy import Facility
from scalewright.costs.room import comfortable_bytes
from scalewright.costs.selection import num_equal_layouts, selection_frac
from scalewright.planner.answer import Answer
from scalewright.planner.search.search import Objective, SearchResult, objective_value

REACH = 4.0
"""Layouts that are slower by more than so many resolutions do not win by an error."""
PLAIN_KNOBS = {"pp": "pipeline", "vpp": "interleaving", "cp": "context parallelism"}
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenLayout:
    """The layout that a search recommends, and the fastest beside it."""

    result: SearchResult
    prediction: Answer
    fastest: Answer
    facility: Facility | None
    objective: Objective
    num_near: int
    """Layouts that the model cannot tell apart from the fastest."""
    resolution_frac: float
    selection_frac: float
    """Part by which the step is longer than predicted, on average, because the search chose by predicted times."""

    def alternatives(self, count: int) -> list[Answer]:
        """The best layouts without the recommended one."""
        best = self.prediction.question
        ranked = self.result.best(count + 1, self.objective, facility=self.facility)
        others = [p for p in ranked if (p.question.layout, p.question.recipe) != (best.layout, best.recipe)]
        return others[:count]

    @property
    def num_equal(self) -> float:
        """Equally fast layouts that would make the best one look as much too fast."""
        return num_equal_layouts(selection_frac=self.selection_frac, resolution_frac=self.resolution_frac)

    @property
    def is_fastest(self) -> bool:
        return self.prediction.question.layout == self.fastest.question.layout

    @property
    def sentence(self) -> str:
        """Why this layout, with the fastest beside it."""
        if self.num_near < 2:
            return ""
        among = f"{self.num_near:,} layouts that the model cannot tell apart (within {self.resolution_frac:.1%})"
        if self.is_fastest:
            return f"It is the fastest and the safest of {among}."
        faster = 1.0 - self.fastest.time_s / self.prediction.time_s
        fastest = f"{self.fastest.question.layout.brief} at {units.format(self.fastest.time_s, units.SECONDS)}"
        reasons = ", ".join(_safer_by(self.prediction, self.fastest))
        return (
            f"It is the safest of {among}{f': {reasons}' if reasons else ''}. "
            f"The fastest is {fastest}, {faster:.1%} less."
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "sentence": self.sentence,
            "resolution_frac": self.resolution_frac,
            "num_layouts_within_resolution": self.num_near,
            "selection_frac": self.selection_frac,
            "expected_step_time_s": self.prediction.time_s * (1.0 + self.selection_frac),
            "num_equal_layouts": self.num_equal,
            "fastest_layout": self.fastest.question.layout.brief,
            "fastest_step_time_s": self.fastest.time_s,
            "fastest_device_bytes": self.fastest.device_bytes,
        }


def chosen_layout(
    result: SearchResult, objective: Objective, *, facility: Facility | None = None
) -> ChosenLayout | None:  # fmt: skip
    """The layout to recommend on these devices; None where nothing fits.

    Energy is not ordered as time is: with that objective the layout with the least energy is taken, unless the safest
    of the fastest needs as much as far as the model can tell.
    """
    if not result.feasible:
        return None
    resolution = result.space.machine.constants.layout_resolution.value
    reach = _Reach.of(result, resolution)
    near, least = reach.near(resolution), result.best(1, objective, facility=facility)[0]
    safest = result.prediction(int(reach.rows[near][np.argmin(reach.safety[near])]), facility=facility)
    fastest = result.best(1, "time", facility=facility)[0]
    if safest.time_s < fastest.time_s:  # every layout that is as fast has little memory left, as the fastest has
        fastest = result.prediction(int(reach.rows[np.argmin(reach.log_time)]), facility=facility)
    needs, least_needs = (objective_value(answer, objective) for answer in (safest, least))
    is_safest = needs <= least_needs * (1.0 + resolution)
    best, fastest = (safest, fastest) if is_safest else (least, least)
    frac, num_near = reach.selection_frac(resolution, is_safest=is_safest), 1
    if is_safest:
        num_near = int(np.count_nonzero(near))
    return ChosenLayout(
        result=result, prediction=best, fastest=fastest, facility=facility, objective=objective, num_near=num_near,
        resolution_frac=resolution, selection_frac=frac,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reach:
    """Layouts that could be the fastest, given the resolution: their times, families of one error, and safety."""

    rows: Ints
    """Places in the search."""
    log_time: NDArray[np.float64]
    family: Ints
    safety: Ints
    """Place in the order of safety: 0 is the safest."""

    @classmethod
    def of(cls, result: SearchResult, resolution_frac: float) -> _Reach:
        time = result.step_time_s
        rows = np.flatnonzero(time <= time.min() * (1.0 + resolution_frac) ** REACH)
        c = {name: column.take(result.split[rows]) for name, column in result.columns.items()}
        place = result.choice[rows]
        zero = np.array([choice.zero for choice in result.choices], dtype=np.int64)[place]
        narrow = np.array([choice.recipe.is_narrow for choice in result.choices], dtype=np.int64)[place]
        # Devices of one family run the same kernels: their products have the same sizes, and the same is recomputed.
        rows_of_product = c["mbs"] * result.space.shape.seq // c["cp"]
        keys = np.stack([c["tp"], c["ep"], rows_of_product, zero >= 3, _words(result, rows)])
        _, family = np.unique(keys, axis=1, return_inverse=True)
        machine = result.space.machine
        order = np.lexsort((
            time[rows], zero, c["pp"] * c["vpp"] * c["cp"], layer_group_nodes(c, zero, machine.gpus_per_node), narrow,
            result.needed_bytes[rows] > comfortable_bytes(machine),
        ))  # fmt: skip
        safety = np.empty(len(rows), dtype=np.int64)
        safety[order] = np.arange(len(rows))
        return cls(rows=rows, log_time=np.log(time[rows]), family=family.reshape(-1), safety=safety)

    def near(self, tolerance_frac: float) -> NDArray[np.bool_]:
        """Which layouts are as fast as the fastest, as far as the model can tell."""
        within: NDArray[np.bool_] = self.log_time <= self.log_time.min() + np.log1p(tolerance_frac)
        return within

    def selection_frac(self, resolution_frac: float, *, is_safest: bool) -> float:
        """What choosing costs: of each family, its fastest and its safest member take part."""
        members = set()
        for order in (self.log_time, self.safety):
            first = np.lexsort((order, self.family))
            _, at = np.unique(self.family[first], return_index=True)
            members |= set(first[at].tolist())
        at = np.array(sorted(members))
        return selection_frac(
            log_time=self.log_time[at], family=self.family[at], safety=self.safety[at],
            resolution_frac=resolution_frac, tolerance_frac=resolution_frac if is_safest else 0.0,
        )  # fmt: skip


def _words(result: SearchResult, rows: Ints) -> Ints:
    """A number for each combination of recompute level and precision."""
    names = [(choice.recompute, choice.recipe.name) for choice in result.choices]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names], dtype=np.int64)[result.choice[rows]]


def layer_group_nodes(columns: dict[str, Any], zero: Any, gpus_per_node: int) -> Any:
    """Nodes of the widest group that exchanges data in every layer: tensor, context, experts, ZeRO-3's weights."""
    inside = columns["tp"] * columns["cp"]
    widest = np.maximum(inside, np.maximum(columns["ep"], np.where(zero >= 3, inside * columns["dp"], 1)))
    return -(-widest // gpus_per_node)


def _safer_by(chosen: Answer, fastest: Answer) -> Iterator[str]:
    """What a layout has over the fastest one, the most important first."""
    room = chosen.question.machine.memory_bytes
    spare, other_spare = room - chosen.device_bytes, room - fastest.device_bytes
    if spare > other_spare:
        free, other_free = (units.format(size, units.BYTES) for size in (spare, other_spare))
        yield f"{free} of a device stay free instead of {other_free}"
    if chosen.question.recipe.name != fastest.question.recipe.name:
        yield f"{chosen.question.recipe.name} instead of {fastest.question.recipe.name}"
    ours, theirs = (_group_nodes(answer) for answer in (chosen, fastest))
    if ours < theirs:
        yield f"exchange in every layer spans {ours} node{'s' if ours > 1 else ''} instead of {theirs}"
    for knob, name in PLAIN_KNOBS.items():
        value, other = (int(getattr(answer.question.layout, knob)) for answer in (chosen, fastest))
        if value < other:
            yield f"no {name}" if value == 1 else f"{knob}={value} instead of {other}"
    if chosen.question.layout.zero < fastest.question.layout.zero:
        yield f"zero={chosen.question.layout.zero} instead of {fastest.question.layout.zero}"


def _group_nodes(answer: Answer) -> int:
    layout = answer.question.layout
    columns = {name: int(getattr(layout, name)) for name in ("tp", "cp", "ep", "dp")}
    return int(layer_group_nodes(columns, layout.zero, answer.question.machine.gpus_per_node))
