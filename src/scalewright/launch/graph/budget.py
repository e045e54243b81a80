"""GPU-hours of a graph: the estimate before it runs, the limit, and the usage from Slurm's accounting afterwards."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalewright import units
from scalewright.catalog.library import Catalog
from scalewright.costs import energy
from scalewright.costs.machine import pick_partition
from scalewright.errors import ConfigError
from scalewright.launch.graph.graph import Graph, GraphJob, with_items
from scalewright.launch.graph.manifest import LaunchManifest
from scalewright.planner.energy_use import facility_of
from scalewright.units import HOUR_S, grouped

USAGE_FIELDS = "JobIDRaw,Account,State,ElapsedRaw,AllocTRES,ConsumedEnergyRaw"
_GPUS = re.compile(r"(?:^|,)gres/gpu=(\d+)")
_TYPED_GPUS = re.compile(r"(?:^|,)gres/gpu:[^=,]+=(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphJobEstimate:
    """Device time of one job of a graph."""

    name: str
    num_items: int
    gpu_s: float | None
    """None: unknown."""
    basis: str
    """Where `gpu_s` comes from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Device time that a graph may use, without retries."""

    jobs: tuple[GraphJobEstimate, ...]

    @property
    def gpu_s(self) -> float:
        return sum(job.gpu_s or 0.0 for job in self.jobs)

    @property
    def num_gpu_hours(self) -> float:
        return self.gpu_s / HOUR_S

    @property
    def unknown(self) -> list[str]:
        return [job.name for job in self.jobs if job.gpu_s is None]

    def as_dict(self) -> dict[str, Any]:
        return {
            "num_gpu_hours": self.num_gpu_hours,
            "unknown": self.unknown,
            "jobs": {
                job.name: {"num_items": job.num_items, "gpu_s": job.gpu_s, "basis": job.basis} for job in self.jobs
            },
        }  # fmt: skip


def estimate(graph: Graph) -> Estimate:
    return Estimate(
        jobs=tuple(
            GraphJobEstimate(name=job.name, num_items=job.num_items, gpu_s=job.gpu_s, basis=_basis(job))
            for job in graph.jobs.values()
        )
    )


def _basis(job: GraphJob) -> str:
    if job.planned_gpu_s is not None:
        return "as the plan predicts"
    return "not known: write nodes and time" if job.gpu_s is None else "at most, by the time limit"


class OverBudgetError(ConfigError):
    """The work may use more GPU-hours than the limit allows."""

    exit_code = 1


def check_budget(estimated: Estimate, *, warn_gpu_hours: float | None, limit_gpu_hours: float | None) -> list[str]:
    """Warnings. Refuses a graph over the limit, and a limit on a graph whose size is unknown."""
    hours = estimated.num_gpu_hours
    if limit_gpu_hours is not None:
        if estimated.unknown:
            raise OverBudgetError(
                f"the limit of {grouped(limit_gpu_hours)} GPU-hours cannot be checked: job {estimated.unknown[0]} does "
                "not give its nodes, GPUs and time; write them, or give --force"
            )
        if hours > limit_gpu_hours:
            raise OverBudgetError(
                f"the graph may use {grouped(hours)} GPU-hours, over the limit of {grouped(limit_gpu_hours)}: "
                "shorten it, give --cut to drop the last items, or --force"
            )
    if warn_gpu_hours is not None and hours > warn_gpu_hours:
        return [f"the graph may use {grouped(hours)} GPU-hours, over warn_gpu_hours = {grouped(warn_gpu_hours)}"]
    return []


def cut_to(graph: Graph, limit_gpu_hours: float) -> tuple[Graph, dict[str, tuple[str, ...]]]:
    """The graph with as many first items of each sweep as the limit allows, and the items that are dropped.

    Jobs that follow each other item by item lose the same items. Jobs without items are never dropped.
    """
    limit_s = limit_gpu_hours * HOUR_S
    groups = _sweeps(graph)
    swept = {name for group in groups for name in group}
    remaining_s = limit_s - sum(job.gpu_s or 0.0 for job in graph.jobs.values() if job.name not in swept)
    kept: dict[str, int] = {}
    for group in groups:
        per_item_s = sum(graph.jobs[name].gpu_s_per_item or 0.0 for name in group)
        num_items = graph.jobs[group[0]].num_items
        # The quotient is raised slightly, so that rounding does not drop an item that meets the limit exactly.
        fitting = int(remaining_s / per_item_s * (1.0 + 1e-12)) if per_item_s else num_items
        num_kept = min(num_items, max(fitting, 0))
        remaining_s -= num_kept * per_item_s
        if num_kept == 0:
            raise OverBudgetError(
                f"not one item of job {group[0]} fits into {grouped(limit_gpu_hours)} GPU-hours: raise the limit, or "
                "--force"
            )
        kept |= dict.fromkeys(group, num_kept)
    dropped = {n: graph.jobs[n].items[k:] for n, k in kept.items() if k < graph.jobs[n].num_items}
    return with_items(graph, kept), dropped


def _sweeps(graph: Graph) -> list[list[str]]:
    """Names of jobs with items. Jobs that follow each other item by item form one group."""
    groups: list[list[str]] = []
    for name, job in graph.jobs.items():
        if not job.items:
            continue
        tied = [up for up, relation in job.after.items() if relation == "corr"]
        joined = [group for group in groups if set(group) & set(tied)]
        groups = [group for group in groups if group not in joined]
        groups.append([*(n for group in joined for n in group), name])
    return groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Device time that was used."""

    num_jobs: int
    gpu_s: float
    measured_j: float | None
    """Energy measured by the nodes' sensors; None: some jobs have no measurement."""
    source: str

    @property
    def num_gpu_hours(self) -> float:
        return self.gpu_s / HOUR_S


