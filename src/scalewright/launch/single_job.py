"""One job from what was asked to the scheduler's queue: a plan's run, or any command."""

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
from scalewright.launch.script.request import JobRequest, JobScript
from scalewright.records.documents import document, read_document, write_document, write_text
from scalewright.records.run_directory import RunDirectory, new_run_id
from scalewright.sites.scheduler import Runner
from scalewright.sites.types import Site
from scalewright.sites.walltime import HOUR_S
from scalewright.workload.language_run import DeviceKind

STARTS_RANKS = frozenset({"torchrun", "deepspeed", "accelerate", "mpirun", "mpiexec", "srun"})
"""Programs that a job script of ours takes the place of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is to run."""

    command: tuple[str, ...]
    plan: dict[str, Any] | None = None
    planned: PlannedJob | None = None


def read_work(words: tuple[str, ...], device: DeviceKind) -> Work:
    """One word that ends in .json is a plan; all else is a command. A plan wants GPUs unless told otherwise."""
    if len(words) != 1 or not words[0].endswith(".json"):
        if device != "auto":
            raise ConfigError(f"--device {device} is for plans: a command chooses its device itself, leave it out")
        return Work(command=words)
    plan = read_document(Path(words[0]), "plan")
    planned = planned_job(plan, where=words[0], device="cuda" if device == "auto" else device)
    return Work(command=words, plan=plan, planned=planned)


def job_request(
    work: Work,
    site: Site,
    options: Mapping[str, Any],
    *,
    num_nodes: int | None,
    gpus_per_node: int,
    walltime_s: int | None,
    name: str,
    run_dir: Path | None,
) -> JobRequest:
    """The job of a plan or command on a site; `options` by the names of JobRequest."""
    if work.planned is not None:
        if num_nodes is not None or gpus_per_node:
            raise ConfigError("a plan says how many nodes and GPUs it takes: leave out --nodes and --gpus-per-node")
        folder = run_dir or Path("runs") / new_run_id(f"language-{work.planned.config.model_id}")
        return planned_request(
            work.planned, site, options, walltime_s=walltime_s, run_dir=folder.absolute(), work_dir=Path.cwd(),
            name=name or "scalewright",
        )  # fmt: skip
    if num_nodes is None:
        raise ConfigError("how many nodes? give --nodes")
    words = work.command
    if words and Path(words[0]).name in STARTS_RANKS:
        raise ConfigError(
            f"{words[0]} starts ranks itself, and this job would start it once for every GPU: give what it runs "
            "(python train.py) and --launcher torchrun, or leave the launcher to the site"
        )
    program = next((word for word in words if word.endswith((".py", ".sh"))), words[0] if words else "job")
    folder = run_dir or Path("runs") / new_run_id(name or Path(program).stem or "job")
    return JobRequest(
        command=words, num_nodes=num_nodes, gpus_per_node=gpus_per_node, walltime_s=walltime_s or 0,
        name=name or "scalewright", run_dir=folder.absolute(), work_dir=Path.cwd(), **options,
    )  # fmt: skip


def write_job(
    work: Work, request: JobRequest, script: JobScript, *, items: tuple[str, ...], site: Site, catalog: Catalog
) -> None:
    """The run directory as the job will find it. The same work resumes; other work is refused."""
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


def num_gpu_hours(work: Work, request: JobRequest, site: Site, *, num_items: int) -> float:
    """What a job uses: as the plan predicts, else at most, by its time limit."""
    if work.plan is not None:
        return float(whole_run_of(work.plan, where="the plan")["device_time_s"]) / HOUR_S
    gpus = request.gpus_per_node or site.num_gpus_per_node
    return max(num_items, 1) * request.all_nodes * gpus * request.walltime_s / HOUR_S


def check_limit(hours: float, limit_gpu_hours: float | None) -> None:
    if limit_gpu_hours is not None and hours > limit_gpu_hours:
        raise OverBudgetError(
            f"the job may use {hours:.4g} GPU-hours, over the limit of {limit_gpu_hours:g}: ask for less, "
            "or give --force"
        )


def size_warning(request: JobRequest, site: Site, runner: Runner) -> str:
    """What a queue would not say: a job larger than its partition is taken, and waits for ever. Empty: it fits."""
    wanted = request.partition or site.select.partition
    try:
        text = runner.call(["sinfo", "-h", "-o", "%P|%D"])
    except EnvironmentFailedError:
        return ""  # sbatch comes next, and has the better words
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, _, count = line.strip().partition("|")
        wanted = wanted or (name[:-1] if name.endswith("*") else "")
        found[name.rstrip("*")] = found.get(name.rstrip("*"), 0) + int(count or 0)
    if not 0 < found.get(wanted, 0) < request.all_nodes:
        return ""
    return (
        f"partition {wanted} has {found[wanted]} nodes and {request.all_nodes} are asked for: Slurm may take the job "
        "and never start it; ask for fewer"
    )


def next_commands(request: JobRequest, job: str) -> dict[str, str]:
    """What one does with a job that was submitted."""
    folder = quote(str(request.run_dir))
    return {
        "how it stands": f"scalewright jobs list {folder}",
        "what it says": f"scalewright jobs logs {folder}",
        "why it waits": f"scalewright advise --job {job}",
        "to end it": f"scalewright jobs cancel {folder}",
    }
