"""Launches of graphs as commands see them: start one, open one, say how it stands and what it used."""

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
from scalewright.launch.graph.graph import Graph, RetryRule, Stage, load_graph, resolve
from scalewright.launch.graph.job_scripts import stage_scripts
from scalewright.launch.graph.manifest import ALONE, BusyError, Job, LaunchFolder, Manifest, environment_errors
from scalewright.launch.graph.outcome import tail
from scalewright.launch.graph.progress import StageView, Wanted, views
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
_DAY = re.compile(r"^\d{4}-\d{2}-\d{2}$")
_ACCOUNT = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A launch and how its stages stand."""

    folder: LaunchFolder
    graph: Graph
    manifest: Manifest

    @property
    def stages(self) -> dict[str, StageView]:
        return views(self.graph, self.manifest)

    @property
    def is_ok(self) -> bool:
        return not self.manifest.is_stopped and all(view.all_ok or view.is_skipped for view in self.stages.values())

    @property
    def needs_driver(self) -> bool:
        """Whether something is left that only a driver can submit."""
        if self.manifest.is_stopped:
            return False
        seen = self.stages.values()
        waiting = any(not v.is_skipped and len(v.parts) < v.num_parts for v in seen)
        return waiting or any(not v.is_final and v.stage.retries.limit for v in seen)

    def as_dict(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder.path),
            "name": self.graph.name,
            "stopped": self.manifest.is_stopped,
            "stages": {name: self._stage(view) for name, view in self.stages.items()},
            "jobs": [_job(job) for job in self.manifest.jobs],
        }

    def _stage(self, view: StageView) -> dict[str, Any]:
        skipped = self.manifest.skipped.get(view.stage.name)
        return {
            "num_items": view.stage.num_items,
            "states": dict(view.counts()),
            "final": view.is_final,
            "ok": view.all_ok,
            **({} if skipped is None else {"skipped": skipped}),
        }


def _job(job: Job) -> dict[str, Any]:
    names = ("id", "stage", "part", "attempt", "tasks", "dependency", "reason", "elapsed_s", "run_dir")
    states = dict(job.states) or {"pending" if job.id else "planned": job.tasks}
    return {name: getattr(job, name) for name in names} | {"exclude": list(job.exclude), "states": states}


def slurm(say: Say) -> Slurm:
    return Slurm(runner=Runner(say=say))


def read_graph(path: Path, *, site: str, catalog: Path | None) -> tuple[Graph, Site | None]:
    """A graph file, resolved against its site."""
    file = load_graph_file(path)
    if site:
        file = file.model_copy(update={"site": site})
    profile = site_named(file.site, catalog) if file.site else None
    gpus = 0 if profile is None or profile.gpus_per_node is None else profile.gpus_per_node.value
    return resolve(file, path, gpus_of_site=lambda: gpus), profile


def dry_scripts(graph: Graph, site: Site | None, out: Path | None) -> None:
    """Render every script and keep none: what would be refused is refused."""
    folder = LaunchFolder((out or Path("runs") / graph.name).absolute())
    for stage in graph.stages.values():
        stage_scripts(graph, stage, folder, site, MAX_ARRAY_TASKS)


@dataclass(slots=True, kw_only=True)
class NewLaunch(Driver):
    """A driver whose folder is new. If not one job is taken, the folder goes again."""

    def begin_and_act(self) -> None:
        try:
            self.begin()
            self.act()
        except ScalewrightError:
            if not self.folder.exists() or not self.folder.read().jobs:
                shutil.rmtree(self.folder.path, ignore_errors=True)
            raise


def start_launch(graph: Graph, site: Site | None, out: Path | None, *, say: Say) -> tuple[NewLaunch, LaunchFolder]:
    """A driver for a new launch in an empty folder."""
    check_sbatch()
    folder = LaunchFolder((out or Path("runs") / new_run_id(graph.name)).absolute())
    if folder.exists():
        raise ConfigError(f"{folder.path}: holds a launch already: go on with scalewright jobs resume, or name another")
    if folder.path.exists() and any(folder.path.iterdir()):
        raise ConfigError(f"{folder.path}: is not empty: choose a new folder with --out")
    driver = NewLaunch(folder=folder, graph=graph, slurm=slurm(say), site=site, say=say)
    say(f"launch folder {folder.path}")
    return driver, folder


def submit_alone(request: JobRequest, site: Site, *, items: Sequence[str], say: Say) -> str:
    """Submit the one script in a run directory and write it down there; again is another attempt. Its id."""
    folder = LaunchFolder(request.run_dir)
    driver = Driver(folder=folder, graph=_alone(request, site, items), slurm=slurm(say))
    with folder.held():
        if folder.exists():
            driver.take_up()
        else:
            driver.manifest = new_manifest(request.name, max(len(items), 1))
        write_document(folder.graph, driver.graph.as_document())
        tasks = tuple(range(max(len(items), 1)))
        driver.submit([Wanted(stage=ALONE, part=0, attempt=len(driver.manifest.jobs), tasks=tasks)])
    return driver.manifest.jobs[-1].id


def _alone(request: JobRequest, site: Site, items: Sequence[str]) -> Graph:
    gpus = request.gpus_per_node or (0 if site.gpus_per_node is None else site.gpus_per_node.value)
    stage = Stage(
        name=ALONE, command=request.command, script=None, plan=None, options={"num_spares": request.num_spares},
        num_nodes=request.num_nodes, gpus_per_node=gpus, walltime_s=request.walltime_s, items=tuple(items), after={},
        singleton=False, gate=None, width=1 if request.array is None else request.array.max_running,
        retries=RetryRule(limit=0, backoff_s=0.0, longest_s=0.0),
    )  # fmt: skip
    return Graph(
        name=request.name, site=site.id, folder=request.work_dir, stages={ALONE: stage}, exclude_after=2,
        warn_gpu_hours=None, limit_gpu_hours=None, system="",
    )  # fmt: skip


def open_launch(path: Path, *, say: Say) -> Driver:
    folder = LaunchFolder(path.absolute())
    folder.read()
    return Driver(folder=folder, graph=load_graph(folder.graph), slurm=slurm(say), say=say)


def cancel_launch(path: Path, stages: Sequence[str], *, say: Say) -> list[str]:
    """End the jobs of a launch, or of some stages. A driver that is at work there is asked to end as well."""
    driver = open_launch(path, say=say)
    for name in stages:
        if name not in driver.graph.stages:
            raise UnknownNameError("stage", name, driver.graph.stages)
    if not stages:
        with environment_errors(driver.folder.path):
            driver.folder.stop.touch()
    try:
        with driver.folder.held():
            driver.take_up()
            return driver.cancel(stages)
    except BusyError:
        jobs = driver.folder.read().jobs
        ids = [job.id for job in jobs if job.id and not job.is_settled and (not stages or job.stage in stages)]
        if ids:
            driver.slurm.cancel(ids)
        return ids


def glance(folders: Sequence[LaunchFolder], *, say: Say) -> list[Standing]:
    """How launches stand, with one look at the queue for all. Nothing is written: drivers may be at work."""
    scheduler = slurm(say)
    drivers = [Driver(folder=f, graph=load_graph(f.graph), slurm=scheduler, say=say) for f in folders]
    asked: dict[str, list[int]] = {}
    for driver in drivers:
        driver.manifest = driver.folder.read()
        asked |= driver.open_tasks()
    try:
        statuses = scheduler.status(asked) if asked else {}
        for driver in drivers:
            driver.learn(statuses)
    except EnvironmentFailedError as error:
        say(f"{error}; shown is what was known before")
    return [Standing(folder=d.folder, graph=d.graph, manifest=d.manifest) for d in drivers]


def log_ends(
    folder: LaunchFolder, stages: Sequence[str], *, item: int | None, num_lines: int
) -> list[tuple[Path, str]]:
    """The last lines of the newest log of each item; failed items first, and not more than can be read."""
    latest: dict[tuple[str, int], tuple[Job, int, JobState]] = {}
    for job in folder.read().jobs:
        for task, state in job.task_states().items():
            latest[job.stage, job.first_item + task] = (job, task, state)
    chosen = [
        found for (stage, number), found in latest.items()
        if (not stages or stage in stages) and item in (None, number)
    ]  # fmt: skip
    chosen.sort(key=lambda found: found[2].is_ok or not found[2].is_settled)
    ends = ((job.log(task), tail(job.log(task), 64 * units.KIB)) for job, task, _ in chosen)
    return [(path, "\n".join(text.splitlines()[-num_lines:])) for path, text in ends if text][:MAX_LOGS]


def spent_by_launches(folders: Iterable[LaunchFolder], *, say: Say) -> Usage:
    """From the accounts where the cluster keeps any, else from what drivers saw."""
    manifests = [folder.read() for folder in folders]
    ids = [job.id for manifest in manifests for job in manifest.jobs if job.id]
    if not ids:
        return usage_of(manifests)
    scheduler = slurm(say)
    try:
        return added([parse_usage(text) for text in scheduler.usage(ids, USAGE_FIELDS)])
    except ScalewrightError as error:
        say(f"{error}; counting what drivers saw")
        return usage_of(manifests)


def spent_by_account(account: str, since: str, *, say: Say) -> Usage:
    if not _ACCOUNT.match(account):
        raise ConfigError(f"--account {account!r} is not an account's name: use letters, digits and . _ + -")
    if since and not _DAY.match(since):
        raise ConfigError(f"--since {since!r} is not a day: write it like 2026-01-31")
    start = [f"--starttime={since}"] if since else ["--starttime=1970-01-01"]
    asked = ["-X", "-D", "--allusers", f"--accounts={account}", *start, "-o", USAGE_FIELDS]
    return parse_usage(slurm(say).accounts(asked))
