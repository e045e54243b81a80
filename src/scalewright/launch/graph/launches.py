"""Launches of graphs, for the commands: start, open, cancel, show progress, and count what they used."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalewright import units
from scalewright.errors import ConfigError, EnvironmentFailedError, ScalewrightError, UnknownNameError
from scalewright.launch.graph.budget import USAGE_FIELDS, Usage, added, parse_usage, usage_of
from scalewright.launch.graph.driver import MAX_ARRAY_TASKS, Driver, new_manifest
from scalewright.launch.graph.file import load_graph_file
from scalewright.launch.graph.graph import Graph, GraphJob, RetryRule, load_graph, resolve
from scalewright.launch.graph.job_scripts import graph_job_scripts
from scalewright.launch.graph.manifest import (
    ALONE,
    BusyError,
    LaunchFolder,
    LaunchManifest,
    SlurmJob,
    environment_errors,
)
from scalewright.launch.graph.outcome import tail
from scalewright.launch.graph.progress import GraphJobView, JobToSubmit, views
from scalewright.launch.script.request import JobRequest
from scalewright.launch.slurm.commands import Slurm
from scalewright.launch.slurm.job_state import JobState
from scalewright.launch.slurm.sbatch import check_sbatch
from scalewright.records.documents import write_document
from scalewright.records.run_directory import new_run_id
from scalewright.sites.current import site_named
from scalewright.sites.scheduler import Runner
from scalewright.sites.types import Site

Say = Callable[[str], object]
MAX_LOGS = 20
LOG_TAIL_BYTES = 64 * units.KIB
_DAY = re.compile(r"^\d{4}-\d{2}-\d{2}$")
_ACCOUNT = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchProgress:
    """A launch and the progress of its jobs."""

    folder: LaunchFolder
    graph: Graph
    manifest: LaunchManifest

    @property
    def jobs(self) -> dict[str, GraphJobView]:
        return views(self.graph, self.manifest)

    @property
    def is_ok(self) -> bool:
        return not self.manifest.is_stopped and all(view.all_ok or view.is_skipped for view in self.jobs.values())

    @property
    def needs_driver(self) -> bool:
        """Whether jobs remain that only a driver can submit."""
        if self.manifest.is_stopped:
            return False
        views_of_jobs = self.jobs.values()
        waiting = any(not v.is_skipped and len(v.parts) < v.num_parts for v in views_of_jobs)
        return waiting or any(not v.is_final and v.graph_job.retries.limit for v in views_of_jobs)

    def as_dict(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder.path),
            "name": self.graph.name,
            "stopped": self.manifest.is_stopped,
            "jobs": {name: self._graph_job(view) for name, view in self.jobs.items()},
            "slurm_jobs": [_slurm_job(job) for job in self.manifest.slurm_jobs],
        }

    def _graph_job(self, view: GraphJobView) -> dict[str, Any]:
        skipped = self.manifest.skipped.get(view.graph_job.name)
        return {
            "num_items": view.graph_job.num_items,
            "states": dict(view.counts()),
            "final": view.is_final,
            "ok": view.all_ok,
            **({} if skipped is None else {"skipped": skipped}),
        }


def _slurm_job(job: SlurmJob) -> dict[str, Any]:
    names = ("part", "attempt", "tasks", "dependency", "reason", "elapsed_s", "run_dir")
    states = dict(job.states) or {"pending" if job.id else "planned": job.tasks}
    body = {"id": job.id, "job": job.graph_job} | {name: getattr(job, name) for name in names}
    return body | {"exclude": list(job.exclude), "states": states}


def slurm(say: Say) -> Slurm:
    return Slurm(runner=Runner(say=say))


def read_graph(path: Path, *, site: str, catalog: Path | None) -> tuple[Graph, Site | None]:
    """The graph of a file, and the profile of its site."""
    file = load_graph_file(path)
    if site:
        file = file.model_copy(update={"site": site})
    profile = site_named(file.site, catalog) if file.site else None
    gpus = 0 if profile is None else profile.num_gpus_per_node
    return resolve(file, path, gpus_of_site=lambda: gpus), profile


def dry_scripts(graph: Graph, site: Site | None, out: Path | None) -> None:
    """Render every script and write none, so that a dry run refuses what a submission would refuse."""
    folder = LaunchFolder((out or Path("runs") / graph.name).absolute())
    for graph_job in graph.jobs.values():
        graph_job_scripts(graph, graph_job, folder, site, MAX_ARRAY_TASKS)


@dataclass(slots=True, kw_only=True)
class NewLaunch(Driver):
    """The driver of a new launch. If Slurm accepts no job, the folder is removed again."""

    def begin_and_act(self) -> None:
        try:
            self.begin()
            self.act()
        except ScalewrightError:
            if not self.folder.exists() or not self.folder.read().slurm_jobs:
                shutil.rmtree(self.folder.path, ignore_errors=True)
            raise


def start_launch(graph: Graph, site: Site | None, out: Path | None, *, say: Say) -> tuple[NewLaunch, LaunchFolder]:
    """A driver for a new launch in an empty folder."""
    check_sbatch()
    folder = LaunchFolder((out or Path("runs") / new_run_id(graph.name)).absolute())
    if folder.exists():
        raise ConfigError(
            f"{folder.path}: holds a launch already: continue it with scalewright jobs resume {folder.path}, or choose "
            "another folder with --out"
        )
    if folder.path.exists() and any(folder.path.iterdir()):
        raise ConfigError(f"{folder.path}: is not empty: choose a new folder with --out")
    driver = NewLaunch(folder=folder, graph=graph, slurm=slurm(say), site=site, say=say)
    say(f"launch folder {folder.path}")
    return driver, folder


def submit_alone(request: JobRequest, site: Site, *, items: Sequence[str], say: Say) -> str:
    """Submit the only script of a run directory and record it there. Returns its id; a second call is a new attempt."""
    folder = LaunchFolder(request.run_dir)
    driver = Driver(folder=folder, graph=_graph_of_one(request, site, items), slurm=slurm(say))
    with folder.held():
        if folder.exists():
            driver.take_up()
        else:
            driver.manifest = new_manifest(request.name, max(len(items), 1))
        write_document(folder.graph, driver.graph.as_document())
        tasks = tuple(range(max(len(items), 1)))
        driver.submit([JobToSubmit(graph_job=ALONE, part=0, attempt=len(driver.manifest.slurm_jobs), tasks=tasks)])
    return driver.manifest.slurm_jobs[-1].id


def _graph_of_one(request: JobRequest, site: Site, items: Sequence[str]) -> Graph:
    gpus = request.gpus_per_node or site.num_gpus_per_node
    graph_job = GraphJob(
        name=ALONE, command=request.command, script=None, plan=None, options={"num_spares": request.num_spares},
        num_nodes=request.num_nodes, gpus_per_node=gpus, walltime_s=request.walltime_s, items=tuple(items), after={},
        singleton=False, gate=None, width=1 if request.array is None else request.array.max_running,
        retries=RetryRule(limit=0, backoff_s=0.0, longest_s=0.0),
    )  # fmt: skip
    return Graph(
        name=request.name, site=site.id, folder=request.work_dir, jobs={ALONE: graph_job}, exclude_after=2,
        warn_gpu_hours=None, limit_gpu_hours=None, system="",
    )  # fmt: skip


def open_launch(path: Path, *, say: Say) -> Driver:
    folder = LaunchFolder(path.absolute())
    folder.read()
    return Driver(folder=folder, graph=load_graph(folder.graph), slurm=slurm(say), say=say)


def cancel_launch(path: Path, graph_jobs: Sequence[str], *, say: Say) -> list[str]:
    """Cancel the jobs of a launch, or some of them, and return the Slurm ids. A running driver is asked to end too."""
    driver = open_launch(path, say=say)
    check_job_names(driver.graph, graph_jobs)
    if not graph_jobs:
        with environment_errors(driver.folder.path):
            driver.folder.stop.touch()
    try:
        with driver.folder.held():
            driver.take_up()
            return driver.cancel(graph_jobs)
    except BusyError:
        open_jobs = [job for job in driver.folder.read().slurm_jobs if job.id and not job.has_ended]
        ids = [job.id for job in open_jobs if not graph_jobs or job.graph_job in graph_jobs]
        if ids:
            driver.slurm.cancel(ids)
        return ids


def check_job_names(graph: Graph, names: Sequence[str]) -> None:
    """Refuse a name that is not one of the graph's jobs."""
    for name in names:
        if name not in graph.jobs:
            raise UnknownNameError("job", name, graph.jobs)


