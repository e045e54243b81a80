"""Node counts: strong and weak scaling, what is worth its GPU-hours, where doubling stops paying, and which to take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from scalewright.errors import ConfigError
from scalewright.planner.answer import Answer, answer
from scalewright.planner.search.chosen_layout import ChosenLayout
from scalewright.planner.search.search import Objective, SearchResult, objective_value, search_each
from scalewright.planner.search.space import Space
from scalewright.planner.whole_run import WholeRun

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Node counts that are searched around the requested one."""
NUM_OPEN_COUNTS = 8
"""Doublings that are offered where no node count is given."""
MAX_OPEN_NODES = 2**12


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCount:
    """One number of devices: the layout to take there, the whole run with it, and the limits that it breaks."""

    result: SearchResult
    choice: ChosenLayout | None
    """None where nothing fits."""
    run: WholeRun | None = None
    notes: tuple[str, ...] = ()
    exceeded: tuple[tuple[str, float], ...] = ()
    """Limits of the budget that the run exceeds, with what it needs."""

    @property
    def prediction(self) -> Answer | None:
        return None if self.choice is None else self.choice.prediction

    @property
    def num_gpus(self) -> int:
        return self.result.space.num_gpus


def run_value(best: Answer, run: WholeRun | None, objective: Objective) -> float:
    """What a whole run needs of the objective; a step of it where there is no run."""
    if run is None:
        return objective_value(best, objective)
    energy_j = None if run.energy is None else float(run.energy.total)
    needs = {"time": run.time_s, "gpu-hours": run.num_gpu_hours, "money": run.cost_usd, "energy": energy_j}
    value = needs[objective]
    return objective_value(best, objective) if value is None else value


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRow:
    """One number of devices: its own best layout and whole run, and the chosen layout with more or fewer copies."""

    num_gpus: int
    num_nodes: int
    is_whole_nodes: bool
    best: Answer | None
    """The layout to take there, with the requested global batch."""
    run: WholeRun | None
    """The whole run with it, where there is a storage to save to."""
    exceeded: tuple[str, ...]
    """Limits of the budget that the run exceeds."""
    reason: str
    """Why there is none."""
    is_over_site: bool = False
    """More nodes than the site allows in one job."""
    strong: Answer | None = None
    """The chosen layout with more or fewer copies and the same batch."""
    strong_frac: float | None = None
    """Its speed-up over the first row that has it, divided by the devices' growth."""
    weak: Answer | None = None
    """The chosen layout with more or fewer copies, each with the batch it has now."""
    weak_frac: float | None = None
    """Step time of the first weak row over this one."""
    is_efficient: bool = False
    """No other row is both faster and needs less of the objective; by time: fewer GPU-hours."""

    def value(self, objective: Objective) -> float:
        """What the whole run needs of the objective, as the table shows it; a step where there is no run."""
        assert self.best is not None
        return run_value(self.best, self.run, objective)

    @property
    def time_s(self) -> float:
        """Of the whole run; of a step where there is no run."""
        return self.value("time")

    @property
    def num_gpu_hours(self) -> float:
        """Of the whole run; of a step where there is no run."""
        return self.value("gpu-hours")

    @property
    def is_allowed(self) -> bool:
        """It fits and keeps to the budget and to what the site allows."""
        return self.best is not None and not self.exceeded and not self.is_over_site

    def as_dict(self) -> dict[str, Any]:
        body: dict[str, Any] = {"num_nodes": self.num_nodes, "num_gpus": self.num_gpus, "fits": self.best is not None}
        if self.best is not None:
            best, used = self.best, self.best.footprint
            body |= {
                "layout": best.question.layout.brief,
                "step_time_s": best.time_s,
                "step_time_interval_s": list(best.interval_s),
                "mfu_frac": best.transformer.mfu_frac,
                "memory_bytes": best.memory_bytes,
                "gpu_time_per_step_s": best.time_s * self.num_gpus,
                "strong_efficiency_frac": self.strong_frac,
                "is_efficient": self.is_efficient,
                "over_budget": list(self.exceeded),
                "is_over_site": self.is_over_site,
            }
            if self.run is not None:
                body |= {"run_time_s": self.run.time_s, "num_gpu_hours": self.run.num_gpu_hours}
                body |= {} if self.run.cost_usd is None else {"cost_usd": self.run.cost_usd}
                body |= {} if self.run.energy is None else {"energy_j": float(self.run.energy.total)}
            if used is not None:
                body["energy_per_step_j"] = float(used.energy.total)
        else:
            body["reason"] = self.reason
        if self.strong is not None:
            body["strong_step_time_s"] = self.strong.time_s
        if self.weak is not None:
            body |= {
                "weak_global_batch": int(self.weak.question.layout.gbs),
                "weak_step_time_s": self.weak.time_s,
                **({} if self.weak_frac is None else {"weak_efficiency_frac": self.weak_frac}),
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


def open_counts(space: Space, *, fewest: int | None, max_nodes: int | None) -> tuple[int, ...]:
    """Numbers of devices to choose from where none is given: whole nodes, doubled from the fewest that fit."""
    machine = space.machine
    if machine.num_nodes == 1 or machine.network_bytes_per_s_per_gpu is None:
        return (machine.gpus_per_node,)
    most = min(limit for limit in (machine.num_nodes, max_nodes, MAX_OPEN_NODES) if limit is not None)
    first = most if fewest is None else min(-(-fewest // machine.gpus_per_node), most)
    nodes = [first * 2**i for i in range(NUM_OPEN_COUNTS) if first * 2**i <= most]
    return tuple(count * machine.gpus_per_node for count in nodes)


def scaling(
    planned: Sequence[PlannedCount], chosen: Answer | None = None, *, objective: Objective = "time",
    max_nodes: int | None = None,
) -> list[ScalingRow]:  # fmt: skip
    """A row for each number of devices. Efficiencies are those of the chosen layout, over the first row that has it."""
    rows = []
    for count in sorted(planned, key=lambda p: p.num_gpus):
        num_gpus, num_nodes = count.num_gpus, count.result.space.num_nodes
        rows.append(
            ScalingRow(
                num_gpus=num_gpus,
                num_nodes=num_nodes,
                is_whole_nodes=num_gpus % count.result.space.machine.gpus_per_node == 0,
                best=count.prediction,
                run=count.run,
                exceeded=tuple(name for name, _ in count.exceeded),
                reason="" if count.choice is not None else why_none(count.result),
                is_over_site=max_nodes is not None and num_nodes > max_nodes,
                strong=None if chosen is None else _copies(chosen, num_gpus, is_weak=False),
                weak=None if chosen is None else _copies(chosen, num_gpus, is_weak=True),
            )
        )
    return _with_efficiencies(rows, objective)


def search_counts(space: Space, counts: Sequence[int], known: Sequence[SearchResult] = ()) -> list[SearchResult]:
    """The best layouts on other numbers of devices, beside the searches that are already made."""
    searched = {result.space.num_gpus for result in known}
    spaces = [space.on(count) for count in counts if count not in searched]
    return [*known, *(search_each(spaces, only_best=True) if spaces else [])]


def _copies(chosen: Answer, num_gpus: int, *, is_weak: bool) -> Answer | None:
    """The chosen layout on other devices: more or fewer copies of the model that share the batch (strong) or keep
    theirs (weak); None where copies or batch are not whole or it does not fit."""
    question, layout = chosen.question, chosen.question.layout
    growth = Fraction(num_gpus, question.num_gpus)
    copies, batch = int(layout.dp) * growth, int(layout.gbs) * (growth if is_weak else Fraction(1))
    if copies < 1 or copies.denominator != 1 or batch.denominator != 1:
        return None
    try:
        scaled = answer(replace(question, layout=replace(layout, dp=int(copies), gbs=int(batch)), facility=None))
    except ConfigError:
        return None  # the batch does not divide, or experts spread over more copies than there are
    return scaled if scaled.fits else None


def _with_efficiencies(rows: list[ScalingRow], objective: Objective) -> list[ScalingRow]:
    # Devices of a part of a node compare with each other only: a node has links and hosts that its parts share.
    has_whole = any(row.is_whole_nodes for row in rows)
    whole = [row for row in rows if row.is_whole_nodes or not has_whole]
    first = next((r for r in whole if r.strong is not None), None)
    first_weak = next((r for r in whole if r.weak is not None), None)
    beside: Objective = "gpu-hours" if objective == "time" else objective
    points = [(r.time_s, r.value(beside)) for r in rows if r.best is not None]
    done = []
    for row in rows:
        strong_frac = weak_frac = None
        efficient = False
        if row.best is not None:
            own = (row.time_s, row.value(beside))
            efficient = not any(t <= own[0] and c <= own[1] and (t, c) != own for t, c in points)
        if (
            row.is_whole_nodes >= has_whole
            and row.strong is not None
            and first is not None
            and first.strong is not None
        ):
            strong_frac = first.strong.time_s * first.num_gpus / (row.strong.time_s * row.num_gpus)
        if (
            row.is_whole_nodes >= has_whole
            and row.weak is not None
            and first_weak is not None
            and first_weak.weak is not None
        ):
            weak_frac = first_weak.weak.time_s / row.weak.time_s
        done.append(replace(row, strong_frac=strong_frac, weak_frac=weak_frac, is_efficient=efficient))
    return done


def why_none(result: SearchResult) -> str:
    """Why nothing fits: what the layout needs that asks the least of a device, there or else on its host."""
    smallest = result.smallest()
    return f"no layout divides {result.space.num_gpus} devices" if smallest is None else result.problem(smallest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Amdahl:
    """t(n) = serial + parallel / n through times of the same work, n in nodes."""

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
