"""A single job, from the command line to the queue: the run of a plan, or any command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalewright.catalog.library import Catalog
from scalewright.errors import ConfigError, EnvironmentFailedError
from scalewright.launch.graph.budget import OverBudgetError
from scalewright.launch.plan_job import PlannedJob, planned_job, planned_request, whole_run_of
from scalewright.launch.preflight.request import request_of_job
from scalewright.launch.script.quoting import quote
from scalewright.launch.script.request import MAX_REQUEUES, JobRequest, JobScript
from scalewright.records.documents import document, read_document, write_document, write_text
from scalewright.records.run_directory import RunDirectory, new_run_id
from scalewright.sites.scheduler import Runner
from scalewright.sites.types import Site
from scalewright.sites.walltime import HOUR_S
from scalewright.units import grouped
from scalewright.workload.run_options import DeviceKind

STARTS_RANKS = frozenset({"torchrun", "deepspeed", "accelerate", "mpirun", "mpiexec", "srun"})
"""Programs that start ranks. Our job script does that itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWork:
    """What the job runs: a command, or a plan."""

    command: tuple[str, ...]
    plan: dict[str, Any] | None = None
    planned: PlannedJob | None = None


def read_work(words: tuple[str, ...], device: DeviceKind) -> JobWork:
    """The work of the command line. One word that ends in .json is a plan, which runs on GPUs by default."""
    if len(words) != 1 or not words[0].endswith(".json"):
        if device != "auto":
            raise ConfigError(f"--device {device} is for plans only: leave it out, a command chooses its own device")
        return JobWork(command=words)
    plan = read_document(Path(words[0]), "plan")
    planned = planned_job(plan, where=words[0], device="cuda" if device == "auto" else device)
    return JobWork(command=words, plan=plan, planned=planned)


def requeue_note(work: JobWork, request: JobRequest) -> str:
    """How often Slurm may queue the job again, when that ends, and how to change it; empty where it never does."""
    if not request.requeue:
        return ""
    often = (
        f"near its time limit the job is queued again, at most {MAX_REQUEUES} times, until its program finishes "
        "or fails."
    )
    change = f"use --no-requeue, or change max_requeues={MAX_REQUEUES} in the script."
    if work.planned is not None:
        return f"{often} To change that, {change}"
    return f"{often} A program that does not save on USR1 starts over each time: {change}"


def job_request(
    work: JobWork,
    site: Site,
    options: Mapping[str, Any],
    *,
    num_nodes: int | None,
    gpus_per_node: int,
    walltime_s: int | None,
    name: str,
    run_dir: Path | None,
) -> JobRequest:
    """The request for a plan or a command on a site. `options` has field names of JobRequest."""
    if work.planned is not None:
        if num_nodes is not None or gpus_per_node:
            raise ConfigError("the plan already has its nodes and GPUs: leave out --nodes and --gpus-per-node")
        folder = run_dir or Path("runs") / new_run_id(f"language-{work.planned.config.model_id}")
        return planned_request(
            work.planned, site, options, walltime_s=walltime_s, run_dir=folder.absolute(), work_dir=Path.cwd(),
            name=name or "scalewright",
        )  # fmt: skip
    if num_nodes is None:
        raise ConfigError("the number of nodes is missing: give --nodes")
    words = work.command
    if words and Path(words[0]).name in STARTS_RANKS:
        raise ConfigError(
            f"{words[0]} starts ranks itself, and the job would start it once for every GPU: give the command that it "
            "runs (python train.py), and --launcher torchrun if you need torchrun"
        )
    program = next((word for word in words if word.endswith((".py", ".sh"))), words[0] if words else "job")
    folder = run_dir or Path("runs") / new_run_id(name or Path(program).stem or "job")
    return JobRequest(
        command=words, num_nodes=num_nodes, gpus_per_node=gpus_per_node, walltime_s=walltime_s or 0,
        name=name or "scalewright", run_dir=folder.absolute(), work_dir=Path.cwd(), **options,
    )  # fmt: skip


