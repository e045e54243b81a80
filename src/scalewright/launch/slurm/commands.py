"""Slurm as text: what to ask it, and how to read its answers. `Slurm` joins both to a `Runner`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalewright.errors import EnvironmentFailedError
from scalewright.launch.slurm.job_state import JobState, TaskStatus, parse_state
from scalewright.launch.slurm.sbatch import parse_job_id
from scalewright.launch.slurm.task_ranges import parse_ranges
from scalewright.records.types import EnvName
from scalewright.sites.scheduler import Runner, SchedulerAwayError, SchedulerRefusedError

COMMENT = "scalewright:"
"""Every job carries this and its tag as its comment, so that a driver that died finds it again."""
NO_TASK = -1
"""The task number of a job that is no array."""
JSON_SINCE = (23, 2)
"""squeue has --json since 21.08, but before 23.02 it prints every job of every user whatever is asked for."""
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
    """One call of sbatch: a script and what the command line adds to its header."""

    script: Path
    name: str
    tag: str
    tasks: str = ""
    """Array tasks such as 0-9; empty: no array."""
    width: int = 0
    """Tasks at once; 0: as the scheduler likes."""
    dependency: str = ""
    exclude: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    run_dir: str = ""
    """Told to the script in the environment that sbatch passes on."""


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
    """What `squeue -h -o QUEUE_FORMAT` prints. A line of a waiting array stands for many tasks."""
    found: Statuses = {}
    for line in text.splitlines():
        parts = line.split("|", 6)
        if len(parts) != 7:
            continue
        job, tasks, state, nodes, elapsed, reason, _ = (part.strip() for part in parts)
        status = TaskStatus(
            state=parse_state(state), reason=_plain(reason), nodes=nodes, elapsed_s=parse_elapsed_s(elapsed)
        )
        for task in _tasks(tasks):
            found[job, task] = status
    return found


def parse_queue_json(text: str) -> Statuses:
    """What `squeue --json` prints, in the shapes of 21.08 (plain numbers) and of 23.02 on (number objects, lists)."""
    found: Statuses = {}
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
            found[str(array if is_array else raw), number] = status
    return found


def parse_accounting(text: str) -> Statuses:
    """What `sacct -n -P -o ACCOUNT_FIELDS` prints. A step out of memory makes its failed job so."""
    found: Statuses = {}
    starved: set[tuple[str, int]] = set()
    for line in text.splitlines():
        parts = line.split("|")
        match = _ACCOUNTED.match(parts[0]) if len(parts) >= 5 else None
        if match is None:
            continue
        job, tasks, step = match.groups()
        state = parse_state(parts[1])
        keys = [(job, task) for task in _tasks(tasks or "N/A")]
        if step is not None:
            starved.update(keys if state is JobState.OUT_OF_MEMORY else ())
            continue
        code = parts[2].partition(":")[0]
        elapsed = float(parts[4]) if parts[4].isdigit() else 0.0
        for key in keys:
            found[key] = TaskStatus(
                state=state, nodes=parts[3], exit_code=int(code) if code.isdigit() else None, elapsed_s=elapsed,
                reason=parts[1] if parts[1].startswith("CANCELLED") else "",
            )  # fmt: skip
    for key in starved & found.keys():
        if found[key].state is JobState.FAILED:
            old = found[key]
            found[key] = TaskStatus(
                state=JobState.OUT_OF_MEMORY, reason="a step ran out of memory", nodes=old.nodes,
                exit_code=old.exit_code, elapsed_s=old.elapsed_s,
            )  # fmt: skip
    return found


def parse_tags(text: str) -> dict[str, str]:
    """Job ids by tag, from lines `ID|words`: a queue's comments, or the lines that jobs were submitted with."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        job, _, words = line.partition("|")
        match = re.search(rf"{COMMENT}([A-Za-z0-9_.-]+)", words)
        if match:
            found.setdefault(match.group(1), job.strip().partition("_")[0])
    return found


