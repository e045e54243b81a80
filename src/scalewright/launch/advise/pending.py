"""A pending job: why it waits, in Slurm's words and in plain ones, and the smallest change that starts it sooner."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from scalewright.errors import ConfigError
from scalewright.launch.advise.queue import Queue, QueuedJob, calendar
from scalewright.sites.pending import Reason, reason_of
from scalewright.sites.walltime import format_walltime

SHORTEST_S = 60
WORTH_S = 60.0
"""A change must save at least this much time, and at least a tenth of the wait. Otherwise it is not suggested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChange:
    """A change to a waiting job, and the time it saves."""

    text: str
    command: str
    wait_s: float
    saves_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingJob:
    """A waiting job and the reason why it waits."""

    job: QueuedJob
    reason: Reason
    ahead: int
    """Waiting jobs of higher priority that compete for its nodes."""
    nodes_ahead: int
    rank_by_priority: int
    wait_s: float | None
    """From the current queue; None: it does not start until something changes."""
    change: JobChange | None


def explain(queue: Queue, job_id: str) -> PendingJob:
    job = next((j for j in queue.jobs if j.id == job_id), None)
    if job is None:
        raise ConfigError(f"job {job_id} neither runs nor waits on this cluster: look for it with: sacct -j {job_id}")
    if job.is_running:
        raise ConfigError(f"job {job_id} is running on {','.join(job.nodes)}: give the id of a waiting job")
    mine = {node for name in job.partitions for node in queue.nodes_of.get(name, ())}
    before = []
    for other in queue.waiting():
        if other.id == job.id:
            break
        theirs = {node for name in other.partitions for node in queue.nodes_of.get(name, ())}
        if other.competes and mine & theirs:
            before.append(other)
    wait_s = _wait_s(queue, job, num_nodes=job.num_nodes, limit_s=job.limit_s, partition="") if job.competes else None
    return PendingJob(
        job=job,
        reason=reason_of(job.reason),
        ahead=len(before),
        nodes_ahead=sum(other.num_nodes for other in before),
        rank_by_priority=1 + [j.id for j in queue.waiting()].index(job.id),
        wait_s=wait_s,
        change=None if wait_s is None else smallest_change(queue, job, wait_s),
    )


def smallest_change(queue: Queue, job: QueuedJob, wait_s: float) -> JobChange | None:
    """The first change that saves enough time. Tried in this order: shorter limit, other partition, fewer nodes."""
    for text, command, num_nodes, limit_s, partition in _changes(queue, job):
        new_s = _wait_s(queue, job, num_nodes=num_nodes, limit_s=limit_s, partition=partition)
        if new_s is not None and wait_s - new_s >= max(WORTH_S, 0.1 * wait_s):
            return JobChange(text=text, command=command, wait_s=new_s, saves_s=wait_s - new_s)
    return None


def _changes(queue: Queue, job: QueuedJob) -> Iterator[tuple[str, str, int, float, str]]:
    update = f"scontrol update JobId={job.id}"
    for share in (0.75, 0.5, 0.25, 0.125):
        limit_s = int(job.limit_s * share) // 60 * 60
        if limit_s >= SHORTEST_S:
            limit = format_walltime(limit_s)
            yield f"a limit of {limit}", f"{update} TimeLimit={limit}", job.num_nodes, float(limit_s), ""
    for name in sorted(set(queue.nodes_of) - set(job.partitions)):
        yield f"partition {name}", f"{update} Partition={name}", job.num_nodes, job.limit_s, name
    for share in (0.75, 0.5, 0.25):
        fewer = int(job.num_nodes * share)
        if 1 <= fewer < job.num_nodes:
            yield f"{fewer} nodes", f"{update} NumNodes={fewer}", fewer, job.limit_s, ""


def _wait_s(queue: Queue, job: QueuedJob, *, num_nodes: int, limit_s: float, partition: str) -> float | None:
    """Wait behind the jobs of higher priority only: a changed job keeps its priority."""
    ahead = []
    for other in queue.waiting():
        if other.id == job.id:
            break
        ahead.append(other)
    plan = calendar(Queue(jobs=(*queue.running(), *ahead), nodes_of=queue.nodes_of))
    waits_s = [
        plan.wait_s(num_nodes=num_nodes, limit_s=limit_s, partition=name)
        for name in ((partition,) if partition else job.partitions)
    ]
    return min((wait_s for wait_s in waits_s if wait_s is not None), default=None)
