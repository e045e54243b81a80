"""Points of a study as Slurm jobs: one array for each group of alike points, and one group after the other.

Nothing here waits. The launch folders inside the results record what was submitted, and the next call reads them and
the queue. A job needs only the results folder: the study file may have changed by the time that it runs.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scalewright.catalog.library import Catalog
from scalewright.errors import ConfigError, ScalewrightError
from scalewright.launch.graph.budget import OverBudgetError, estimate, usage_of
from scalewright.launch.graph.driver import GROWTH, Driver
from scalewright.launch.graph.file import GraphFile, GraphJobTable, Resources
from scalewright.launch.graph.graph import Graph, resolve
from scalewright.launch.graph.launches import LaunchProgress, current_progress, open_launch, start_launch
from scalewright.launch.graph.manifest import LaunchFolder, SlurmJob, find_launches
from scalewright.launch.prepare.outlook import RunTooLargeError
from scalewright.launch.ranks.external import follow_first, rank_of_process
from scalewright.launch.slurm.job_state import JobState
from scalewright.records.documents import read_document
from scalewright.records.types import EnvName, ExitCode, Point
from scalewright.sites.types import Site
from scalewright.study.execute import execute, execution_of
from scalewright.study.file import Measure
from scalewright.study.kinds.registry import kind_named
from scalewright.study.measure import Try
from scalewright.study.pipeline.gate import write_gate
from scalewright.study.pipeline.graph import StageJob, pipeline_jobs
from scalewright.study.pipeline.progress import block_of, gate_of
from scalewright.study.points import Study
from scalewright.study.store import Store
from scalewright.units import HOUR_S, grouped
from scalewright.workload.layout import parse_layout

DEFAULT_TIME_S = 1800
"""Of a point's job, where the study does not say."""
POLL_S = (5.0, 60.0)
"""Shortest and longest time between two looks at the queue."""
Key = tuple[str, int]
"""A point's id and a repeat."""
Shape = tuple[int, int]
"""Nodes, and ranks on each."""
Say = Callable[[str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class InQueue:
    """The latest job of a try."""

    job: str
    state: JobState
    reason: str

    @property
    def is_open(self) -> bool:
        return not self.state.has_ended


def item_of(tried: Try) -> str:
    return f"{tried.point.id}/{tried.repeat}"


def key_of(item: str) -> Key:
    point, _, repeat = item.partition("/")
    if not point or not repeat.isdigit():
        raise ConfigError(f"{item!r} is no try of a point: write POINT/REPEAT, such as {'0' * 12}/0")
    return point, int(repeat)


def launches_of(store: Store) -> list[LaunchFolder]:
    """Every time that points were submitted, oldest first."""
    return find_launches([store.jobs]) if store.jobs.is_dir() else []


def queue_of(launches: Sequence[LaunchProgress]) -> dict[Key, InQueue]:
    """The latest job of every try that has one."""
    latest: dict[Key, InQueue] = {}
    for launch in launches:
        for job in launch.manifest.slurm_jobs:
            items = launch.graph.jobs[job.graph_job].items
            for task, state in job.task_states().items():
                latest[key_of(items[job.first_item + task])] = InQueue(
                    job=f"{job.id}_{task}", state=state, reason=_reason(job, state)
                )
    return latest


def _reason(job: SlurmJob, state: JobState) -> str:
    return "" if state in (JobState.RUNNING, JobState.COMPLETED) else job.reason


def site_name(study: Study, site: str, *, wait: bool) -> str:
    """The site that points run at: as given, or as the study says; empty: they run here."""
    measure = study.file.measure
    name = site or (measure.site if measure is not None and measure.where == "site" else "")
    if wait and not name:
        raise ConfigError(
            f"--wait is for points that run as jobs, and {study.file.id} runs here: give --site, or leave out --wait"
        )
    return name


def open_jobs(drivers: Sequence[Driver]) -> list[str]:
    """Ids of the jobs that have not ended."""
    return [job.id for driver in drivers for job in driver.folder.read().slurm_jobs if not job.has_ended]


def look(store: Store, say: Say = str) -> dict[Key, InQueue]:
    """How the jobs of a study stand, with one look at the queue. Nothing is written."""
    return queue_of(current_progress(launches_of(store), say=say))


def submit(
    study: Study, store: Store, tries: Sequence[Try], site: Site, *, catalog: Path | None, say: Say
) -> list[Driver]:
    """Submit what is neither finished nor in the queue. The drivers of all launches that are not settled."""
    with store.held():
        launches = current_progress(_taken_up(store, say), say=say)
        queue = queue_of(launches)
        open_tries = [
            tried for tried in tries
            if not store.is_finished(tried.point, tried.repeat) and not _is_open(queue, tried)
        ]  # fmt: skip
        open_launches = [s.folder for s in launches if any(not job.has_ended for job in s.manifest.slurm_jobs)]
        drivers = [open_launch(folder.path, say=say) for folder in open_launches]
        if study.pipeline is not None:
            if drivers:  # its driver submits what its gates allow
                return _acted(drivers)
            open_tries = [tried for tried in open_tries if not _is_gated(study, store, tried)]
        if not open_tries:
            return drivers
        limits = study.file.measure or Measure()
        before = [job.id for s in launches for job in s.manifest.slurm_jobs if not job.has_ended]
        graph = graph_of(study, store, open_tries, site, catalog=catalog, after=before)
        check_gpu_hours(graph, launches, limit=limits.gpu_hours_limit)
        driver, folder = start_launch(graph, site, _new_folder(store), say=say)
        with folder.held():
            driver.begin_and_act()
        return [*drivers, driver]


def _acted(drivers: list[Driver]) -> list[Driver]:
    """The drivers of a pipeline's launches, after each has submitted what may run by now."""
    for driver in drivers:
        with driver.folder.held():
            driver.take_up()
            driver.step()
    return drivers


def _is_gated(study: Study, store: Store, tried: Try) -> bool:
    """Whether a stage comes after a gate that was not passed."""
    assert study.pipeline is not None
    block = block_of(study.pipeline, store, study.pipeline.runs[tried.index], tried.repeat)
    return block is not None and block.is_final


def _new_folder(store: Store) -> Path:
    numbers = [int(folder.path.name) for folder in launches_of(store) if folder.path.name.isdigit()]
    return store.jobs / f"{max(numbers, default=0) + 1:04d}"


def check_none_queued(store: Store, say: Say) -> None:
    """Refuse to measure here what a job may measure at the same time."""
    jobs = sorted({job.job.partition("_")[0] for job in look(store, say).values() if job.is_open})
    if jobs:
        raise ConfigError(
            f"{store.path}: points of it are in the queue (jobs {', '.join(jobs)}): wait for them, or end them with "
            f"scalewright jobs cancel {launches_of(store)[-1].path}"
        )


def _is_open(queue: Mapping[Key, InQueue], tried: Try) -> bool:
    job = queue.get((tried.point.id, tried.repeat))
    return job is not None and job.is_open


def _taken_up(store: Store, say: Say) -> list[LaunchFolder]:
    """Launches with what became of them written down: a driver may have died between sbatch and its answer."""
    folders = launches_of(store)
    for folder in folders:
        if any(not job.has_ended for job in folder.read().slurm_jobs):
            driver = open_launch(folder.path, say=say)
            with folder.held():
                driver.take_up()
                driver.look()
    return folders


def graph_of(
    study: Study, store: Store, tries: Sequence[Try], site: Site, *, catalog: Path | None, after: Sequence[str]
) -> Graph:
    """One graph job per shape. Each waits for the one before it; the first waits for the Slurm jobs in `after`."""
    limits = study.file.measure or Measure()
    job = limits.job if limits.job.time is not None else limits.job.model_copy(update={"time": DEFAULT_TIME_S})
    if study.pipeline is not None:
        jobs = _stage_jobs(study, store, tries, site, catalog)
        return _resolved(study, site, job, jobs)
    jobs = {}
    for (nodes, ranks), members in _groups(study, tries, site, job).items():
        waits: dict[str, Any] = {"after": {list(jobs)[-1]: "any"}} if jobs else {}
        if after and not jobs:
            waits["directives"] = {**job.directives, "dependency": f"afterany:{':'.join(after)}"}
        jobs[f"{nodes}x{ranks}"] = GraphJobTable(
            command=_command(store, job, catalog), items=tuple(map(item_of, members)), width=limits.concurrent,
            nodes=nodes, gpus_per_node=ranks, **waits,
        )  # fmt: skip
    return _resolved(study, site, job, jobs)


def _resolved(study: Study, site: Site, job: Resources, jobs: dict[str, GraphJobTable]) -> Graph:
    file = GraphFile(schema="scalewright.graph/1", name=study.file.id, site=site.id, defaults=job, jobs=jobs)
    graph = resolve(file, Path.cwd() / study.path.name)
    return replace(graph, jobs={n: replace(s, options=_checked(s.options)) for n, s in graph.jobs.items()})


def _stage_jobs(
    study: Study, store: Store, tries: Sequence[Try], site: Site, catalog: Path | None
) -> dict[str, GraphJobTable]:
    """Jobs of a pipeline's stages; all seeds of a stage have one shape."""
    assert study.pipeline is not None and study.file.pipeline is not None  # noqa: PT018
    limits = study.file.measure or Measure()
    most = _most_ranks(study, site, limits.job)
    jobs: dict[str, list[StageJob]] = {}
    shapes: dict[str, Shape] = {}
    for tried in sorted(tries, key=lambda tried: tried.index):
        run = study.pipeline.runs[tried.index]
        jobs.setdefault(run.name, []).append(StageJob(run=run, repeat=tried.repeat, item=item_of(tried)))
        shapes.setdefault(run.name, _shape(study, tried, most))
    command = _command(store, limits.job, catalog)
    return pipeline_jobs(study.file.pipeline, jobs, shapes, command=command, width=limits.concurrent)


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    return {**options, "checks_nodes": True}


def _groups(study: Study, tries: Sequence[Try], site: Site, job: Resources) -> dict[Shape, list[Try]]:
    """Tries by the nodes and ranks that they take, in the order of the tries."""
    most = _most_ranks(study, site, job)
    groups: dict[Shape, list[Try]] = {}
    for tried in tries:
        groups.setdefault(_shape(study, tried, most), []).append(tried)
    return groups


def _most_ranks(study: Study, site: Site, job: Resources) -> int:
    """Ranks that a node takes."""
    most = job.gpus_per_node or site.num_gpus_per_node
    if not most:
        raise ConfigError(
            f"{study.path}: the number of ranks on a node of {site.name} is unknown: write gpus_per_node under "
            "[measure.job]"
        )
    return most


def _shape(study: Study, tried: Try, most: int) -> Shape:
    labels = ", ".join(f"{name} {value}" for name, value in tried.point.labels.items())
    kind = str(tried.point.resolved["kind"])
    if not kind_named(kind).runs_as_job:
        raise ConfigError(
            f"{study.path}: point {labels} is of kind {kind}, which does not run as a job: run it without a site"
        )
    layout = tried.point.resolved.get("layout")
    num_ranks = int(parse_layout(str(layout)).num_gpus) if layout else 1
    nodes = -(-num_ranks // most)
    if num_ranks % nodes:
        raise ConfigError(
            f"{study.path}: point {labels} has {num_ranks} ranks, which do not spread evenly over {nodes} nodes of "
            f"{most}: change its layout, or write gpus_per_node under [measure.job]"
        )
    return nodes, num_ranks // nodes


def _command(store: Store, job: Resources, catalog: Path | None) -> tuple[str, ...]:
    python = "python" if job.venv or job.modules else sys.executable
    words = (python, "-m", "scalewright", "study", "point", "{item}", "--results", str(store.path.resolve()))
    return words if catalog is None else (*words, "--catalog", str(catalog.resolve()))


def check_gpu_hours(graph: Graph, launches: Sequence[LaunchProgress], *, limit: float | None) -> None:
    """Refuse what could go over the study's limit, with what was used and what is still in the queue."""
    if limit is None:
        return
    used = usage_of(s.manifest for s in launches).num_gpu_hours
    waiting = sum(_open_gpu_s(launch) for launch in launches) / HOUR_S
    new_jobs = estimate(graph).num_gpu_hours
    if used + waiting + new_jobs > limit:
        before = f", after {grouped(used + waiting)} so far" if used + waiting else ""
        raise OverBudgetError(
            f"the jobs may use {grouped(new_jobs)} GPU-hours by their time limits{before}, over the study's "
            f"{grouped(limit)}: raise gpu_hours_limit, or shorten time under [measure.job]"
        )


def _open_gpu_s(launch: LaunchProgress) -> float:
    return sum(
        (launch.graph.jobs[job.graph_job].gpu_s_per_item or 0.0)
        for job in launch.manifest.slurm_jobs for state in job.task_states().values() if not state.has_ended
    )  # fmt: skip


def wait(drivers: Sequence[Driver], *, goes_on: bool = False) -> None:
    """Wait until every job has ended or failed.

    `goes_on`: submit what gates and retries allow meanwhile, as in a pipeline. Otherwise nothing more is submitted: the
    next run of the study does that.
    """
    wait_s = POLL_S[0]
    with ExitStack() as stack:
        for driver in drivers:
            stack.enter_context(driver.folder.held())
            driver.take_up()
            driver.look()
        for driver in drivers if goes_on else ():
            driver.watch(shortest_s=POLL_S[0], longest_s=POLL_S[1])
        while any(not job.has_ended for driver in drivers for job in driver.manifest.slurm_jobs):
            time.sleep(wait_s)
            moved = [driver.look() for driver in drivers]
            wait_s = POLL_S[0] if any(moved) else min(wait_s * GROWTH, POLL_S[1])


def run_point(catalog: Catalog, store: Store, item: str) -> int:
    """One try inside its job, where every rank is started alike: the first works out the run, the others follow it."""
    name, repeat = key_of(item)
    point = next((stored for stored in store.read_points() if stored.id == name), None)
    if point is None:
        raise ConfigError(f"{store.points}: has no point {name}: it was submitted for other results")
    place = rank_of_process(os.environ)
    if store.is_finished(point, repeat):  # by an attempt before: every rank must know, or some would wait for others
        if place is None or place[0] == 0:
            _write_gate(store, point, repeat)
        return ExitCode.YES
    if place is not None and place[0] > 0:
        follow_first(store.run(point, repeat))
    try:
        code = _measured(catalog, store, point, repeat)
        _write_gate(store, point, repeat)
        return code
    except (ScalewrightError, RunTooLargeError) as error:
        reason = " ".join(str(error).split())
        store.write_problem(point, repeat, reason)
        if isinstance(error, RunTooLargeError):
            raise OverBudgetError(reason) from error
        raise


def _write_gate(store: Store, point: Point, repeat: int) -> None:
    """The figure of a stage's gate, where the graph of jobs looks for it: in the folder of the job."""
    pipeline, folder = store.read_pipeline(), os.environ.get(EnvName.RUN_DIR, "")
    if pipeline is None or not folder:
        return
    result = gate_of(pipeline, store, pipeline.run_of(point.id), repeat)
    if result is not None:
        task = os.environ.get("SLURM_ARRAY_TASK_ID", "")
        write_gate(Path(folder) / f"task-{task}" if task else Path(folder), result)


def _measured(catalog: Catalog, store: Store, point: Point, repeat: int) -> int:
    options = store.options_of(point.resolved, repeat)
    kind = str(options.pop("kind"))
    execution = execution_of(catalog, kind, options, path=store.run(point, repeat).path, where=str(store.points))
    study_id = str(read_document(store.study, "study-results").get("id", ""))
    store.problem(point, repeat).unlink(missing_ok=True)
    code = execute(replace(execution, point_id=point.id, study_id=study_id))
    return ExitCode.YES if store.is_finished(point, repeat) else code