def parse_config(text: str) -> dict[str, str]:
    """`scontrol show config` as a dictionary."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


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
    """The scheduler through its commands: few calls, each about many jobs."""

    runner: Runner = field(default_factory=Runner)
    has_accounting: bool | None = None
    """None: not asked yet."""
    is_blind: bool = False
    """The accounts did not answer the last time: what the queue does not show is not known."""
    _version: tuple[int, int] | None = None

    def version(self) -> tuple[int, int]:
        if self._version is None:
            self._version = parse_version(self.runner.call(["squeue", "--version"]))
        return self._version

    def submit(self, job: Submission) -> str:
        """The new job's id. Where sbatch got no answer, the queue is asked for the tag before another try."""
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
                taken = self.find([job.tag]).get(job.tag)
                if taken is not None:
                    return taken
        raise AssertionError("max_tries is at least 1")

    def find(self, tags: Sequence[str]) -> dict[str, str]:
        """Ids of our own jobs by tag: first in the queue, then in the accounts."""
        mine = f"--user={os.getuid()}"
        found = parse_tags(self.runner.call(["squeue", "-h", mine, "--states=all", "-o", "%F|%k"]))
        if any(tag not in found for tag in tags) and self.has_accounting is not False:
            argv = ["sacct", "-n", "-P", "-X", mine, "--starttime=now-7days", "-o", "JobID,SubmitLine"]
            found = parse_tags(self._accounts(argv)) | found
        return {tag: found[tag] for tag in tags if tag in found}

    def status(self, wanted: Mapping[str, Iterable[int]]) -> Statuses:
        """What the scheduler knows of these tasks: one squeue for all jobs, one sacct for those it has forgotten of."""
        found: Statuses = {}
        for ids in _batches(list(wanted)):
            found |= self._queue(ids)
        gone = [job for job, tasks in wanted.items() if any((job, task) not in found for task in tasks)]
        if self.has_accounting is not False:
            for ids in _batches(gone):
                asked = ["sacct", "-n", "-P", f"--jobs={','.join(ids)}", "-o", ACCOUNT_FIELDS]
                found = parse_accounting(self._accounts(asked)) | found
        return found

    def _queue(self, ids: Sequence[str]) -> Statuses:
        asked = ["squeue", f"--jobs={','.join(ids)}", "--states=all"]
        try:
            if self.version() >= JSON_SINCE:
                return {k: v for k, v in parse_queue_json(self.runner.call([*asked, "--json"])).items() if k[0] in ids}
            return parse_queue(self.runner.call([*asked, "-h", "-o", QUEUE_FORMAT]))
        except SchedulerRefusedError as error:
            if "invalid job id" in error.words.lower():
                return {}
            raise

    def _accounts(self, argv: Sequence[str]) -> str:
        """Accounts are optional: where there are none, or they are away, the answer is empty."""
        self.is_blind = False
        try:
            text = self.runner.call(argv, is_repeatable=False)
        except SchedulerRefusedError as error:
            if "disabled" not in error.words.lower():
                self.runner.say(f"{error}; going on without accounts")
            self.has_accounting = False
            return ""
        except SchedulerAwayError as error:
            self.runner.say(f"{error}; asking again later")
            self.is_blind = True
            return ""
        self.has_accounting = True
        return text

    def accounts(self, argv: Sequence[str]) -> str:
        """The answer of a sacct that somebody asked for; no accounts is an error here."""
        try:
            return self.runner.call(["sacct", "-n", "-P", *argv])
        except SchedulerRefusedError as error:
            self.has_accounting = False
            raise EnvironmentFailedError(f"this cluster's accounts cannot be read: {error.words}") from error

    def usage(self, job_ids: Sequence[str], fields: str) -> list[str]:
        """What every attempt of these jobs used, in as few calls as there are batches."""
        return [self.accounts(["-X", "-D", f"--jobs={','.join(ids)}", "-o", fields]) for ids in _batches(job_ids)]

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Jobs that are already over are no error."""
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
        """Task numbers must be below this."""
        text = parse_config(self.runner.call(["scontrol", "show", "config"])).get("MaxArraySize", "")
        return int(text) if text.isdigit() and int(text) > 0 else 1001


def _batches(ids: Sequence[str]) -> Iterable[Sequence[str]]:
    return (ids[start : start + IDS_PER_CALL] for start in range(0, len(ids), IDS_PER_CALL))
