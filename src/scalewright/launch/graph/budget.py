"""GPU-hours before and after: what a graph may use, what its limit allows, and what the accounts say was used."""

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
from scalewright.launch.graph.graph import Graph, Stage, with_items
from scalewright.launch.graph.manifest import Manifest
from scalewright.planner.energy_use import facility_of
from scalewright.units import HOUR_S

USAGE_FIELDS = "JobIDRaw,Account,State,ElapsedRaw,AllocTRES,ConsumedEnergyRaw"
_GPUS = re.compile(r"(?:^|,)gres/gpu=(\d+)")
_TYPED_GPUS = re.compile(r"(?:^|,)gres/gpu:[^=,]+=(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEstimate:
    stage: str
    num_items: int
    gpu_s: float | None
    """None: not known."""
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Device time that a graph may use, retries not counted."""

    stages: tuple[StageEstimate, ...]

    @property
    def gpu_s(self) -> float:
        return sum(stage.gpu_s or 0.0 for stage in self.stages)

    @property
    def num_gpu_hours(self) -> float:
        return self.gpu_s / HOUR_S

    @property
    def unknown(self) -> list[str]:
        return [stage.stage for stage in self.stages if stage.gpu_s is None]

    def as_dict(self) -> dict[str, Any]:
        return {
            "num_gpu_hours": self.num_gpu_hours,
            "unknown": self.unknown,
            "stages": {
                s.stage: {"num_items": s.num_items, "gpu_s": s.gpu_s, "basis": s.basis} for s in self.stages
            },
        }  # fmt: skip


def estimate(graph: Graph) -> Estimate:
    return Estimate(
        stages=tuple(
            StageEstimate(stage=s.name, num_items=s.num_items, gpu_s=s.gpu_s, basis=_basis(s))
            for s in graph.stages.values()
        )
    )


def _basis(stage: Stage) -> str:
    if stage.planned_gpu_s is not None:
        return "as the plan predicts"
    return "not known: write nodes and time" if stage.gpu_s is None else "at most, by the time limit"


class OverBudgetError(ConfigError):
    """More than the limit, and nobody said that it does not matter."""

    exit_code = 1


def check_budget(found: Estimate, *, warn_gpu_hours: float | None, limit_gpu_hours: float | None) -> list[str]:
    """Warnings; more than the limit is refused. A limit cannot be held to where a stage's size is not known."""
    hours = found.num_gpu_hours
    if limit_gpu_hours is not None:
        if found.unknown:
            raise OverBudgetError(
                f"the limit of {limit_gpu_hours:g} GPU-hours cannot be held to: stage {found.unknown[0]} does not say "
                "its nodes, GPUs and time; write them, or give --force"
            )
        if hours > limit_gpu_hours:
            raise OverBudgetError(
                f"the graph may use {hours:.4g} GPU-hours, over the limit of {limit_gpu_hours:g}: "
                "shorten it, give --cut to drop the last items, or --force"
            )
    if warn_gpu_hours is not None and hours > warn_gpu_hours:
        return [f"the graph may use {hours:.4g} GPU-hours, more than the {warn_gpu_hours:g} to be warned of"]
    return []


def cut_to(graph: Graph, limit_gpu_hours: float) -> tuple[Graph, dict[str, tuple[str, ...]]]:
    """The graph with the first items of each sweep that fit into the limit, and the items that are dropped.

    Stages that follow each other item by item lose the same items. Jobs without items are never dropped.
    """
    limit_s = limit_gpu_hours * HOUR_S
    groups = _sweeps(graph)
    swept = {name for group in groups for name in group}
    left_s = limit_s - sum(s.gpu_s or 0.0 for s in graph.stages.values() if s.name not in swept)
    kept: dict[str, int] = {}
    for group in groups:
        one_s = sum(graph.stages[name].gpu_s_per_item or 0.0 for name in group)
        most = graph.stages[group[0]].num_items
        # A little more than the quotient, so that a limit that is met exactly is met.
        fits = most if one_s == 0.0 else min(most, max(int(left_s / one_s * (1.0 + 1e-12)), 0))
        left_s -= fits * one_s
        if fits == 0:
            raise OverBudgetError(
                f"not one item of stage {group[0]} fits into {limit_gpu_hours:g} GPU-hours: raise the limit, or --force"
            )
        kept |= dict.fromkeys(group, fits)
    dropped = {n: graph.stages[n].items[k:] for n, k in kept.items() if k < graph.stages[n].num_items}
    return with_items(graph, kept), dropped


def _sweeps(graph: Graph) -> list[list[str]]:
    """Stages with items, those together that are tied item by item."""
    groups: list[list[str]] = []
    for name, stage in graph.stages.items():
        if not stage.items:
            continue
        tied = [up for up, relation in stage.after.items() if relation == "corr"]
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
    """Energy by the nodes' own sensors; None: not every job has it."""
    source: str

    @property
    def num_gpu_hours(self) -> float:
        return self.gpu_s / HOUR_S


def parse_usage(text: str) -> Usage:
    """What `sacct -n -P -X -D -o USAGE_FIELDS` prints: every attempt of every job."""
    jobs: set[str] = set()
    gpu_s, joules, is_whole = 0.0, 0.0, True
    for line in text.splitlines():
        parts = line.split("|")
        if len(parts) != 6 or not parts[3].isdigit():
            continue
        jobs.add(parts[0])
        used_s = float(parts[3]) * num_gpus(parts[4])
        gpu_s += used_s
        sensed = float(parts[5]) if parts[5].replace(".", "", 1).isdigit() else 0.0
        joules += sensed
        is_whole = is_whole and (sensed > 0 or used_s == 0)
    return Usage(
        num_jobs=len(jobs), gpu_s=gpu_s, measured_j=joules if is_whole and joules > 0 else None,
        source="the scheduler's accounts",
    )  # fmt: skip


def num_gpus(tres: str) -> int:
    """GPUs in a list of trackable resources: `billing=8,cpu=8,gres/gpu=4,node=1`."""
    if match := _GPUS.search(tres):
        return int(match.group(1))
    return sum(int(n) for n in _TYPED_GPUS.findall(tres))


def usage_of(manifests: Iterable[Manifest]) -> Usage:
    """What the queue told the driver; time lost to requeues is not in it."""
    jobs = [job for manifest in manifests for job in manifest.jobs if job.id]
    gpu_s = sum(job.elapsed_s * job.num_gpus for job in jobs)
    return Usage(
        num_jobs=len(jobs), gpu_s=gpu_s, measured_j=None, source="the queue, as drivers saw it; requeues not counted"
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
    """Device time as energy, money and carbon."""

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
    """Energy by the nodes' sensors where there are any, else that of boards that are fully busy: an upper end."""
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
