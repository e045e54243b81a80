"""The record of submitted jobs, in the launch folder: a driver that dies is resumed from it.

jobs.json     every job, intended or submitted, and what became of it (jobs/1); written whole
jobs.jsonl    ids since then, one line each, added the moment sbatch gave them
graph.json    the resolved graph          stages/NAME/  run directory, script and items of a stage

All jobs of a pass are written down, with their tags, before the first sbatch. Whatever happens in between, a tag
without an id is looked up in the queue, and submitted only if it is not there.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from scalewright import __version__
from scalewright.errors import ConfigError, DocumentError, EnvironmentFailedError
from scalewright.launch.slurm.job_state import JobState
from scalewright.launch.slurm.task_ranges import format_ranges, parse_ranges
from scalewright.records.documents import document, read_document, read_text, write_document
from scalewright.records.loader import restore, stored

KIND = "jobs"
ALONE = "@job"
"""The stage of a launch that is a single job: its run directory is the launch folder. No file can name a stage so."""


class BusyError(ConfigError):
    """Another driver is at work in the folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One call of sbatch, made or intended: a job, or an array of tasks."""

    tag: str
    name: str
    stage: str
    script: str
    run_dir: str
    planned_s: float
    """When it was written down, in seconds since 1970."""
    part: int = 0
    first_item: int = 0
    """The stage's number of the item that is task 0 here."""
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
    """Tasks by state, as ranges; a job that is no array is task 0."""
    reason: str = ""
    """Why a task is where it is: the last that was told."""
    settled_s: float = 0.0
    """When the last of its tasks was seen to have ended."""
    elapsed_s: float = 0.0
    """Run time of all its tasks, as the queue tells it."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """Failed tasks by node."""
    successes: Mapping[str, int] = field(default_factory=dict)
    """Tasks that succeeded by node."""

    @property
    def is_array(self) -> bool:
        return bool(self.tasks)

    @property
    def task_set(self) -> frozenset[int]:
        return parse_ranges(self.tasks) if self.is_array else frozenset({0})

    def task_states(self) -> dict[int, JobState]:
        found = dict.fromkeys(self.task_set, JobState.PLANNED if not self.id else JobState.PENDING)
        for state, tasks in self.states.items():
            found.update(dict.fromkeys(parse_ranges(tasks), JobState(state)))
        return found

    def with_states(self, states: Mapping[int, JobState], **changes: object) -> Job:
        by_state: dict[str, list[int]] = {}
        for task, state in states.items():
            by_state.setdefault(str(state), []).append(task)
        kept = {state: format_ranges(tasks) for state, tasks in sorted(by_state.items())}
        return replace(self, states=kept, **changes)  # type: ignore[arg-type]

    @property
    def is_settled(self) -> bool:
        return all(JobState(s).is_settled for s in self.states) and bool(self.states)

    def folder(self, task: int) -> Path:
        """Where a task's files are."""
        return Path(self.run_dir) / f"task-{task}" if self.is_array else Path(self.run_dir)

    def log(self, task: int) -> Path:
        name = f"slurm-{self.id}_{task}.out" if self.is_array else f"slurm-{self.id}.out"
        return Path(self.run_dir) / "logs" / name


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    name: str
    created: str
    max_array_tasks: int
    token: str
    """What the tags of its jobs start with."""
    scalewright: str = __version__
    is_stopped: bool = False
    """Somebody cancelled it: nothing more is submitted until it is resumed."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Stages that will not run, and why."""
    forgiven: Mapping[str, int] = field(default_factory=dict)
    """Retries above the limit that somebody asked for, by stage."""
    jobs: tuple[Job, ...] = ()

    def of_stage(self, stage: str) -> list[Job]:
        return [job for job in self.jobs if job.stage == stage]

    def replaced(self, jobs: Iterable[Job]) -> Manifest:
        """With these jobs in the place of those with the same tags, or after all others."""
        new = {job.tag: job for job in jobs}
        kept = [new.pop(job.tag, job) for job in self.jobs]
        return replace(self, jobs=(*kept, *new.values()))


@dataclass(frozen=True, slots=True)
class LaunchFolder:
    """The folder of one graph of jobs, and the names of its files."""

    path: Path

    @property
    def manifest(self) -> Path:
        return self.path / "jobs.json"

    @property
    def journal(self) -> Path:
        return self.path / "jobs.jsonl"

    @property
    def graph(self) -> Path:
        return self.path / "graph.json"

    @property
    def stop(self) -> Path:
        """Its presence asks a driver that is at work to cancel its jobs and end."""
        return self.path / "stop"

    def stage(self, name: str) -> Path:
        return self.path if name == ALONE else self.path.joinpath("stages", name)

    def exists(self) -> bool:
        return self.manifest.is_file()

    def read(self) -> Manifest:
        """The manifest with the ids that came after it was written."""
        if not self.exists():
            raise ConfigError(f"{self.path}: holds no {self.manifest.name}: name the folder that submit printed")
        manifest = restore(read_document(self.manifest, KIND), Manifest, where=str(self.manifest))
        by_tag = {job.tag: job for job in manifest.jobs}
        for line in read_text(self.journal).splitlines() if self.journal.exists() else ():
            with contextlib.suppress(json.JSONDecodeError, KeyError, TypeError):  # the last line may be half written
                entry = json.loads(line)
                if entry["tag"] in by_tag:
                    found = by_tag[entry["tag"]]
                    by_tag[found.tag] = replace(found, id=str(entry["id"]), dependency=str(entry["dependency"]))
        return manifest.replaced(by_tag.values())

    def write(self, manifest: Manifest) -> None:
        with environment_errors(self.path):
            write_document(self.manifest, document(KIND, stored(manifest)))
            self.journal.unlink(missing_ok=True)

    def note_id(self, job: Job) -> None:
        """Keep an id at once, without writing all again. One that is lost with the power is found by its tag."""
        line = json.dumps({"tag": job.tag, "id": job.id, "dependency": job.dependency}) + "\n"
        with environment_errors(self.path), self.journal.open("a") as file:
            file.write(line)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """One driver at a time. A file system without locks cannot refuse a second one."""
        with environment_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path / ".jobs.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            with contextlib.suppress(OSError):
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    raise BusyError(
                        f"{self.path}: another scalewright jobs is at work there: wait for it, or end it first"
                    ) from error
            yield
        finally:
            os.close(handle)


@contextlib.contextmanager
def environment_errors(path: Path) -> Iterator[None]:
    """A full or read-only disk is the machine's fault, not the input's."""
    try:
        yield
    except OSError as error:
        raise EnvironmentFailedError(
            f"{path}: the record of jobs cannot be written: {error.strerror}; free space, then: scalewright jobs resume"
        ) from error
    except DocumentError as error:
        raise EnvironmentFailedError(str(error)) from error


def find_launches(places: Iterable[Path]) -> list[LaunchFolder]:
    """The launch folders among these places and directly below them, oldest first."""
    found: list[LaunchFolder] = []
    for place in places:
        here = LaunchFolder(place)
        below = [LaunchFolder(p.parent) for p in sorted(place.glob("*/jobs.json"))]
        found += [here] if here.exists() else below
    return found