def parse_usage(text: str) -> Usage:
    """Usage from the output of `sacct -n -P -X -D -o USAGE_FIELDS`, which lists every attempt of every job."""
    jobs: set[str] = set()
    gpu_s, joules, is_complete = 0.0, 0.0, True
    for line in text.splitlines():
        parts = line.split("|")
        if len(parts) != 6 or not parts[3].isdigit():
            continue
        jobs.add(parts[0])
        used_s = float(parts[3]) * num_gpus(parts[4])
        gpu_s += used_s
        measured_j = float(parts[5]) if parts[5].replace(".", "", 1).isdigit() else 0.0
        joules += measured_j
        is_complete = is_complete and (measured_j > 0 or used_s == 0)
    return Usage(
        num_jobs=len(jobs), gpu_s=gpu_s, measured_j=joules if is_complete and joules > 0 else None,
        source="Slurm's accounting",
    )  # fmt: skip


def num_gpus(tres: str) -> int:
    """GPUs in a list of trackable resources: `billing=8,cpu=8,gres/gpu=4,node=1`."""
    if match := _GPUS.search(tres):
        return int(match.group(1))
    return sum(int(n) for n in _TYPED_GPUS.findall(tres))


def usage_of(manifests: Iterable[LaunchManifest]) -> Usage:
    """Usage from the run times that drivers recorded. Attempts before a requeue are not in it."""
    jobs = [job for manifest in manifests for job in manifest.slurm_jobs if job.id]
    gpu_s = sum(job.elapsed_s * job.num_gpus for job in jobs)
    return Usage(
        num_jobs=len(jobs), gpu_s=gpu_s, measured_j=None, source="the queue, as recorded by drivers; without requeues"
    )


def added(usages: Sequence[Usage]) -> Usage:
    measured = [u.measured_j for u in usages]
    return Usage(
        num_jobs=sum(u.num_jobs for u in usages),
        gpu_s=sum(u.gpu_s for u in usages),
        measured_j=None if None in measured or not measured else sum(m for m in measured if m is not None),
        source="; ".join(dict.fromkeys(u.source for u in usages)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """Energy, cost and carbon of some device time."""

    energy_j: float
    energy_basis: str
    cost_usd: float | None
    carbon_kgco2e: float | None
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        optional: Mapping[str, float | None] = {"cost_usd": self.cost_usd, "carbon_kgco2e": self.carbon_kgco2e}
        body = {"energy_j": self.energy_j, "energy_basis": self.energy_basis, "notes": list(self.notes)}
        return body | {key: value for key, value in optional.items() if value is not None}

    def lines(self) -> list[str]:
        text = [f"energy {units.format(self.energy_j, units.JOULES)} ({self.energy_basis})"]
        if self.cost_usd is not None:
            text.append(f"cost {units.format(self.cost_usd, units.USD)}")
        if self.carbon_kgco2e is not None:
            text.append(f"carbon {units.format(self.carbon_kgco2e, units.KGCO2E)}")
        return text


def bill(catalog: Catalog, system_name: str, *, gpu_s: float, measured_j: float | None = None) -> Bill:
    """Energy as measured by the nodes' sensors; without a measurement, that of fully busy boards, an upper bound."""
    partition = pick_partition(catalog.system(system_name), None)
    accelerator = catalog.accelerator(partition.accelerator)
    facility = facility_of(catalog, system_name, accelerator.id)
    constants, tdp_w = catalog.constants(), accelerator.tdp.value
    if measured_j is None:
        board_w = energy.board_power_w(tdp_w=tdp_w, activity_frac=1.0, memory_frac=1.0, constants=constants)
        overhead_w = energy.node_overhead_w(tdp_w=tdp_w, num_devices=1, constants=constants)
        used = energy.energy_use(
            time_s=gpu_s, num_devices=1, device_w=board_w, overhead_w=overhead_w, pue_frac=facility.pue_frac
        )
        joules, basis = float(used.total), "at most: boards fully busy"
    else:
        joules, basis = measured_j * facility.pue_frac, "by the nodes' sensors, times PUE"
    usd = facility.usd_per_s_per_gpu
    return Bill(
        energy_j=joules, energy_basis=basis, notes=facility.notes,
        cost_usd=None if usd is None else energy.rental_usd(time_s=gpu_s, num_devices=1, usd_per_s_per_gpu=usd),
        carbon_kgco2e=None if facility.kgco2e_per_j is None
        else energy.carbon_kgco2e(energy_j=joules, kgco2e_per_j=facility.kgco2e_per_j),
    )  # fmt: skip
