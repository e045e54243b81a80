"""How many nodes to take: those with the least of the objective, within budget and site; by time, while more pay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scalewright import units
from scalewright.planner.search.pareto import Amdahl, ScalingRow, fit_amdahl
from scalewright.planner.search.search import Objective

OBJECTIVE_WORDS = {"time": "time", "gpu-hours": "GPU-hours", "energy": "energy", "money": "money"}
MIN_ROWS = 3
"""Node counts that a fit of Amdahl's law needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MostNodes:
    """The most nodes that a plan can mean, and what sets them."""

    num_nodes: float
    """Below one where devices are fewer than a node has."""
    rule: str
    """Such as: leonardo has no more."""


def most_nodes_of(
    rows: Sequence[ScalingRow], *, site_name: str = "", site_nodes: int | None = None
) -> MostNodes:  # fmt: skip
    """The least of what machine and site have, and of what the batch divides into with a layout of the rows."""
    best = [row.best for row in rows if row.best is not None]
    machine, num_samples = best[0].question.machine, int(best[0].question.layout.gbs)
    split = max(int(p.question.layout.tp) * int(p.question.layout.pp) * int(p.question.layout.cp) for p in best)
    limits = [
        MostNodes(
            num_nodes=num_samples * split / machine.gpus_per_node, rule=f"{num_samples:,} samples divide no further"
        )
    ]
    if machine.num_nodes is not None:
        limits.append(MostNodes(num_nodes=machine.num_nodes, rule=f"{machine.name} has no more"))
    if site_nodes is not None:
        limits.append(MostNodes(num_nodes=site_nodes, rule=f"{site_name} allows no more in one job"))
    return min(reversed(limits), key=lambda limit: limit.num_nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommended:
    """How many nodes to take, and what the next doubling would bring."""

    num_gpus: int
    num_nodes: int
    gpus_per_node: int
    objective: Objective
    fit: Amdahl
    most: MostNodes
    knee: float
    """Nodes from which doubling no longer pays, by the rows and between them by the fit; infinite if it always does."""
    knee_interval: tuple[float, float]
    """The same with each row left out in turn."""
    saves_frac: float | None
    """Part of the run's time that the next doubling saves: by its row where there is one, else by the fit. None: so
    many devices there are not."""
    costs_frac: float | None
    """Part of the GPU-hours that it adds; negative where it needs fewer."""
    beyond_table: bool
    is_fitted: bool
    """Whether enough counts fit for Amdahl's law."""
    reason: str
    """Why this count."""
    cheapest: ScalingRow
    """The count with the fewest GPU-hours of those that are allowed."""

    def _shown(self, nodes: float) -> str:
        """Nodes, or devices where they are fewer than a node has."""
        return f"{nodes:,.0f}" if self.num_gpus >= self.gpus_per_node else f"{nodes * self.gpus_per_node:,.0f}"

    @property
    def sentence(self) -> str:
        parts = (self.reason, self._doubling if self.is_fitted else "", self._cheapest)
        return " ".join(part for part in parts if part)

    @property
    def _most(self) -> str:
        unit = "nodes" if self.num_gpus >= self.gpus_per_node else "devices"
        return f"{self._shown(self.most.num_nodes)} {unit}: {self.most.rule}"

    @property
    def _cheapest(self) -> str:
        row = self.cheapest
        nodes = f"{row.num_nodes} node{'s' if row.num_nodes != 1 else ''}"
        if not row.is_whole_nodes:
            nodes = f"{row.num_gpus} device{'s' if row.num_gpus != 1 else ''}"
        if row.num_gpus == self.num_gpus:
            return "" if self.objective == "gpu-hours" else "It needs the fewest GPU-hours as well."
        if row.run is None:
            return f"The cheapest count is {nodes}: {row.num_gpu_hours:,.3g} GPU-hours a step."
        time = units.format(row.run.time_s, units.SECONDS)
        return f"The cheapest count is {nodes}: {row.run.num_gpu_hours:,.0f} GPU-hours in {time}."

    @property
    def _doubling(self) -> str:
        if self.saves_frac is None or self.costs_frac is None:
            return f"Twice as many are above {self._most}."
        if self.saves_frac <= 0.0:
            return "More devices do not shorten the run."
        more = "more" if self.costs_frac >= 0.0 else "fewer"
        costs = f"{abs(self.costs_frac):.0%} {more} GPU-hours"
        doubling = f"Twice as many save {self.saves_frac:.0%} of the time and need {costs}."
        if np.isinf(self.knee):
            return f"{doubling} Doubling pays up to {self._most}."
        unit = "nodes" if self.num_gpus >= self.gpus_per_node else "devices"
        low, high = self.knee_interval
        span = f" ({self._shown(low)} or more)" if np.isinf(high) else f" ({self._shown(low)} to {self._shown(high)})"
        if self._shown(low) == self._shown(high):
            span = ""
        beyond = " The table ends before that." if self.beyond_table else ""
        return f"{doubling} Doubling stops paying at about {self._shown(self.knee)} {unit}{span}.{beyond}"

    def as_dict(self) -> dict[str, Any]:
        def finite(value: float) -> float | None:
            return value if np.isfinite(value) else None

        return {
            "num_nodes": self.num_nodes,
            "num_gpus": self.num_gpus,
            "objective": self.objective,
            "sentence": self.sentence,
            "reason": self.reason,
            "cheapest_num_nodes": self.cheapest.num_nodes,
            "cheapest_num_gpus": self.cheapest.num_gpus,
            "most_num_nodes": self.most.num_nodes,
            "most_rule": self.most.rule,
            "amdahl_serial_s": self.fit.serial_s,
            "amdahl_parallel_s": self.fit.parallel_s,
            "knee_num_nodes": finite(self.knee),
            "knee_num_nodes_interval": [finite(k) for k in self.knee_interval],
            "next_doubling_saves_frac": self.saves_frac,
            "next_doubling_costs_frac": self.costs_frac,
        }


def recommended(
    rows: Sequence[ScalingRow], *, most: MostNodes, objective: Objective = "time", must_choose: bool = False,
    is_listed: bool = False,
) -> Recommended | None:  # fmt: skip
    """The row with the least of the objective, of those that keep to budget and site. By time, where the user did not
    list the counts, only rows count up to which more nodes pay.

    None if no row is allowed, or if fewer than three fit and none has to be chosen."""
    fits = [row for row in rows if row.best is not None]
    allowed = [row for row in fits if row.is_allowed]
    if not allowed or (len(fits) < MIN_ROWS and not must_choose):
        return None
    paying = rows_that_pay(fits)
    candidates = allowed if objective != "time" or is_listed else rows_that_pay(allowed)
    best = min(candidates, key=lambda row: (row.value(objective), row.num_gpus))
    knee = _knee(fits, paying, most)
    nodes, times = best.num_gpus / knee.gpus_per_node, dict(knee.seen)
    doubled, fit = times.get(2 * nodes), knee.fit
    after = fit.time_s(2 * nodes) / fit.time_s(nodes) if doubled is None else doubled / times[nodes]
    has_double = 2 * nodes <= most.num_nodes
    return Recommended(
        num_gpus=best.num_gpus, num_nodes=best.num_nodes, gpus_per_node=knee.gpus_per_node, objective=objective,
        fit=fit, most=most, knee=knee.num_nodes, knee_interval=knee.interval,
        saves_frac=1.0 - after if has_double else None, costs_frac=2.0 * after - 1.0 if has_double else None,
        beyond_table=knee.num_nodes > knee.seen[-1][0], is_fitted=len(fits) >= MIN_ROWS,
        reason=_reason(best, fits, paying, objective=objective, is_listed=is_listed),
        cheapest=min(allowed, key=lambda row: (row.num_gpu_hours, row.num_gpus)),
    )  # fmt: skip


def rows_that_pay(rows: Sequence[ScalingRow]) -> list[ScalingRow]:
    """From the fewest GPU-hours upwards: each row that saves a larger part of the run's time than it adds GPU-hours.

    Rows that another beats in both never pay, whatever stands between them."""
    ranked = sorted(rows, key=lambda row: (row.num_gpu_hours, row.time_s))
    pays = ranked[:1]
    for row in ranked[1:]:
        saves, costs = 1.0 - row.time_s / pays[-1].time_s, row.num_gpu_hours / pays[-1].num_gpu_hours - 1.0
        if saves > 0.0 and costs <= saves:
            pays.append(row)
    return pays


def _reason(
    best: ScalingRow, fits: Sequence[ScalingRow], paying: Sequence[ScalingRow], *, objective: Objective,
    is_listed: bool,
) -> str:  # fmt: skip
    """Why this count, and what keeps a better one out."""
    candidates = fits if objective != "time" or is_listed else paying
    free = min(candidates, key=lambda row: (row.value(objective), row.num_gpus))
    excluded = ""
    if free is not best:
        limits = " and ".join(free.exceeded)
        why = f"their run exceeds the budget ({limits})" if limits else "the site allows fewer in one job"
        excluded = f" {free.num_nodes} nodes need less {OBJECTIVE_WORDS[objective]}, but {why}."
    among = "in the table" if all(row.is_allowed for row in fits) else "that are allowed"
    if objective != "time":
        return f"It needs the least {OBJECTIVE_WORDS[objective]} of the counts {among}.{excluded}"
    if is_listed or best.time_s <= min(row.time_s for row in fits if row.is_allowed):
        return f"It has the shortest run of the counts {among}.{excluded}"
    return f"It has the shortest run of the counts up to which more devices pay.{excluded}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Knee:
    """Where doubling stops paying."""

    gpus_per_node: int
    seen: list[tuple[float, float]]
    """Nodes, and times of the run."""
    fit: Amdahl
    num_nodes: float
    interval: tuple[float, float]


def _knee(fits: Sequence[ScalingRow], paying: Sequence[ScalingRow], most: MostNodes) -> _Knee:
    """By the fit, where the rows do not contradict it: not above the last row that pays, nor at a smaller one."""
    assert fits[0].best is not None
    per_node = fits[0].best.question.machine.gpus_per_node
    seen = [(row.num_gpus / per_node, row.time_s) for row in fits]
    fit = fit_amdahl(*zip(*seen, strict=True))
    fitted = [fit]
    if len(seen) >= MIN_ROWS:
        fitted += [fit_amdahl(*zip(*(seen[:i] + seen[i + 1 :]), strict=True)) for i in range(len(seen))]
    last = max(row.num_gpus for row in paying) / per_node
    before = max((nodes for nodes, _ in seen if nodes < last), default=last)
    after = last if last < seen[-1][0] else np.inf
    knees = [last if f.num_nodes_at_knee <= before else min(f.num_nodes_at_knee, after) for f in fitted]
    knees = [np.inf if 2.0 * knee > most.num_nodes else knee for knee in knees]
    return _Knee(gpus_per_node=per_node, seen=seen, fit=fit, num_nodes=knees[0], interval=(min(knees), max(knees)))
