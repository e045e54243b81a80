"""The current queue, read from squeue and sinfo, and when a request would start in it.

`sbatch --test-only` considers running jobs but not waiting ones, so its answer is a lower bound. Here the waiting jobs
get their nodes first, each at its earliest time, as Slurm's backfill plans them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from scalewright import units
from scalewright.errors import ConfigError
from scalewright.records.node_list import expand_nodes
from scalewright.sites.pending import competes
from scalewright.sites.walltime import parse_walltime_s

QUEUE_FORMAT = "%i|%P|%T|%D|%Q|%l|%L|%N|%r|%S|%u"
NODES_FORMAT = "%N|%R|%T"
UNLIMITED_S = 365 * units.DAY_S
MAX_WAITING = 64
"""Waiting jobs that are planned. Later ones change little for a request that starts soon."""
_UNUSABLE = re.compile(r"down|drain|fail|maint|unknown|powering_down|no_respond|inval|reboot|\*$", re.IGNORECASE)
_TESTED = re.compile(
    r"Job \d+ to start at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\S* (?:a\s+)?using (\d+) processors"
    r" on (?:nodes )?(\S+?)(?: in partition (\S+))?(?:;|$)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A job of any user, as squeue lists it."""

    id: str
    partitions: tuple[str, ...]
    is_running: bool
    num_nodes: int
    priority: int
    limit_s: float
    left_s: float
    """Time that remains of its limit; of a waiting job the whole limit."""
    nodes: tuple[str, ...]
    reason: str
    start: str
    """When the scheduler plans to start it, or N/A."""
    user: str

    @property
    def competes(self) -> bool:
        """Whether it can start as soon as nodes are free; held jobs and jobs over a limit cannot."""
        return competes(self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """Running and waiting jobs, and the usable nodes of each partition."""

    jobs: tuple[QueuedJob, ...]
    nodes_of: dict[str, tuple[str, ...]]
    """Usable nodes by partition."""

    def running(self) -> list[QueuedJob]:
        return [job for job in self.jobs if job.is_running]

    def waiting(self) -> list[QueuedJob]:
        """Waiting jobs by priority, then by age."""
        waiting = [job for job in self.jobs if not job.is_running]
        return sorted(waiting, key=lambda job: (-job.priority, _number(job.id)))


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatedStart:
    """The estimate of `sbatch --test-only`."""

    start_s: float
    """Since the epoch."""
    num_processors: int
    nodes: str
    partition: str


def parse_queue(text: str) -> tuple[QueuedJob, ...]:
    """Jobs from the output of `squeue -h -o QUEUE_FORMAT`."""
    jobs = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("|")]
        if len(parts) != 11 or parts[2] not in ("RUNNING", "PENDING", "COMPLETING", "CONFIGURING", "SUSPENDED"):
            continue
        id_, partitions, state, num_nodes, priority, limit, left, nodes, reason, start, user = parts
        limit_s = time_s(limit)
        jobs.append(
            QueuedJob(
                id=id_,
                partitions=tuple(filter(None, partitions.split(","))),
                is_running=state != "PENDING",
                num_nodes=int(num_nodes) if num_nodes.isdigit() else 1,
                priority=int(priority) if priority.isdigit() else 0,
                limit_s=limit_s,
                left_s=limit_s if state == "PENDING" else time_s(left),
                nodes=expand_nodes(nodes),
                reason=reason,
                start=start,
                user=user,
            )
        )
    return tuple(jobs)


def parse_nodes(text: str) -> dict[str, tuple[str, ...]]:
    """Usable nodes by partition, from `sinfo -h -N -o NODES_FORMAT`."""
    nodes_of: dict[str, list[str]] = {}
    for line in text.splitlines():
        parts = line.strip().split("|")
        if len(parts) == 3 and not _UNUSABLE.search(parts[2]):
            nodes_of.setdefault(parts[1], []).append(parts[0])
    return {name: tuple(dict.fromkeys(nodes)) for name, nodes in nodes_of.items()}


def parse_test_only(message: str) -> EstimatedStart:
    """The start in the message of `sbatch --test-only`, as written by every version since 14.11."""
    match = _TESTED.search(message)
    if match is None:
        raise ConfigError(
            f"sbatch --test-only printed no start time: {' '.join(message.split())[:200] or 'it printed nothing'}"
        )
    return EstimatedStart(
        start_s=datetime.fromisoformat(match.group(1)).timestamp(),
        num_processors=int(match.group(2)),
        nodes=match.group(3),
        partition=match.group(4) or "",
    )


def time_s(text: str) -> float:
    """A time limit of squeue. UNLIMITED and unset limits count as a year, an expired limit as 0."""
    if text in ("INVALID", "0:00"):
        return 0.0
    try:
        return float(parse_walltime_s(text))
    except ConfigError:
        return UNLIMITED_S


class Calendar:
    """When each node is free. Nodes count as a whole: a node with any job on it is taken."""

    def __init__(self, queue: Queue) -> None:
        names = sorted({node for nodes in queue.nodes_of.values() for node in nodes})
        self._index = {name: number for number, name in enumerate(names)}
        self._nodes_of = {
            partition: np.array([self._index[node] for node in nodes], dtype=np.intp)
            for partition, nodes in queue.nodes_of.items()
        }
        self._busy_until_s = np.zeros(len(names))
        for job in queue.running():
            for node in job.nodes:
                if node in self._index:
                    number = self._index[node]
                    self._busy_until_s[number] = max(self._busy_until_s[number], job.left_s)
        self._reserved: list[tuple[float, float, NDArray[np.intp]]] = []

    def plan(self, jobs: Iterable[QueuedJob]) -> None:
        """Reserve nodes for waiting jobs, in this order, each at its earliest time."""
        for job in list(jobs)[:MAX_WAITING]:
            starts = [self._earliest(job.num_nodes, job.limit_s, name) for name in job.partitions]
            possible = [start for start in starts if start is not None]
            if possible:
                start_s, nodes = min(possible, key=lambda start: start[0])
                self._reserved.append((start_s, start_s + job.limit_s, nodes))

    def wait_s(self, *, num_nodes: int, limit_s: float, partition: str) -> float | None:
        """Wait of a request behind all planned jobs; None if the partition does not have so many nodes."""
        start = self._earliest(num_nodes, limit_s, partition)
        return None if start is None else start[0]

    def _earliest(self, num_nodes: int, limit_s: float, partition: str) -> tuple[float, NDArray[np.intp]] | None:
        nodes = self._nodes_of.get(partition)
        if nodes is None or len(nodes) < num_nodes:
            return None
        times = {0.0, *self._busy_until_s[nodes].tolist(), *(end for _, end, _ in self._reserved)}
        for start_s in sorted(times):
            free = self._free(nodes, start_s, start_s + limit_s)
            if len(free) >= num_nodes:
                return start_s, free[:num_nodes]
        return None

    def _free(self, nodes: NDArray[np.intp], start_s: float, end_s: float) -> NDArray[np.intp]:
        taken = self._busy_until_s > start_s
        for begin, end, held in self._reserved:
            if begin < end_s and end > start_s:
                taken[held] = True
        return nodes[~taken[nodes]]


def calendar(queue: Queue, *, without: str = "") -> Calendar:
    """The calendar after all waiting jobs are planned, for a new request at the end; `without` omits one job."""
    planned = Calendar(queue)
    planned.plan(job for job in queue.waiting() if job.competes and job.id != without)
    return planned


def _number(job_id: str) -> int:
    digits = re.match(r"\d+", job_id)
    return int(digits.group()) if digits else 0
