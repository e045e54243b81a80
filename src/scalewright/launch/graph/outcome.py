"""The outcome of a task, from its run directory: how it ended, whether memory ran out, and its score."""

from __future__ import annotations

import os
import re
from pathlib import Path

from scalewright.errors import ScalewrightError
from scalewright.launch.graph.graph import GateRule
from scalewright.launch.graph.manifest import SlurmJob
from scalewright.launch.slurm.job_state import JobState, TaskStatus
from scalewright.records.documents import parse_json, read_text
from scalewright.records.run_directory import ExitInfo, RunDirectory
from scalewright.records.types import ExitCode

TAIL_BYTES = 8192
_OUT_OF_MEMORY = re.compile(
    r"does not fit in memory|out of memory|oom[-_ ]kill|exceeded (?:job|step) memory limit"
    r"|OutOfMemoryError|MemoryError",
    re.IGNORECASE,
)


def exit_info_of(job: SlurmJob, task: int) -> ExitInfo | None:
    """The exit_info.json of the latest attempt. None if it is absent or from an earlier attempt."""
    try:
        info = RunDirectory(job.folder(task)).read_exit_info()
    except (ScalewrightError, TypeError, OSError):
        return None
    return info if info is not None and info.time >= int(job.planned_s) else None


def tail(path: Path, num_bytes: int = TAIL_BYTES) -> str:
    """The last bytes of a log; empty if there is no log."""
    try:
        with path.open("rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - num_bytes, 0))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def after_failure(job: SlurmJob, task: int, status: TaskStatus) -> tuple[JobState, str]:
    """State and reason of a failed task. Out of memory is a separate state, because a retry cannot help."""
    info = exit_info_of(job, task)
    own_reason = "" if info is None or info.finished else info.reason
    if _OUT_OF_MEMORY.search(own_reason) or _OUT_OF_MEMORY.search(tail(job.log(task))):
        return JobState.OUT_OF_MEMORY, own_reason or "its log says that memory ran out"
    return status.state, own_reason or status.reason


def after_silence(job: SlurmJob, task: int) -> tuple[JobState, str]:
    """State and reason of a task that the scheduler no longer lists, from its exit_info.json."""
    info = exit_info_of(job, task)
    if info is None:
        return JobState.LOST, "the scheduler no longer lists it and it wrote no exit_info.json: look into its log"
    if info.finished:
        return JobState.COMPLETED, ""
    if _OUT_OF_MEMORY.search(info.reason):
        return JobState.OUT_OF_MEMORY, info.reason
    return (JobState.PREEMPTED if info.code == ExitCode.REQUEUE else JobState.FAILED), info.reason


def below_gate(job: SlurmJob, task: int, gate: GateRule) -> str:
    """Why a task does not pass its gate; empty if it passes."""
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
