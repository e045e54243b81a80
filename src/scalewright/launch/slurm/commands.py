"""Slurm's commands: their arguments and the parsers of their output. The class `Slurm` runs them with a `Runner`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scalewright.errors import EnvironmentFailedError
from scalewright.launch.slurm.job_state import JobState, TaskStatus, parse_state
from scalewright.launch.slurm.sbatch import parse_job_id
from scalewright.launch.slurm.task_ranges import parse_ranges
from scalewright.records.types import EnvName
from scalewright.sites.cluster import parse_config
from scalewright.sites.scheduler import Runner, SchedulerAwayError, SchedulerRefusedError

COMMENT = "scalewright:"
"""Start of the comment of every job. The job's tag follows, so that a new driver finds the jobs of a dead one."""
NO_TASK = -1
"""The task number of a job without an array."""
JSON_SINCE = (23, 2)
"""squeue has --json since 21.08, but before 23.02 it ignores --jobs and prints every job of every user."""
IDS_PER_CALL = 400
QUEUE_FORMAT = "%F|%K|%T|%N|%M|%r|%k"
ACCOUNT_FIELDS = "JobID,State,ExitCode,NodeList,ElapsedRaw"
_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.\d+)?")
_ACCOUNTED = re.compile(r"^(\d+)(?:_(\d+|\[[^\]]*\]))?(?:\+\d+)?(?:\.(\S+))?$")
_TIME = re.compile(r"^(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)$")

Statuses = dict[tuple[str, int], TaskStatus]
"""By job id and task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """The arguments of one sbatch call: a script, and the options that are added to its header."""

    script: Path
    name: str
    tag: str
    tasks: str = ""
    """Array tasks such as 0-9; empty: no array."""
    width: int = 0
    """Largest number of tasks at once; 0: no limit."""
    dependency: str = ""
    exclude: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    run_dir: str = ""
    """Passed to the script as an environment variable."""


def sbatch_argv(job: Submission) -> list[str]:
    argv = ["sbatch", "--parsable", f"--job-name={job.name}", f"--comment={COMMENT}{job.tag}"]
    if job.tasks:
        argv.append(f"--array={job.tasks}{f'%{job.width}' if job.width else ''}")
    if job.dependency:
        argv += [f"--dependency={job.dependency}", "--kill-on-invalid-dep=yes"]
    if job.exclude:
        argv.append(f"--exclude={','.join(job.exclude)}")
    return [*argv, *job.options, str(job.script)]


def parse_version(text: str) -> tuple[int, int]:
    match = _VERSION.search(text)
    return (int(match.group(1)), int(match.group(2))) if match else (0, 0)


def parse_elapsed_s(text: str) -> float:
    match = _TIME.match(text.strip())
    if match is None:
        return 0.0
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def parse_queue(text: str) -> Statuses:
    """Statuses from `squeue -h -o QUEUE_FORMAT`. One line of a waiting array stands for many tasks."""
    statuses: Statuses = {}
    for line in text.splitlines():
        parts = line.split("|", 6)
        if len(parts) != 7:
            continue
        job, tasks, state, nodes, elapsed, reason, _ = (part.strip() for part in parts)
        status = TaskStatus(
            state=parse_state(state), reason=_plain(reason), nodes=nodes, elapsed_s=parse_elapsed_s(elapsed)
        )
        for task in _tasks(tasks):
            statuses[job, task] = status
    return statuses


def parse_queue_json(text: str) -> Statuses:
    """Statuses from `squeue --json`, in the formats of 21.08 (plain numbers) and from 23.02 on (objects, lists)."""
    statuses: Statuses = {}
    for job in _json_object(text, "squeue").get("jobs", []):
        array, raw = _number(job.get("array_job_id")), _number(job.get("job_id"))
        task, many = _number(job.get("array_task_id"), unset=NO_TASK), str(job.get("array_task_string") or "")
        status = TaskStatus(
            state=parse_state(job.get("job_state", "")),
            reason=_plain(str(job.get("state_reason") or "")),
            nodes=str(job.get("nodes") or ""),
            exit_code=_exit_code(job.get("exit_code")),
            elapsed_s=_span_s(job),
        )
        is_array = bool(array)
        for number in parse_ranges(many) if many else [task if is_array else NO_TASK]:
            statuses[str(array if is_array else raw), number] = status
    return statuses


def parse_accounting(text: str) -> Statuses:
    """Statuses from `sacct -n -P -o ACCOUNT_FIELDS`. If a step ran out of memory, its failed job counts as such too."""
    statuses: Statuses = {}
    out_of_memory: set[tuple[str, int]] = set()
    for line in text.splitlines():
        parts = line.split("|")
        match = _ACCOUNTED.match(parts[0]) if len(parts) >= 5 else None
        if match is None:
            continue
        job, tasks, step = match.groups()
        state = parse_state(parts[1])
        keys = [(job, task) for task in _tasks(tasks or "N/A")]
        if step is not None:
            out_of_memory.update(keys if state is JobState.OUT_OF_MEMORY else ())
            continue
        code = parts[2].partition(":")[0]
        elapsed = float(parts[4]) if parts[4].isdigit() else 0.0
        for key in keys:
            statuses[key] = TaskStatus(
                state=state, nodes=parts[3], exit_code=int(code) if code.isdigit() else None, elapsed_s=elapsed,
                reason=parts[1] if parts[1].startswith("CANCELLED") else "",
            )  # fmt: skip
    for key in out_of_memory & statuses.keys():
        if statuses[key].state is JobState.FAILED:
            statuses[key] = replace(
                statuses[key], state=JobState.OUT_OF_MEMORY, reason="a step ran out of memory"
            )  # fmt: skip
    return statuses


def parse_tags(text: str) -> dict[str, str]:
    """Job ids by tag, from lines `ID|text`, where the text is a job's comment or its sbatch line."""
    id_by_tag: dict[str, str] = {}
    for line in text.splitlines():
        job, _, words = line.partition("|")
        match = re.search(rf"{COMMENT}([A-Za-z0-9_.-]+)", words)
        if match:
            id_by_tag.setdefault(match.group(1), job.strip().partition("_")[0])
    return id_by_tag


