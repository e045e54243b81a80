"""How many nodes to take: within the budget, nearest to where the next doubling costs more than it saves."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scalewright import units
from scalewright.planner.search.pareto import Amdahl, ScalingRow, fit_amdahl
from scalewright.planner.search.search import Objective, objective_value

OBJECTIVE_WORDS = {"time": "time", "gpu-hours": "GPU-hours", "energy": "energy", "money": "money"}
MIN_ROWS = 3
"""Node counts that a fit of Amdahl's law needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommended:
    """How many nodes to take, and what the next doubling would bring."""

    num_gpus: int
    num_nodes: int
    gpus_per_node: int
    fit: Amdahl
    knee: float
    """Nodes at which doubling stops paying, by the fit."""
    knee_interval: tuple[float, float]
    """The same with each row left out in turn."""
    saves_frac: float
    """Part of the step time that the next doubling saves: by its row where there is one, else by the fit."""
    costs_frac: float
    """Part of the GPU-hours that it adds."""
    beyond_table: bool
    is_fitted: bool
    """Whether enough counts fit for Amdahl's law."""
    reason: str
    """Why not the count at which doubling stops paying; empty if it is that one."""
    cheapest: ScalingRow
    """The count with the fewest GPU-hours of those that keep to the budget."""

    def _shown(self, nodes: float) -> str:
        """Nodes, or devices where they are fewer than a node has."""
        return f"{nodes:,.0f}" if self.num_gpus >= self.gpus_per_node else f"{nodes * self.gpus_per_node:,.0f}"

    @property
    def sentence(self) -> str:
        parts = (self.reason, self._doubling if self.is_fitted else "", self._cheapest)
        return " ".join(part for part in parts if part)

    @property
    def _cheapest(self) -> str:
        row = self.cheapest
        nodes = f"{row.num_nodes} node{'s' if row.num_nodes != 1 else ''}"
        if row.num_gpus == self.num_gpus:
            return "It is also the cheapest count."
        if row.run is None:
            return f"The cheapest count is {nodes}: {row.num_gpu_hours:,.3g} GPU-hours a step."
        time = units.format(row.run.time_s, units.SECONDS)
        return f"The cheapest count is {nodes}: {row.run.num_gpu_hours:,.0f} GPU-hours in {time}."

    @property
    def _doubling(self) -> str:
        if self.saves_frac <= 0.0:
            return "More devices do not shorten the step."
        doubling = (
            f"Twice as many save {self.saves_frac:.0%} of the time and cost {self.costs_frac:.0%} more GPU-hours."
        )
        if np.isinf(self.knee):
            return f"{doubling} Doubling pays for every count in the table."
        unit = "nodes" if self.num_gpus >= self.gpus_per_node else "devices"
        low, high = self.knee_interval
        span = f"{self._shown(low)} or more" if np.isinf(high) else f"{self._shown(low)} to {self._shown(high)}"
        beyond = " The table ends before that." if self.beyond_table else ""
        return f"{doubling} Doubling stops paying at about {self._shown(self.knee)} {unit} ({span}).{beyond}"

    def as_dict(self) -> dict[str, Any]:
        def finite(value: float) -> float | None:
            return value if np.isfinite(value) else None

        return {
            "num_nodes": self.num_nodes,
            "num_gpus": self.num_gpus,
            "sentence": self.sentence,
            "reason": self.reason,
            "cheapest_num_nodes": self.cheapest.num_nodes,
            "amdahl_serial_s": self.fit.serial_s,
            "amdahl_parallel_s": self.fit.parallel_s,
            "knee_num_nodes": finite(self.knee),
            "knee_num_nodes_interval": [finite(k) for k in self.knee_interval],
            "next_doubling_saves_frac": self.saves_frac,
            "next_doubling_costs_frac": self.costs_frac,
        }