def write_job(
    work: JobWork, request: JobRequest, script: JobScript, *, items: tuple[str, ...], site: Site, catalog: Catalog
) -> None:
    """Write the run directory of the job. The same work resumes; other work is refused."""
    planned = work.planned
    if planned is None:
        body = {"command": list(request.command), "site": site.id, "items": list(items)}
        config, plan_id = document("command-run", body), ""
    else:
        config, plan_id = planned.config.document(), planned.plan_id
    directory = RunDirectory.create_or_resume(request.run_dir, config, plan_id=plan_id)
    if work.plan is not None and planned is not None:
        write_document(directory.plan, work.plan)
        write_document(directory.prediction, planned.prediction)
    if request.array is not None:
        write_text(request.array.manifest, "".join(f"{item}\n" for item in items))
    device = "auto" if planned is None else planned.config.device
    expected = request_of_job(request, site, catalog, device=device)
    write_document(directory.preflight_request, expected.as_document())
    write_text(directory.script, script.text)


def num_gpu_hours(work: JobWork, request: JobRequest, site: Site, *, num_items: int) -> float:
    """GPU-hours that a launch may use: of the plan's whole run where the job queues itself again until that ends, else
    of one job until its time limit."""
    gpus = request.gpus_per_node or site.num_gpus_per_node
    most = max(num_items, 1) * request.all_nodes * gpus * request.walltime_s / HOUR_S
    if work.plan is None:
        return most
    whole = planned_gpu_hours(work.plan)
    return whole if request.requeue else min(most, whole)


def planned_gpu_hours(plan: dict[str, Any]) -> float:
    """GPU-hours of a plan's whole run: what a job that queues itself again uses in the end."""
    return float(whole_run_of(plan, where="the plan")["device_time_s"]) / HOUR_S


def check_limit(hours: float, limit_gpu_hours: float | None) -> None:
    if limit_gpu_hours is not None and hours > limit_gpu_hours:
        raise OverBudgetError(
            f"the job may use {grouped(hours)} GPU-hours, over the limit of {grouped(limit_gpu_hours)}: request "
            "fewer nodes or less time, or give --force"
        )


def large_job_warning(hours: float, site: Site | None, catalog: Catalog, *, what: str = "the job") -> str:
    """A warning above the GPU-hours that the site names, else the catalogue; empty below them."""
    own, usual = None if site is None else site.warn_gpu_hours, catalog.constants().large_request
    threshold = usual.value / HOUR_S if own is None else own.value
    if hours <= threshold:
        return ""
    source = usual.source.text.partition(":")[0] if own is None else own.source.text
    return (
        f"{what} may use {hours:,.0f} GPU-hours, and a request above {threshold:,.0f} deserves a second look "
        f"({source}): try a short job with a few steps first, or set --limit-gpu-hours"
    )


def size_warning(request: JobRequest, site: Site, runner: Runner) -> str:
    """A warning if the job is larger than its partition: Slurm may accept it and never start it. Empty: it fits."""
    names = request.partition or site.select.partition
    try:
        text = runner.call(["sinfo", "-h", "-o", "%P|%D"])
    except EnvironmentFailedError:
        return ""  # sbatch is called next, and its message is better
    num_nodes_of: dict[str, int] = {}
    for line in text.splitlines():
        name, _, count = line.strip().partition("|")
        names = names or (name[:-1] if name.endswith("*") else "")  # the * marks the default partition
        num_nodes_of[name.rstrip("*")] = num_nodes_of.get(name.rstrip("*"), 0) + int(count or 0)
    partitions = names.split(",")
    small = [name for name in partitions if 0 < num_nodes_of.get(name, 0) < request.all_nodes]
    if not small:
        return ""
    has = " and ".join(f"partition {name} has {num_nodes_of[name]} nodes" for name in small)
    then = "never start it" if len(small) == len(partitions) else "start it in another of its partitions only"
    return f"{has}, and {request.all_nodes} are requested: Slurm may accept the job and {then}; request fewer"


def next_commands(request: JobRequest, job: str) -> dict[str, str]:
    """Commands for a submitted job, by what they show or do."""
    folder = quote(str(request.run_dir))
    return {
        "its state": f"scalewright jobs list {folder}",
        "its log": f"scalewright jobs logs {folder}",
        "why it waits": f"scalewright advise --job {job}",
        "cancel it": f"scalewright jobs cancel {folder}",
    }
