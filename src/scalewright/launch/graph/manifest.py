"""The launch folder and its manifest: the record of submitted Slurm jobs, from which a launch is resumed.

jobs.json     every Slurm job, planned or submitted, with its state (jobs/1); always written whole
jobs.jsonl    ids that sbatch returned since then, one line each, appended at once
graph.json    the resolved graph          jobs/NAME/  run directory, script and items of a graph's job

The driver writes all jobs of a pass, with their tags, before it calls sbatch. If it dies in between, the next driver
searches the queue for tags without an id. It submits a job again only if the queue does not have its tag.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scalewright import __version__
from scalewright.errors import ConfigError, DocumentError, EnvironmentFailedError
from scalewright.launch.slurm.job_state import JobState
from scalewright.launch.slurm.task_ranges import format_ranges, parse_ranges
from scalewright.records.documents import document, read_document, read_text, write_document
from scalewright.records.loader import restore, stored
from scalewright.records.named_path import NamedPath

KIND = "jobs"
ALONE = "@job"
"""Name of the only job of a launch without a graph file. Its run directory is the launch folder.

A graph file cannot use this name."""


class BusyError(ConfigError):
    """Another driver is working in the folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """One call of sbatch, planned or done: a job, or an array of tasks.

    A graph's job becomes several Slurm jobs if it is retried, or if its items fill more than one array.
    """

    tag: str
    name: str
    graph_job: str
    """Name of the job in the graph."""
    script: str
    run_dir: str
    planned_s: float
    """When the driver wrote it into the manifest, in seconds since 1970."""
    part: int = 0
    first_item: int = 0
    """Item number of task 0, counted over all parts of the graph's job."""
    attempt: int = 0
    tasks: str = ""
    """Empty: no array."""
    width: int = 0
    id: str = ""
    dependency: str = ""
    exclude: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    num_gpus: int = 0
    states: Mapping[str, str] = field(default_factory=dict)
    """Tasks by state, as ranges. A job without an array is task 0."""
    reason: str = ""
    """The latest reason that the scheduler or a task gave for its state."""
    ended_s: float = 0.0
    """When the driver saw that the last of its tasks had ended, in seconds since 1970."""
    elapsed_s: float = 0.0
    """Run time of all its tasks, as reported by the queue."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """Number of failed tasks by node."""
    successes: Mapping[str, int] = field(default_factory=dict)
    """Number of successful tasks by node."""

    @property
    def is_array(self) -> bool:
        return bool(self.tasks)

    @property
    def task_set(self) -> frozenset[int]:
        return parse_ranges(self.tasks) if self.is_array else frozenset({0})

    def task_states(self) -> dict[int, JobState]:
        state_of = dict.fromkeys(self.task_set, JobState.PLANNED if not self.id else JobState.PENDING)
        for state, tasks in self.states.items():
            state_of.update(dict.fromkeys(parse_ranges(tasks), JobState(state)))
        return state_of

    def with_states(self, states: Mapping[int, JobState], **changes: object) -> SlurmJob:
        by_state: dict[str, list[int]] = {}
        for task, state in states.items():
            by_state.setdefault(str(state), []).append(task)
        ranges = {state: format_ranges(tasks) for state, tasks in sorted(by_state.items())}
        return replace(self, states=ranges, **changes)  # type: ignore[arg-type]

    @property
    def has_ended(self) -> bool:
        return all(JobState(s).has_ended for s in self.states) and bool(self.states)

    def folder(self, task: int) -> Path:
        """Run directory of a task."""
        return Path(self.run_dir) / f"task-{task}" if self.is_array else Path(self.run_dir)

    def log(self, task: int) -> Path:
        name = f"slurm-{self.id}_{task}.out" if self.is_array else f"slurm-{self.id}.out"
        return Path(self.run_dir) / "logs" / name


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchManifest:
    """Every Slurm job of a launch, and what the user decided about it."""

    name: str
    created: str
    max_array_tasks: int
    token: str
    """Common start of the tags of its jobs."""
    scalewright: str = __version__
    is_stopped: bool = False
    """The user cancelled the launch. Nothing is submitted until it is resumed."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Jobs of the graph that will not run, and why."""
    forgiven: Mapping[str, int] = field(default_factory=dict)
    """Retries above the limit that the user allowed, by job of the graph."""
    slurm_jobs: tuple[SlurmJob, ...] = ()

    def slurm_jobs_of(self, graph_job: str) -> list[SlurmJob]:
        return [job for job in self.slurm_jobs if job.graph_job == graph_job]

    def replaced(self, jobs: Iterable[SlurmJob]) -> LaunchManifest:
        """The manifest with these jobs. A job replaces the one with its tag; a new tag goes to the end."""
        new = {job.tag: job for job in jobs}
        kept = [new.pop(job.tag, job) for job in self.slurm_jobs]
        return replace(self, slurm_jobs=(*kept, *new.values()))