def recommended(
    rows: Sequence[ScalingRow], *, objective: Objective = "time", must_choose: bool = False
) -> Recommended | None:  # fmt: skip
    """The row to take, of those that keep to the budget: nearest to where the next doubling costs more than it saves,
    or with another objective the one with the least of it. None if none keeps to the budget, or if fewer than three
    rows fit and none has to be chosen."""
    fits = [row for row in rows if row.strong is not None]
    allowed = [row for row in fits if row.is_allowed]
    if not allowed or (len(fits) < MIN_ROWS and not must_choose):
        return None
    knee = _knee(fits)
    by_time = _nearest(fits, knee.num_nodes)
    best = _nearest(allowed, knee.num_nodes)
    reason = ""
    if objective != "time":
        best = min(allowed, key=lambda row: _value(row, objective))
        among = "in the table" if len(allowed) == len(fits) else "that keep to the budget"
        reason = f"It needs the least {OBJECTIVE_WORDS[objective]} of the counts {among}."
    elif best is not by_time:
        limits = " and ".join(by_time.exceeded)
        reason = (
            f"{by_time.num_nodes} nodes are nearer to where doubling stops paying, but their run exceeds the budget "
            f"({limits})."
        )
    per_node, times = knee.gpus_per_node, dict(knee.seen)
    nodes = best.num_gpus / per_node
    doubled, fit = times.get(2 * nodes), knee.fit
    after = fit.time_s(2 * nodes) / fit.time_s(nodes) if doubled is None else doubled / times[nodes]
    return Recommended(
        num_gpus=best.num_gpus, num_nodes=best.num_nodes, gpus_per_node=per_node, fit=fit, knee=knee.num_nodes,
        knee_interval=knee.interval, saves_frac=1.0 - after, costs_frac=2.0 * after - 1.0,
        beyond_table=knee.num_nodes > knee.seen[-1][0], is_fitted=len(fits) >= MIN_ROWS, reason=reason,
        cheapest=min(allowed, key=lambda row: row.num_gpu_hours),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Knee:
    """Where doubling stops paying, from the fastest layouts of each count."""

    gpus_per_node: int
    seen: list[tuple[float, float]]
    """Nodes, and times of a step with its share of what surrounds steps."""
    fit: Amdahl
    num_nodes: float
    interval: tuple[float, float]


def _knee(fits: Sequence[ScalingRow]) -> _Knee:
    assert fits[0].strong is not None
    per_node = fits[0].strong.question.machine.gpus_per_node
    seen = [(row.num_gpus / per_node, row.paid_s) for row in fits]
    fit = fit_amdahl(*zip(*seen, strict=True))
    knee, knees = fit.num_nodes_at_knee, [fit.num_nodes_at_knee]
    if len(seen) >= MIN_ROWS:
        others = [fit_amdahl(*zip(*(seen[:i] + seen[i + 1 :]), strict=True)) for i in range(len(seen))]
        knees = sorted(f.num_nodes_at_knee for f in (fit, *others))
    if knee < seen[0][0] or len(seen) < MIN_ROWS:  # Amdahl's law excludes steps that grow: take the rows themselves
        at = _num_steps_that_pay(seen)
        knee, knees = seen[at][0], [seen[at][0], seen[min(at + 1, len(seen) - 1)][0]]
    return _Knee(gpus_per_node=per_node, seen=seen, fit=fit, num_nodes=knee, interval=(knees[0], knees[-1]))


def _nearest(rows: Sequence[ScalingRow], num_nodes: float) -> ScalingRow:
    def distance(row: ScalingRow) -> float:
        assert row.strong is not None
        return abs(math.log(row.num_gpus / row.strong.question.machine.gpus_per_node / min(num_nodes, 1e12)))

    return min(rows, key=distance)


def _value(row: ScalingRow, objective: Objective) -> float:
    assert row.strong is not None
    return objective_value(row.strong, objective)


def _num_steps_that_pay(seen: Sequence[tuple[float, float]]) -> int:
    """Rows of nodes and time that can be gone up from the first, each saving a larger part than it costs."""
    for at, ((nodes, time_s), (more_nodes, less_s)) in enumerate(itertools.pairwise(seen)):
        if more_nodes / nodes * less_s / time_s - 1.0 > 1.0 - less_s / time_s:
            return at
    return len(seen) - 1