def current_progress(folders: Sequence[LaunchFolder], *, say: Say) -> list[LaunchProgress]:
    """The progress of launches, with one squeue for all of them. Writes nothing, because drivers may be running."""
    scheduler = slurm(say)
    drivers = [Driver(folder=f, graph=load_graph(f.graph), slurm=scheduler, say=say) for f in folders]
    open_tasks: dict[str, list[int]] = {}
    for driver in drivers:
        driver.manifest = driver.folder.read()
        open_tasks |= driver.open_tasks()
    try:
        statuses = scheduler.status(open_tasks) if open_tasks else {}
        for driver in drivers:
            driver.learn(statuses)
    except EnvironmentFailedError as error:
        say(f"{error}; showing the last recorded states")
    return [LaunchProgress(folder=d.folder, graph=d.graph, manifest=d.manifest) for d in drivers]


def log_ends(
    folder: LaunchFolder, graph_jobs: Sequence[str], *, item: int | None, num_lines: int
) -> list[tuple[Path, str]]:
    """The last lines of the newest log of each item: failed items first, at most MAX_LOGS logs."""
    latest: dict[tuple[str, int], tuple[SlurmJob, int, JobState]] = {}
    for job in folder.read().slurm_jobs:
        for task, state in job.task_states().items():
            latest[job.graph_job, job.first_item + task] = (job, task, state)
    chosen = [
        attempt for (graph_job, number), attempt in latest.items()
        if (not graph_jobs or graph_job in graph_jobs) and item in (None, number)
    ]  # fmt: skip
    chosen.sort(key=lambda attempt: attempt[2].is_ok or not attempt[2].has_ended)
    ends = ((job.log(task), tail(job.log(task), LOG_TAIL_BYTES)) for job, task, _ in chosen)
    return [(path, "\n".join(text.splitlines()[-num_lines:])) for path, text in ends if text][:MAX_LOGS]


def spent_by_launches(folders: Iterable[LaunchFolder], *, say: Say) -> Usage:
    """Usage from Slurm's accounting where the cluster has it, else from the manifests."""
    manifests = [folder.read() for folder in folders]
    ids = [job.id for manifest in manifests for job in manifest.slurm_jobs if job.id]
    if not ids:
        return usage_of(manifests)
    scheduler = slurm(say)
    try:
        return added([parse_usage(text) for text in scheduler.usage(ids, USAGE_FIELDS)])
    except ScalewrightError as error:
        say(f"{error}; using the times recorded in the launch folders")
        return usage_of(manifests)


def spent_by_account(account: str, since: str, *, say: Say) -> Usage:
    if not _ACCOUNT.match(account):
        raise ConfigError(f"--account {account!r} is not an account's name: use letters, digits and . _ + -")
    if since and not _DAY.match(since):
        raise ConfigError(f"--since {since!r} is not a day: write it like 2026-01-31")
    start = [f"--starttime={since}"] if since else ["--starttime=1970-01-01"]
    return parse_usage(
        slurm(say).accounts(["-X", "-D", "--allusers", f"--accounts={account}", *start, "-o", USAGE_FIELDS])
    )
