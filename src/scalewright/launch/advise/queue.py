"""The queue as it stands, read from squeue and sinfo, and when a request would start in it.

`sbatch --test-only` looks at running jobs and not at those that wait, so its answer is a lower bound; here those that
wait get their nodes first, each at its earliest time, as Slurm's backfill plans them.
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
from scalewright.sites.walltime import parse_walltime_s

QUEUE_FORMAT = "%i|%P|%T|%D|%Q|%l|%L|%N|%r|%S|%u"
NODES_FORMAT = "%N|%R|%T"
UNLIMITED_S = 365 * units.DAY_S
MAX_WAITING = 64
"""Jobs ahead that are planned; those behind them change little for a request that starts soon."""
_UNUSABLE = re.compile(r"down|drain|fail|maint|unknown|powering_down|no_respond|inval|reboot|\*$", re.IGNORECASE)
_NOT_COMPETING = re.compile(
    r"^(JobHeld|Dependency|BeginTime|Assoc|QOS|Max|Invalid|Bad|Partition(Time|Node|Down|Inactive)|Reservation|Deadline"
    r"|JobArrayTaskLimit|AccountNotAllowed|AccountingPolicy|Prolog|Cleaning|launch failed)"
)
_TESTED = re.compile(
    r"Job \d+ to start at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\S* (?:a\s+)?using (\d+) processors"
    r" on (?:nodes )?(\S+?)(?: in partition (\S+))?(?:;|$)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A job of anybody's, as squeue shows it."""

    id: str
    partitions: tuple[str, ...]
    is_running: bool
    num_nodes: int
    priority: int
    limit_s: float
    left_s: float
    """Of its limit; of a waiting job all."""
    nodes: tuple[str, ...]
    reason: str
    start: str
    """When the scheduler plans to start it; N/A where it does not say."""
    user: str

    @property
    def competes(self) -> bool:
        """Whether it would take nodes before others; held or limited jobs do not."""
        return not _NOT_COMPETING.match(self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """Who runs, who waits, and which nodes each partition has."""

    jobs: tuple[QueuedJob, ...]
    nodes_of: dict[str, tuple[str, ...]]
    """Usable nodes by partition."""

    def running(self) -> list[QueuedJob]:
        return [job for job in self.jobs if job.is_running]

    def waiting(self) -> list[QueuedJob]:
        """By priority, then by age."""
        found = [job for job in self.jobs if not job.is_running]
        return sorted(found, key=lambda job: (-job.priority, _number(job.id)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tested:
    """What `sbatch --test-only` answered."""

    start_s: float
    """Since the epoch."""
    num_processors: int
    nodes: str
    partition: str


def parse_queue(text: str) -> tuple[QueuedJob, ...]:
    found = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("|")]
        if len(parts) != 11 or parts[2] not in ("RUNNING", "PENDING", "COMPLETING", "CONFIGURING", "SUSPENDED"):
            continue
        id_, partitions, state, num_nodes, priority, limit, left, nodes, reason, start, user = parts
        limit_s = time_s(limit)
        found.append(
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
    return tuple(found)


def parse_nodes(text: str) -> dict[str, tuple[str, ...]]:
    """Usable nodes by partition, from `sinfo -h -N -o NODES_FORMAT`."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        parts = line.strip().split("|")
        if len(parts) == 3 and not _UNUSABLE.search(parts[2]):
            found.setdefault(parts[1], []).append(parts[0])
    return {name: tuple(dict.fromkeys(nodes)) for name, nodes in found.items()}


def parse_test_only(words: str) -> Tested:
    """The start that `sbatch --test-only` estimates, from its words; those of every version since 14.11."""
    match = _TESTED.search(words)
    if match is None:
        raise ConfigError(
            f"sbatch --test-only gave no start time: {' '.join(words.split())[:200] or 'it said nothing'}"
        )
    return Tested(
        start_s=datetime.fromisoformat(match.group(1)).timestamp(),
        num_processors=int(match.group(2)),
        nodes=match.group(3),
        partition=match.group(4) or "",
    )


def time_s(text: str) -> float:
    """A limit of squeue; UNLIMITED and what is not set count as a year, one that is over as nothing."""
    if text in ("INVALID", "0:00"):
        return 0.0
    try:
        return float(parse_walltime_s(text))
    except ConfigError:
        return UNLIMITED_S


class Calendar:
    """Which nodes are free when. Whole nodes: one with any job on it counts as taken."""

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
                    place = self._index[node]
                    self._busy_until_s[place] = max(self._busy_until_s[place], job.left_s)
        self._reserved: list[tuple[float, float, NDArray[np.intp]]] = []

    def plan(self, jobs: Iterable[QueuedJob]) -> None:
        """Give waiting jobs their nodes, in this order, each at its earliest time."""
        for job in list(jobs)[:MAX_WAITING]:
            offers = [self._earliest(job.num_nodes, job.limit_s, name) for name in job.partitions]
            possible = [offer for offer in offers if offer is not None]
            if possible:
                start_s, nodes = min(possible, key=lambda offer: offer[0])
                self._reserved.append((start_s, start_s + job.limit_s, nodes))

    def wait_s(self, *, num_nodes: int, limit_s: float, partition: str) -> float | None:
        """Until a request would start behind everybody planned; None where the partition never has so many nodes."""
        found = self._earliest(num_nodes, limit_s, partition)
        return None if found is None else found[0]

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
    """The queue planned ahead, as somebody would find it who comes last; `without` leaves one job out."""
    found = Calendar(queue)
    found.plan(job for job in queue.waiting() if job.competes and job.id != without)
    return found


def _number(job_id: str) -> int:
    digits = re.match(r"\d+", job_id)
    return int(digits.group()) if digits else 0
