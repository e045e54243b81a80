"""The job of a stored plan: the run of its best layout, the nodes, the time limit and the notice."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import date
from pathlib import Path
from typing import Any, cast, get_args

from scalewright.catalog.types import TransformerShape
from scalewright.errors import ConfigError, DocumentError, NotExpressedError
from scalewright.launch.script.request import JobRequest
from scalewright.records.loader import validate
from scalewright.sites.job_limits import longest_s
from scalewright.sites.types import Site
from scalewright.sites.walltime import HOUR_S, MINUTE_S, format_walltime
from scalewright.workload.language_run import LanguageRun, RunPrecision
from scalewright.workload.layout import parse_layout
from scalewright.workload.run_options import DeviceKind

MARGIN = 1.2
"""Requested time over the upper end of the prediction. It is not larger, because short jobs start sooner."""
SHORTEST_S = 10 * MINUTE_S
VOCAB_MULTIPLE = 128
"""Vocabularies are padded to a multiple of this times tp, as Megatron-LM does."""
SAVES_PER_NOTICE = 3.0
"""The notice leaves time for three writes of a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOutline:
    """The run of a plan: its nodes, its times and its prediction, whatever program trains."""

    plan_id: str
    system: str
    num_nodes: int
    gpus_per_node: int
    predicted_s: float
    """Upper end of the interval of the whole run."""
    checkpoint_s: float
    prediction: dict[str, Any]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob(PlanOutline):
    """The job that runs a plan with our reference training."""

    config: LanguageRun


def whole_run_of(plan: dict[str, Any], *, where: str) -> dict[str, Any]:
    """The part of a plan document about the whole run: its length, time and device time."""
    whole = plan.get("whole_run")
    if not isinstance(whole, dict):
        raise ConfigError(
            f"{where}: does not give the length of the run: plan again with --steps or --tokens, on a system with "
            "catalogued storage"
        )
    return whole


def planned_job(plan: dict[str, Any], *, where: str, device: DeviceKind = "cuda") -> PlannedJob:
    """The job of a plan document. A plan that our reference training cannot run is refused with the reason."""
    best = plan.get("best")
    if not plan.get("fits") or not isinstance(best, dict):
        raise ConfigError(f"{where}: has no layout that fits: plan again with more nodes, then launch that plan")
    whole = whole_run_of(plan, where=where)
    if best.get("stage") != "pretrain":
        raise NotExpressedError(
            f"{where}: is a plan for stage {best.get('stage')!r}, and only pretrain runs from a plan: "
            "launch the command of your engine instead, after --"
        )
    try:
        config, notes = _config(best, whole, where, device)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise _incomplete(where, error) from error
    run = planned_run(plan, best, whole, where=where, notes=notes)
    return PlannedJob(config=config, **{one.name: getattr(run, one.name) for one in fields(run)})