@dataclass(frozen=True, slots=True)
class LaunchFolder:
    """The folder of one graph of jobs, and the names of its files."""

    path: Path

    manifest = NamedPath("jobs.json")
    journal = NamedPath("jobs.jsonl")
    graph = NamedPath("graph.json")
    stop = NamedPath("stop")
    """If this file exists, a running driver cancels its jobs and ends."""
    lock = NamedPath(".jobs.lock")

    def job(self, name: str) -> Path:
        """Folder of a job of the graph."""
        if name == ALONE:
            return self.path
        old = self.path / "stages" / name  # the folder's name before nodes of a graph were called jobs
        return old if old.is_dir() else self.path / "jobs" / name

    def exists(self) -> bool:
        return self.manifest.is_file()

    def read(self) -> LaunchManifest:
        """The manifest, with the ids that were appended to the journal since it was written."""
        if not self.exists():
            raise ConfigError(f"{self.path}: holds no {self.manifest.name}: name the folder that submit printed")
        body = _with_current_names(read_document(self.manifest, KIND))
        manifest = restore(body, LaunchManifest, where=str(self.manifest))
        by_tag = {job.tag: job for job in manifest.slurm_jobs}
        for line in read_text(self.journal).splitlines() if self.journal.exists() else ():
            with contextlib.suppress(json.JSONDecodeError, KeyError, TypeError):  # the last line may be half written
                entry = json.loads(line)
                if entry["tag"] in by_tag:
                    job = by_tag[entry["tag"]]
                    by_tag[job.tag] = replace(job, id=str(entry["id"]), dependency=str(entry["dependency"]))
        return manifest.replaced(by_tag.values())

    def write(self, manifest: LaunchManifest) -> None:
        with environment_errors(self.path):
            write_document(self.manifest, document(KIND, stored(manifest)))
            self.journal.unlink(missing_ok=True)

    def note_id(self, job: SlurmJob) -> None:
        """Append an id to the journal. An id lost in a power failure is found again by its tag."""
        line = json.dumps({"tag": job.tag, "id": job.id, "dependency": job.dependency}) + "\n"
        with environment_errors(self.path), self.journal.open("a") as file:
            file.write(line)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Lock the folder for one driver. Without file locks in the file system, a second driver is not refused."""
        with environment_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            with contextlib.suppress(OSError):
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    raise BusyError(
                        f"{self.path}: another scalewright jobs command is working there: wait for it, or stop it first"
                    ) from error
            yield
        finally:
            os.close(handle)


@contextlib.contextmanager
def environment_errors(path: Path) -> Iterator[None]:
    """Turn a full or read-only disk into an error of the environment (exit code 3), not of the input."""
    try:
        yield
    except OSError as error:
        raise EnvironmentFailedError(
            f"{path}: cannot write the record of jobs: {error.strerror}; free space, then run: "
            f"scalewright jobs resume {path}"
        ) from error
    except DocumentError as error:
        raise EnvironmentFailedError(str(error)) from error


def _with_current_names(body: dict[str, Any]) -> dict[str, Any]:
    """A manifest with today's keys: before, a job of the graph was a `stage`, and Slurm jobs were `jobs`."""
    if "jobs" not in body:
        return body
    renamed = {"stage": "graph_job", "settled_s": "ended_s"}
    old_jobs = body.pop("jobs")
    body["slurm_jobs"] = [{renamed.get(key, key): value for key, value in job.items()} for job in old_jobs]
    return body


def find_launches(folders: Iterable[Path]) -> list[LaunchFolder]:
    """Launch folders among these folders and directly below them, oldest first."""
    launches: list[LaunchFolder] = []
    for folder in folders:
        here = LaunchFolder(folder)
        below = [LaunchFolder(p.parent) for p in sorted(folder.glob("*/jobs.json"))]
        launches += [here] if here.exists() else below
    return launches
