"""A stored plan made into a job: the run that its best layout describes, how many nodes, how long."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, cast, get_args

from scalewright.catalog.types import TransformerShape
from scalewright.errors import ConfigError, DocumentError, NotExpressedError
from scalewright.launch.script.request import JobRequest
from scalewright.launch.script.resolve import longest_s
from scalewright.records.loader import validate
from scalewright.sites.types import Site
from scalewright.sites.walltime import HOUR_S, MINUTE_S, format_walltime
from scalewright.workload.language_run import DeviceKind, LanguageRun, RunPrecision
from scalewright.workload.layout import parse_layout

MARGIN = 1.2
"""A job asks for this much more than the upper end of what is predicted, and no more: short jobs start sooner."""
SHORTEST_S = 10 * MINUTE_S
VOCAB_MULTIPLE = 128
"""Vocabularies are padded to a multiple of this times tp, as Megatron-LM does."""
SAVES_PER_NOTICE = 3.0
"""The notice leaves room for three writes of a checkpoint, the step that is under way among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """What a plan says about the job that carries it out."""

    config: LanguageRun
    plan_id: str
    system: str
    num_nodes: int
    gpus_per_node: int
    predicted_s: float
    """Upper end of the whole run's interval."""
    checkpoint_s: float
    prediction: dict[str, Any]
    notes: tuple[str, ...] = ()


def whole_run_of(plan: dict[str, Any], *, where: str) -> dict[str, Any]:
    """How long the run of a plan is, and what it takes."""
    whole = plan.get("whole_run")
    if not isinstance(whole, dict):
        raise ConfigError(
            f"{where}: does not say how long the run is: plan again with --steps or --tokens, on a system with "
            "catalogued storage"
        )
    return whole


def planned_job(plan: dict[str, Any], *, where: str, device: DeviceKind = "cuda") -> PlannedJob:
    """The job of a plan document; one that our reference training cannot carry out is refused with the reason."""
    best = plan.get("best")
    if not plan.get("fits") or not isinstance(best, dict):
        raise ConfigError(f"{where}: holds no layout that fits: plan again with more nodes, then launch that")
    whole = whole_run_of(plan, where=where)
    if best.get("stage") != "pretrain":
        raise NotExpressedError(
            f"{where}: is a plan for stage {best.get('stage')!r}, which is not run from a plan: "
            "launch the engine's own command instead, after --"
        )
    try:
        per_node = int(best["input"]["machine"]["gpus_per_node"])
        num_gpus, num_nodes = int(plan["num_gpus"]), int(plan["num_nodes"])
        config, notes = _config(best, whole, where, device)
        job = PlannedJob(
            config=config,
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
        raise DocumentError(f"{where}: is not a whole plan ({error!r}); make it again with plan --out") from error
    if num_gpus != job.gpus_per_node * num_nodes:
        raise ConfigError(f"{where}: {num_gpus} GPUs do not fill {num_nodes} nodes evenly: plan with --nodes")
    return job


def _config(
    best: dict[str, Any], whole: dict[str, Any], where: str, device: DeviceKind
) -> tuple[LanguageRun, tuple[str, ...]]:
    precision = str(best["input"]["precision"])
    if precision not in get_args(RunPrecision):
        raise NotExpressedError(
            f"{where}: precision {precision} is not one that the reference training runs "
            f"({', '.join(get_args(RunPrecision))}): plan again with --precision"
        )
    source = {"kind": "assumed", "text": f"the plan, {where}", "checked": date.min}
    layout = parse_layout(str(best["layout_text"]))
    shape = validate({**best["input"]["shape"], "source": source}, TransformerShape, where=f"{where}, shape")
    notes: tuple[str, ...] = ()
    if shape.vocab % int(layout.tp):
        padded = -(-shape.vocab // (VOCAB_MULTIPLE * int(layout.tp))) * VOCAB_MULTIPLE * int(layout.tp)
        notes = (f"the vocabulary is padded from {shape.vocab} to {padded}, which tp={layout.tp} divides",)
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
        notes = (*notes, "the ranks run on CPUs: a rehearsal, whose times are not those of the plan")
    return config, notes


def check_node_size(gpus_per_node: int, site: Site) -> None:
    there = site.num_gpus_per_node
    if there and gpus_per_node > there:
        raise ConfigError(
            f"the plan has {gpus_per_node} GPUs per node, a node of {site.name} has {there}: plan again "
            + (f"with --system {site.system}" if site.system else "for a system with such nodes")
        )


def check_site(job: PlannedJob, site: Site) -> tuple[str, ...]:
    """Notes where the plan was made for another machine; refused where its nodes are not those of the site."""
    check_node_size(job.gpus_per_node, site)
    if site.system is not None and job.system != site.system:
        return (*job.notes, f"the plan was made for {job.system}, not for {site.system}: its times do not hold here")
    return job.notes


def planned_walltime_s(job: PlannedJob, site: Site, *, partition: str, qos: str) -> tuple[int, tuple[str, ...]]:
    """The time to ask for, at most the longest that the site allows, and what that means."""
    wanted = max(math.ceil(MARGIN * job.predicted_s / MINUTE_S) * MINUTE_S, SHORTEST_S)
    chosen = partition or site.select.partition
    limit = longest_s(site, partition=chosen, qos=qos or site.select.qos, num_nodes=job.num_nodes)
    if limit is None:
        if wanted > 24 * HOUR_S:
            raise ConfigError(
                f"the plan takes up to {format_walltime(wanted)} and the profile {site.id} knows no limit: give --time"
            )
        return wanted, ()
    if wanted <= limit[0]:
        return wanted, ()
    num_jobs = math.ceil(wanted / limit[0])
    note = (
        f"the run takes up to {format_walltime(wanted)}: the job saves and is queued again, about {num_jobs} times "
        f"{format_walltime(limit[0])}, the longest for {limit[1]}"
    )
    return limit[0], (note,)


def planned_notice_s(job: PlannedJob, walltime_s: int) -> int:
    """Time to save before the end: never less than two minutes, except in jobs that are hardly longer."""
    step_s = float(job.prediction["step_time_s"])
    wanted = max(120.0, 60.0 + step_s + SAVES_PER_NOTICE * job.checkpoint_s)
    return max(min(math.ceil(wanted), walltime_s // 4), 10)


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
    """The job that carries a plan out; `options` by the names of JobRequest, no time limit means the predicted one."""
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