def planned_run(
    plan: dict[str, Any], best: dict[str, Any], whole: dict[str, Any], *, where: str, notes: tuple[str, ...] = ()
) -> PlanOutline:
    """Nodes and times of the run of a plan's best layout."""
    try:
        per_node = int(best["input"]["machine"]["gpus_per_node"])
        num_gpus, num_nodes = int(plan["num_gpus"]), int(plan["num_nodes"])
        run = PlanOutline(
            notes=notes,
            plan_id=str(plan["id"]),
            system=str(plan["system"]).partition("/")[0],
            num_nodes=num_nodes,
            gpus_per_node=min(per_node, num_gpus),
            predicted_s=float(whole["time_interval_s"][1]),
            checkpoint_s=float(whole["checkpoint"]["write_s"]),
            prediction=best,
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise _incomplete(where, error) from error
    if num_gpus != run.gpus_per_node * num_nodes:
        raise ConfigError(f"{where}: {num_gpus} GPUs do not fill {num_nodes} nodes evenly: plan with --nodes")
    return run


def _incomplete(where: str, error: Exception) -> DocumentError:
    return DocumentError(f"{where}: is not a complete plan ({error!r}); make it again with plan --out")


def _config(
    best: dict[str, Any], whole: dict[str, Any], where: str, device: DeviceKind
) -> tuple[LanguageRun, tuple[str, ...]]:
    precision = str(best["input"]["precision"])
    if precision not in get_args(RunPrecision):
        raise NotExpressedError(
            f"{where}: the reference training does not run precision {precision}, only "
            f"{', '.join(get_args(RunPrecision))}: plan again with --precision"
        )
    source = {"kind": "assumed", "text": f"the plan, {where}", "checked": date.min}
    layout = parse_layout(str(best["layout_text"]))
    shape = validate({**best["input"]["shape"], "source": source}, TransformerShape, where=f"{where}, shape")
    notes: tuple[str, ...] = ()
    if shape.vocab % int(layout.tp):
        multiple = VOCAB_MULTIPLE * int(layout.tp)
        padded = math.ceil(shape.vocab / multiple) * multiple
        notes = (f"the vocabulary is padded from {shape.vocab} to {padded}, so that tp={layout.tp} divides it",)
        shape = shape.model_copy(update={"vocab": padded})
    config = LanguageRun(
        model_id=str(best["model"]),
        shape=shape,
        layout=layout,
        precision=cast(RunPrecision, precision),
        steps=int(whole["num_steps"]),
        checkpoint_every="auto",
        device=device,
    )
    if device == "cpu":
        notes = (*notes, "the ranks run on CPUs as a rehearsal: their times are not those of the plan")
    return config, notes


def check_node_size(gpus_per_node: int, site: Site) -> None:
    if site.num_gpus_per_node and gpus_per_node > site.num_gpus_per_node:
        raise ConfigError(
            f"the plan has {gpus_per_node} GPUs per node, a node of {site.name} has {site.num_gpus_per_node}: plan "
            + (f"again with --system {site.system}" if site.system else "again for a system with such nodes")
        )


def check_site(job: PlanOutline, site: Site) -> tuple[str, ...]:
    """The notes of a plan on a site, with one if the plan is for another system. Refuses a plan with larger nodes."""
    check_node_size(job.gpus_per_node, site)
    if site.system is not None and job.system != site.system:
        return (*job.notes, f"the plan is for {job.system}, not for {site.system}: its times are not valid here")
    return job.notes


def planned_walltime_s(job: PlanOutline, site: Site, *, partition: str, qos: str) -> tuple[int, tuple[str, ...]]:
    """The time limit to request, at most the longest that the site allows, and notes about it."""
    needed_s = max(math.ceil(MARGIN * job.predicted_s / MINUTE_S) * MINUTE_S, SHORTEST_S)
    limit = longest_s(
        site, partition=partition or site.select.partition, qos=qos or site.select.qos, num_nodes=job.num_nodes
    )  # fmt: skip
    if limit is None:
        if needed_s > 24 * HOUR_S:
            raise ConfigError(
                f"the plan takes up to {format_walltime(needed_s)}, and profile {site.id} has no limit: give --time"
            )
        return needed_s, ()
    limit_s, rule = limit
    if needed_s <= limit_s:
        return needed_s, ()
    note = (
        f"the run takes up to {format_walltime(needed_s)}: the job saves and is requeued, about "
        f"{math.ceil(needed_s / limit_s)} times {format_walltime(limit_s)}, the limit for {rule}"
    )
    return limit_s, (note,)


def planned_notice_s(job: PlanOutline, walltime_s: int) -> int:
    """Time to save before the end: at least two minutes, but at most a quarter of the job."""
    step_s = float(job.prediction["step_time_s"])
    needed_s = max(120.0, 60.0 + step_s + SAVES_PER_NOTICE * job.checkpoint_s)
    return max(min(math.ceil(needed_s), walltime_s // 4), 10)


def planned_request(
    job: PlannedJob,
    site: Site,
    options: Mapping[str, Any],
    *,
    walltime_s: int | None,
    run_dir: Path,
    work_dir: Path,
    name: str,
) -> JobRequest:
    """The request that runs a plan. `options` has field names of JobRequest; without `walltime_s` it is predicted."""
    notes = check_site(job, site)
    if walltime_s is None:
        walltime_s, more = planned_walltime_s(
            job, site, partition=options.get("partition", ""), qos=options.get("qos", "")
        )
        notes = (*notes, *more)
    has_own_python = any(options.get(name) for name in ("container", "venv", "modules"))
    python = "python" if has_own_python else sys.executable
    return JobRequest(
        command=(python, "-m", "scalewright.run", "language", "--run-dir", str(run_dir)),
        num_nodes=job.num_nodes, gpus_per_node=job.gpus_per_node, walltime_s=walltime_s, run_dir=run_dir,
        work_dir=work_dir, name=name, finds_its_rank=True, notes=notes,
        **{**options, "notice_s": options.get("notice_s") or planned_notice_s(job, walltime_s)},
    )  # fmt: skip