def _json_object(text: str, command: str) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except json.JSONDecodeError as error:
        raise SchedulerAwayError(f"{command} --json printed no JSON: {error.msg}") from error
    return body if isinstance(body, dict) else {}


def _number(value: object, unset: int = 0) -> int:
    if isinstance(value, Mapping):
        value = value.get("number") if value.get("set", True) else None
    return int(value) if isinstance(value, int | float) else unset


def _exit_code(value: object) -> int | None:
    if isinstance(value, Mapping):
        return _number(value.get("return_code"))
    return value >> 8 if isinstance(value, int) else None


def _span_s(job: Mapping[str, Any]) -> float:
    start, end = _number(job.get("start_time")), _number(job.get("end_time"))
    return float(max(end - start, 0)) if start and parse_state(job.get("job_state", "")).has_ended else 0.0


def _tasks(text: str) -> Iterable[int]:
    return [NO_TASK] if text in ("N/A", "") else sorted(parse_ranges(text))


def _plain(reason: str) -> str:
    return "" if reason in ("None", "N/A", "") else reason


@dataclass(slots=True, kw_only=True)
class Slurm:
    """The scheduler through its commands. Each call asks about many jobs at once."""

    runner: Runner = field(default_factory=Runner)
    has_accounting: bool | None = None
    """Whether the cluster has accounting (sacct); None: not asked yet."""
    is_blind: bool = False
    """The last sacct call got no answer, so the state of jobs outside the queue is unknown."""
    _version: tuple[int, int] | None = None

    def version(self) -> tuple[int, int]:
        if self._version is None:
            self._version = parse_version(self.runner.call(["squeue", "--version"]))
        return self._version

    def submit(self, job: Submission) -> str:
        """Submit, and return the new job's id. If sbatch got no answer, the tag is searched before another try."""
        variables = {EnvName.RUN_DIR: job.run_dir}
        for attempt in range(self.runner.max_tries):
            try:
                return parse_job_id(self.runner.call(sbatch_argv(job), is_repeatable=False, env=variables))
            except SchedulerAwayError as error:
                if attempt == self.runner.max_tries - 1:
                    raise
                wait = self.runner.wait_s(attempt)
                self.runner.say(f"{error}; trying again in {wait:.0f} s")
                self.runner.sleep(wait)
                accepted_id = self._accepted_id(job.tag)
                if accepted_id is not None:
                    return accepted_id
        raise AssertionError("max_tries is at least 1")

    def _accepted_id(self, tag: str) -> str | None:
        """Id of a job for which sbatch got no answer; None: no such job. If nobody can tell, it stays unknown."""
        try:
            return self.find([tag]).get(tag)
        except SchedulerAwayError:
            raise
        except EnvironmentFailedError as error:
            raise SchedulerAwayError(f"sbatch got no answer, and the job cannot be looked for: {error}") from error

    def find(self, tags: Sequence[str]) -> dict[str, str]:
        """Ids of the user's jobs by tag: first from the queue, then from accounting."""
        mine = f"--user={os.getuid()}"
        id_by_tag = parse_tags(self.runner.call(["squeue", "-h", mine, "--states=all", "-o", "%F|%k"]))
        if any(tag not in id_by_tag for tag in tags) and self.has_accounting is not False:
            argv = ["sacct", "-n", "-P", "-X", mine, "--starttime=now-7days", "-o", "JobID,SubmitLine"]
            id_by_tag = parse_tags(self._sacct_or_nothing(argv)) | id_by_tag
        return {tag: id_by_tag[tag] for tag in tags if tag in id_by_tag}

    def status(self, open_tasks: Mapping[str, Iterable[int]]) -> Statuses:
        """Statuses of these tasks, by job id: one squeue for all jobs, one sacct for those that left the queue."""
        statuses: Statuses = {}
        for ids in _batches(list(open_tasks)):
            statuses |= self._queue(ids)
        gone = [job for job, tasks in open_tasks.items() if any((job, task) not in statuses for task in tasks)]
        if self.has_accounting is not False:
            for ids in _batches(gone):
                argv = ["sacct", "-n", "-P", f"--jobs={','.join(ids)}", "-o", ACCOUNT_FIELDS]
                statuses = parse_accounting(self._sacct_or_nothing(argv)) | statuses
        return statuses

    def _queue(self, ids: Sequence[str]) -> Statuses:
        argv = ["squeue", f"--jobs={','.join(ids)}", "--states=all"]
        try:
            if self.version() >= JSON_SINCE:
                return {k: v for k, v in parse_queue_json(self.runner.call([*argv, "--json"])).items() if k[0] in ids}
            return parse_queue(self.runner.call([*argv, "-h", "-o", QUEUE_FORMAT]))
        except SchedulerRefusedError as error:
            if "invalid job id" in error.words.lower():
                return {}
            raise

    def _sacct_or_nothing(self, argv: Sequence[str]) -> str:
        """Output of sacct; empty if the cluster has no accounting, or if it does not answer."""
        self.is_blind = False
        try:
            text = self.runner.call(argv, is_repeatable=False)
        except SchedulerRefusedError as error:
            if "disabled" not in error.words.lower():
                self.runner.say(f"{error}; continuing without accounting")
            self.has_accounting = False
            return ""
        except SchedulerAwayError as error:
            self.runner.say(f"{error}; asking again later")
            self.is_blind = True
            return ""
        self.has_accounting = True
        return text

    def accounts(self, argv: Sequence[str]) -> str:
        """Output of sacct for the user. Without accounting this is an error."""
        try:
            return self.runner.call(["sacct", "-n", "-P", *argv])
        except SchedulerRefusedError as error:
            self.has_accounting = False
            raise EnvironmentFailedError(f"the accounting of this cluster cannot be read: {error.words}") from error

    def usage(self, job_ids: Sequence[str], fields: str) -> list[str]:
        """Output of sacct for every attempt of these jobs, one text per batch of ids."""
        return [self.accounts(["-X", "-D", f"--jobs={','.join(ids)}", "-o", fields]) for ids in _batches(job_ids)]

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Cancel jobs. Jobs that have already ended are ignored."""
        for ids in _batches(job_ids):
            try:
                self.runner.call(["scancel", *ids])
            except SchedulerRefusedError as error:
                if "invalid job id" not in error.words.lower() and "already" not in error.words.lower():
                    raise

    def requeue(self, job_ids: Sequence[str]) -> None:
        for ids in _batches(job_ids):
            self.runner.call(["scontrol", "requeue", ",".join(ids)])

    def max_array_size(self) -> int:
        """The cluster's MaxArraySize. Task numbers must be below it."""
        text = parse_config(self.runner.call(["scontrol", "show", "config"])).get("MaxArraySize", "")
        return int(text) if text.isdigit() and int(text) > 0 else 1001


def _batches(ids: Sequence[str]) -> Iterable[Sequence[str]]:
    return (ids[start : start + IDS_PER_CALL] for start in range(0, len(ids), IDS_PER_CALL))
