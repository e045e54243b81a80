"""The state of a job: Slurm's two dozen states, reduced to those that decide what happens next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class JobState(StrEnum):
    PLANNED = "planned"
    """Recorded in the manifest, not yet submitted."""
    PENDING = "pending"
    RUNNING = "running"
    REQUEUED = "requeued"
    """Stopped, and waiting for its next attempt under the same id."""
    COMPLETED = "completed"
    FAILED = "failed"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out-of-memory"
    NODE_FAIL = "node-fail"
    PREEMPTED = "preempted"
    CANCELLED = "cancelled"
    BELOW_GATE = "below-gate"
    """It completed, but its score is below the gate."""
    LOST = "lost"
    """The scheduler no longer lists it, and it wrote no exit_info.json."""

    @property
    def has_ended(self) -> bool:
        return self not in _OPEN

    @property
    def is_ok(self) -> bool:
        return self is JobState.COMPLETED


_OPEN = frozenset({JobState.PLANNED, JobState.PENDING, JobState.RUNNING, JobState.REQUEUED})

RETRIED = frozenset(
    {JobState.FAILED, JobState.TIMEOUT, JobState.NODE_FAIL, JobState.PREEMPTED, JobState.LOST}
)  # fmt: skip
"""States that a retry may cure. Out-of-memory would happen again, and cancelled is the user's choice."""

_BY_SLURM = {
    "PENDING": JobState.PENDING,
    "CONFIGURING": JobState.PENDING,
    "RESV_DEL_HOLD": JobState.PENDING,
    "REQUEUED": JobState.REQUEUED,
    "REQUEUE_FED": JobState.REQUEUED,
    "REQUEUE_HOLD": JobState.REQUEUED,
    "SPECIAL_EXIT": JobState.REQUEUED,
    "RUNNING": JobState.RUNNING,
    "COMPLETING": JobState.RUNNING,
    "RESIZING": JobState.RUNNING,
    "SIGNALING": JobState.RUNNING,
    "STAGE_OUT": JobState.RUNNING,
    "STOPPED": JobState.RUNNING,
    "SUSPENDED": JobState.RUNNING,
    "COMPLETED": JobState.COMPLETED,
    "FAILED": JobState.FAILED,
    "DEADLINE": JobState.TIMEOUT,
    "TIMEOUT": JobState.TIMEOUT,
    "OUT_OF_MEMORY": JobState.OUT_OF_MEMORY,
    "BOOT_FAIL": JobState.NODE_FAIL,
    "NODE_FAIL": JobState.NODE_FAIL,
    "PREEMPTED": JobState.PREEMPTED,
    "CANCELLED": JobState.CANCELLED,
    "REVOKED": JobState.CANCELLED,
}


def parse_state(text: str | Iterable[str]) -> JobState:
    """A state as squeue, sacct or scontrol print it: `CANCELLED by 1000`, `NODE_FAIL+`, or a list of flags in JSON."""
    words = [text] if isinstance(text, str) else list(text)
    for word in words:
        name = (word.split() or [""])[0].rstrip("+").upper()
        if name in _BY_SLURM:
            return _BY_SLURM[name]
    return JobState.LOST


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatus:
    """State of one job, or of one task of an array, as the scheduler reports it."""

    state: JobState
    reason: str = ""
    nodes: str = ""
    """Slurm's node list, such as n[1-3]."""
    exit_code: int | None = None
    elapsed_s: float = 0.0
