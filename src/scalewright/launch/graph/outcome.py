"""What a job left in its run directory: how it ended, whether it starved, and its score."""

from __future__ import annotations

import os
import re
from pathlib import Path

from scalewright.errors import ScalewrightError
from scalewright.launch.graph.graph import GateRule
from scalewright.launch.graph.manifest import Job
from scalewright.launch.slurm.job_state import JobState, TaskStatus
from scalewright.records.documents import parse_json, read_text
from scalewright.records.run_directory import ExitInfo, RunDirectory
from scalewright.records.types import ExitCode

TAIL_BYTES = 8192
_STARVED = re.compile(
    r"does not fit in memory|out of memory|oom[-_ ]kill|exceeded (?:job|step) memory limit"
    r"|OutOfMemoryError|MemoryError",
    re.IGNORECASE,
)


def exit_info_of(job: Job, task: int) -> ExitInfo | None:
    """How its latest attempt ended, by its own word; an older one's word does not count."""
    try:
        found = RunDirectory(job.folder(task)).read_exit_info()
    except (ScalewrightError, TypeError, OSError):
        return None
    return found if found is not None and found.time >= int(job.planned_s) else None


def tail(path: Path, num_bytes: int = TAIL_BYTES) -> str:
    """The end of a log; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - num_bytes, 0))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def after_failure(job: Job, task: int, status: TaskStatus) -> tuple[JobState, str]:
    """A failure told apart: too little memory, or anything else, with the job's own reason."""
    info = exit_info_of(job, task)
    said = "" if info is None or info.finished else info.reason
    if _STARVED.search(said) or _STARVED.search(tail(job.log(task))):
        return JobState.OUT_OF_MEMORY, said or "its log says that memory ran out"
    return status.state, said or status.reason


def after_silence(job: Job, task: int) -> tuple[JobState, str]:
    """The state of a task that the scheduler knows nothing of any more, from what it left."""
    info = exit_info_of(job, task)
    if info is None:
        return JobState.LOST, "the scheduler has forgotten it and it left no exit_info.json: look into its log"
    if info.finished:
        return JobState.COMPLETED, ""
    if _STARVED.search(info.reason):
        return JobState.OUT_OF_MEMORY, info.reason
    return (JobState.PREEMPTED if info.code == ExitCode.REQUEUE else JobState.FAILED), info.reason


def below_gate(job: Job, task: int, gate: GateRule) -> str:
    """Why a task does not pass its gate; empty if it does."""
    path = job.folder(task) / gate.file
    try:
        value = parse_json(read_text(path), where=str(path))
    except ScalewrightError as error:
        return f"no score: {error}"
    for part in gate.key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"no score: {path} has no number {gate.key}"
    return "" if value >= gate.min_score else f"{gate.key} is {value:g}, below the gate of {gate.min_score:g}"
