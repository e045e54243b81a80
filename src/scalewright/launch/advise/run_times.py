"""Run times of a plan on each number of nodes, and the time limit and memory to request for it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from scalewright.costs import campaign
from scalewright.costs.campaign import Interruptions, Saving
from scalewright.errors import ConfigError, DocumentError
from scalewright.launch.plan_job import whole_run_of
from scalewright.units import GIB

MEMORY_MARGIN_FRAC = 0.15
"""Guides of the catalogued sites recommend the peak plus 10 to 20 %."""
MIN_USEFUL_FRAC = 0.5
"""A job must spend at least half of its limit on training. The rest is start, saving and margin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCount:
    """The run on one number of nodes."""

    num_nodes: int
    num_gpus: int
    layout: str
    run_s: float
    """From the start of its first job to the end, without waiting in the queue."""
    high_s: float
    """Upper end of the interval of `run_s`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """The parts of a plan that matter for the queue."""

    name: str
    plan_id: str
    gpus_per_node: int
    num_nodes: int
    """The number that the plan chose."""
    counts: tuple[NodeCount, ...]
    saving: Saving
    stops: Interruptions
    every_s: float
    margin_frac: float
    basis: str
    """Where the times come from."""
    host_memory_bytes: float | None = None
    """Peak host memory of a node in the pilot; None: no pilot."""

    def count(self, num_nodes: int) -> NodeCount:
        count = next((c for c in self.counts if c.num_nodes == num_nodes), None)
        if count is None:
            planned = ", ".join(str(c.num_nodes) for c in self.counts)
            raise ConfigError(
                f"--nodes {num_nodes} is not in the plan, which has {planned}: plan with --nodes {num_nodes}"
            )
        return count

    def request_s(self, count: NodeCount) -> int:
        """Time limit to request: the upper end plus the margin, in whole minutes."""
        return int(campaign.walltime_request_s(expected_s=count.high_s, margin_frac=self.margin_frac))

    def least_s(self, count: NodeCount) -> int:
        """For --time-min: the shortest job that reaches one new checkpoint."""
        shortest_s = campaign.walltime_request_s(
            expected_s=self._overhead_s + max(self.every_s, self._overhead_s), margin_frac=self.margin_frac
        )  # fmt: skip
        return int(min(shortest_s, self.request_s(count)))

    @property
    def _overhead_s(self) -> float:
        """Time of a job for starting, reading and writing one checkpoint."""
        return self.stops.startup_s + self.saving.read_s + self.saving.write_s

    def memory_request_gib(self) -> int | None:
        """For --mem: memory per node; None without a pilot that measured it."""
        if self.host_memory_bytes is None:
            return None
        size_bytes = campaign.memory_request_bytes(peak_bytes=self.host_memory_bytes, margin_frac=MEMORY_MARGIN_FRAC)
        return math.ceil(size_bytes / GIB)

    def num_jobs(self, count: NodeCount, limit_s: float) -> int | None:
        """Number of jobs of this limit that the run needs; None if such a job spends less than half on training."""
        if limit_s >= self.request_s(count):
            return 1
        try:
            one = campaign.slice_parts(
                limit_s=limit_s, saving=self.saving, interruptions=self.stops, margin_frac=self.margin_frac
            )  # fmt: skip
        except ConfigError:
            return None
        work_s = float(one.part("work").total)
        return max(math.ceil(count.run_s / work_s), 2) if work_s >= MIN_USEFUL_FRAC * limit_s else None

    def total_s(self, count: NodeCount, *, num_jobs: int, wait_s: float) -> float:
        """Time to the result. With several jobs, each one waits as long as the first."""
        return num_jobs * wait_s + count.run_s + (num_jobs - 1) * self._overhead_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Pilot:
    """Measurements of a short run."""

    path: str
    num_ranks: int
    step_s: float
    """Median step time."""
    high_step_s: float
    """95th percentile of the step time."""
    predicted_step_s: float | None
    host_memory_bytes: float | None


def planned_run(plan: dict[str, Any], *, where: str, margin_frac: float, startup_s: float) -> PlannedRun:
    """The run of a plan document, on each number of nodes that the plan considered."""
    best = plan.get("best")
    if not plan.get("fits") or not isinstance(best, dict):
        raise ConfigError(f"{where}: has no layout that fits: plan again with more nodes, then run advise")
    whole = whole_run_of(plan, where=where)
    try:
        per_node = int(best["input"]["machine"]["gpus_per_node"])
        step_s, time_s = float(whole["step_time_s"]), float(whole["time_s"])
        high_ratio = float(whole["time_interval_s"][1]) / time_s
        counts = [
            NodeCount(
                num_nodes=int(row["num_nodes"]), num_gpus=int(row["num_gpus"]), layout=str(row["layout"]),
                run_s=run_s, high_s=run_s * high_ratio,
            )
            for row in plan["scaling"]
            if row["fits"] and (int(row["num_gpus"]) % per_node == 0 or int(row["num_nodes"]) == 1)
            for run_s in [float(row.get("run_time_s", time_s * float(row["step_time_s"]) / step_s))]
        ]  # fmt: skip
        point = whole["checkpoint"]
        saving = Saving(**{key: float(point[key]) for key in ("size_bytes", "write_s", "stall_s", "read_s")})
        stops = Interruptions(
            mttf_s=float(whole["mttf_s"]), restart_s=float(whole["restart_s"]) - saving.read_s, startup_s=startup_s
        )  # fmt: skip
        return PlannedRun(
            name=str(whole["model"]), plan_id=str(plan["id"]), gpus_per_node=min(per_node, int(plan["num_gpus"])),
            num_nodes=int(plan["num_nodes"]), counts=tuple(counts), saving=saving, stops=stops,
            every_s=float(point["every_s"]), margin_frac=margin_frac, basis="the plan's prediction, upper end",
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError) as error:
        raise DocumentError(f"{where}: is not a complete plan ({error!r}); make it again with plan --out") from error


def with_pilot(run: PlannedRun, pilot: Pilot) -> PlannedRun:
    """The run with every time scaled by measured over predicted step time of a pilot."""
    if not pilot.predicted_step_s:
        raise ConfigError(
            f"--pilot {pilot.path} has no prediction to compare its steps with: make the pilot with bench language"
        )
    ratio, spread = pilot.step_s / pilot.predicted_step_s, pilot.high_step_s / pilot.step_s
    counts = tuple(replace(c, run_s=c.run_s * ratio, high_s=c.run_s * ratio * spread) for c in run.counts)
    basis = f"pilot {pilot.path}: {ratio:.2f} times the predicted step, 95th percentile {spread:.2f} times the median"
    return replace(run, counts=counts, basis=basis, host_memory_bytes=pilot.host_memory_bytes)
