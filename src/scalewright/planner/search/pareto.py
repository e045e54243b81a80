"""Node counts: strong and weak scaling, what is worth its GPU-hours, and where doubling stops paying."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from scalewright.costs.energy import Facility
from scalewright.errors import ConfigError
from scalewright.planner.answer import Answer, answer
from scalewright.planner.search.search import Objective, SearchResult, search_each
from scalewright.planner.search.space import Space

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Node counts that are searched around the requested one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRow:
    """One number of devices: its best layout with the same batch, and the chosen layout with more or fewer copies."""

    num_gpus: int
    num_nodes: int
    strong: Answer | None
    """Fastest layout with the requested global batch."""
    reason: str
    """Why there is none."""
    strong_frac: float | None
    """Speed-up over the first row, divided by the devices' growth."""
    weak: Answer | None
    """The chosen layout with its batch per device."""
    weak_frac: float | None
    """Step time of the first weak row over this one."""
    is_efficient: bool
    """No other row is both faster and cheaper in GPU-hours."""

    @property
    def gpu_s_per_step(self) -> float:
        assert self.strong is not None
        return self.strong.time_s * self.num_gpus

    def as_dict(self) -> dict[str, Any]:
        body: dict[str, Any] = {"num_nodes": self.num_nodes, "num_gpus": self.num_gpus, "fits": self.strong is not None}
        if self.strong is not None:
            strong, used = self.strong, self.strong.footprint
            body |= {
                "layout": strong.question.layout.brief,
                "step_time_s": strong.time_s,
                "step_time_interval_s": list(strong.interval_s),
                "mfu_frac": strong.transformer.mfu_frac,
                "memory_bytes": strong.memory_bytes,
                "gpu_time_per_step_s": self.gpu_s_per_step,
                "strong_efficiency_frac": self.strong_frac,
                "is_efficient": self.is_efficient,
            }
            if used is not None:
                body["energy_per_step_j"] = float(used.energy.total)
        else:
            body["reason"] = self.reason
        if self.weak is not None:
            body |= {
                "weak_global_batch": int(self.weak.question.layout.gbs),
                "weak_step_time_s": self.weak.time_s,
                "weak_efficiency_frac": self.weak_frac,
            }
        return body


def counts_around(space: Space) -> list[int]:
    """Numbers of devices from a quarter to four times those of the request, as far as the machine goes."""
    machine, n = space.machine, space.num_gpus
    most = machine.gpus_per_node * (machine.num_nodes if machine.num_nodes is not None else 10**6)
    if machine.network_bytes_per_s_per_gpu is None:
        most = machine.gpus_per_node
    counts = [int(n * f) for f in FACTORS if n * f == int(n * f) and 1 <= n * f <= most]
    return [c for c in counts if c <= machine.gpus_per_node or c % machine.gpus_per_node == 0 or c == n]


def scaling(
    results: Sequence[SearchResult], chosen: Answer, *, objective: Objective, facility: Facility | None
) -> list[ScalingRow]:
    """A row for each search, by number of devices; efficiencies are relative to the first that fits."""
    rows = []
    for result in sorted(results, key=lambda r: r.space.num_gpus):
        best = result.best(1, objective, facility=facility)
        weak = _weak(chosen, result.space.num_gpus)
        rows.append(
            ScalingRow(
                num_gpus=result.space.num_gpus,
                num_nodes=result.space.num_nodes,
                strong=best[0] if best else None,
                reason="" if best else why_none(result),
                strong_frac=None,
                weak=weak,
                weak_frac=None,
                is_efficient=False,
            )
        )
    return _with_efficiencies(rows)


def search_counts(space: Space, counts: Sequence[int], known: Sequence[SearchResult] = ()) -> list[SearchResult]:
    """The best layouts on other numbers of devices, beside the searches that are already made."""
    searched = {result.space.num_gpus for result in known}
    spaces = [space.on(count) for count in counts if count not in searched]
    return [*known, *(search_each(spaces, only_best=True) if spaces else [])]


def _weak(chosen: Answer, num_gpus: int) -> Answer | None:
    """The chosen layout on other devices: more or fewer copies of the model, each with the batch it has now."""
    question, layout = chosen.question, chosen.question.layout
    copies = int(layout.dp) * num_gpus / question.num_gpus
    batch = int(layout.gbs) * num_gpus / question.num_gpus
    if copies < 1 or copies != int(copies) or batch != int(batch):
        return None
    try:
        scaled = answer(replace(question, layout=replace(layout, dp=int(copies), gbs=int(batch)), facility=None))
    except ConfigError:
        return None  # experts spread over more copies than there are
    return scaled if scaled.fits else None


def _with_efficiencies(rows: list[ScalingRow]) -> list[ScalingRow]:
    first = next((r for r in rows if r.strong is not None), None)
    first_weak = next((r for r in rows if r.weak is not None), None)
    points = [(r.strong.time_s, r.gpu_s_per_step) for r in rows if r.strong is not None]
    done = []
    for row in rows:
        strong_frac = weak_frac = None
        efficient = False
        if row.strong is not None and first is not None:
            time_s, cost = row.strong.time_s, row.gpu_s_per_step
            strong_frac = first.gpu_s_per_step / cost
            efficient = not any(t <= time_s and c <= cost and (t, c) != (time_s, cost) for t, c in points)
        if row.weak is not None and first_weak is not None and first_weak.weak is not None:
            weak_frac = first_weak.weak.time_s / row.weak.time_s
        done.append(replace(row, strong_frac=strong_frac, weak_frac=weak_frac, is_efficient=efficient))
    return done


