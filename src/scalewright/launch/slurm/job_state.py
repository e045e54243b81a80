"""What became of a job: Slurm's two dozen states as the few that decide what to do next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class JobState(StrEnum):
    PLANNED = "planned"
    """Written down, not yet known to the scheduler."""
    PENDING = "pending"
    RUNNING = "running"
    REQUEUED = "requeued"
    """Stopped and waiting for its next attempt under the same id."""
    COMPLETED = "completed"
    FAILED = "failed"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out-of-memory"
    NODE_FAIL = "node-fail"
    PREEMPTED = "preempted"
    CANCELLED = "cancelled"
    BELOW_GATE = "below-gate"
    """It ran to its end, but its score is under the threshold."""
    LOST = "lost"
    """The scheduler has forgotten it, and it left no word."""

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
"""What another attempt may cure. Too little memory stays too little, and somebody meant to cancel."""

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
    """A state as squeue, sacct or scontrol write it: `CANCELLED by 1000`, `NODE_FAIL+`, or JSON's list of flags."""
    words = [text] if isinstance(text, str) else list(text)
    for word in words:
        name = (word.split() or [""])[0].rstrip("+").upper()
        if name in _BY_SLURM:
            return _BY_SLURM[name]
    return JobState.LOST


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatus:
    """One job, or one task of an array, as the scheduler tells it."""

    state: JobState
    reason: str = ""
    nodes: str = ""
    """Slurm's own list, such as n[1-3]."""
    exit_code: int | None = None
    elapsed_s: float = 0.0