def why_none(result: SearchResult) -> str:
    """Why nothing fits: what the layout needs that asks the least of a device, there or else on its host."""
    smallest = result.smallest()
    return f"no layout divides {result.space.num_gpus} devices" if smallest is None else result.problem(smallest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Amdahl:
    """t(n) = serial + parallel / n through the strong-scaling rows, n in nodes."""

    serial_s: float
    parallel_s: float

    def time_s(self, num_nodes: float) -> float:
        return self.serial_s + self.parallel_s / num_nodes

    @property
    def num_nodes_at_knee(self) -> float:
        """Nodes from which a doubling costs a larger part in GPU-hours than it saves in time.

        Equation  2 t(2n)/t(n) - 1 = 1 - t(2n)/t(n) at t(n) = 3/2 t(2n), which is n = parallel / (2 serial)
        Source    amdahl1967, with the speed-up of one doubling
        Assumes   the batch stays as it is
        Checked   tests/planner/test_search_scaling.py: the doublings on both sides of it
        """
        return self.parallel_s / (2.0 * self.serial_s) if self.serial_s > 0 else np.inf


def fit_amdahl(num_nodes: Sequence[float], time_s: Sequence[float]) -> Amdahl:
    """Least squares of the relative error; neither part negative."""
    n, t = np.asarray(num_nodes, dtype=np.float64), np.asarray(time_s, dtype=np.float64)
    matrix = np.stack([1.0 / t, 1.0 / (n * t)], axis=1)
    (serial, parallel), *_ = np.linalg.lstsq(matrix, np.ones(len(t)), rcond=None)
    if serial < 0:
        shares = 1.0 / (n * t)
        serial, parallel = 0.0, float(shares.sum() / (shares**2).sum())
    return Amdahl(serial_s=float(serial), parallel_s=max(float(parallel), 0.0))


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

    def _shown(self, nodes: float) -> str:
        """Nodes, or devices where they are fewer than a node has."""
        return f"{nodes:,.0f}" if self.num_gpus >= self.gpus_per_node else f"{nodes * self.gpus_per_node:,.0f}"

    @property
    def sentence(self) -> str:
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
            "amdahl_serial_s": self.fit.serial_s,
            "amdahl_parallel_s": self.fit.parallel_s,
            "knee_num_nodes": finite(self.knee),
            "knee_num_nodes_interval": [finite(k) for k in self.knee_interval],
            "next_doubling_saves_frac": self.saves_frac,
            "next_doubling_costs_frac": self.costs_frac,
        }


def recommended(rows: Sequence[ScalingRow]) -> Recommended | None:
    """The row nearest to where the next doubling costs more than it saves; None with fewer than three rows."""
    fits = [row for row in rows if row.strong is not None]
    if len(fits) < 3:
        return None
    assert fits[0].strong is not None
    per_node = fits[0].strong.question.machine.gpus_per_node
    seen = [(r.num_gpus / per_node, r.strong.time_s) for r in fits if r.strong is not None]
    fit = fit_amdahl(*zip(*seen, strict=True))
    others = [fit_amdahl(*zip(*(seen[:i] + seen[i + 1 :]), strict=True)) for i in range(len(seen))]
    knees = sorted(f.num_nodes_at_knee for f in (fit, *others))
    knee = fit.num_nodes_at_knee
    if knee < seen[0][0]:  # the step grows with the nodes, which Amdahl's law excludes: take the rows themselves
        at = _num_steps_that_pay(seen)
        knee, knees = seen[at][0], [seen[at][0], seen[min(at + 1, len(seen) - 1)][0]]
    nearest = min(fits, key=lambda row: abs(math.log(row.num_gpus / per_node / min(knee, 1e12))))
    nodes, times = nearest.num_gpus / per_node, dict(seen)
    doubled = times.get(2 * nodes)
    after = fit.time_s(2 * nodes) / fit.time_s(nodes) if doubled is None else doubled / times[nodes]
    return Recommended(
        num_gpus=nearest.num_gpus,
        num_nodes=nearest.num_nodes,
        gpus_per_node=per_node,
        fit=fit,
        knee=knee,
        knee_interval=(knees[0], knees[-1]),
        saves_frac=1.0 - after,
        costs_frac=2.0 * after - 1.0,
        beyond_table=knee > seen[-1][0],
    )


def _num_steps_that_pay(seen: Sequence[tuple[float, float]]) -> int:
    """Rows of nodes and time that can be gone up from the first, each saving a larger part than it costs."""
    for at, ((nodes, time_s), (more_nodes, less_s)) in enumerate(itertools.pairwise(seen)):
        if more_nodes / nodes * less_s / time_s - 1.0 > 1.0 - less_s / time_s:
            return at
    return len(seen) - 1
