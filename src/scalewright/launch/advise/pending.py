"""Why a job waits, in Slurm's words and in plain ones, and the smallest change that starts it sooner."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from scalewright.errors import ConfigError
from scalewright.launch.advise.queue import Queue, QueuedJob, calendar
from scalewright.sites.walltime import format_walltime

SOURCE = "https://slurm.schedmd.com/job_reason_codes.html"
SHORTEST_S = 60
WORTH_S = 60.0
"""A change that brings less than this, or less than a tenth of the wait, is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One of Slurm's reason codes, or the beginning that several share."""

    code: str
    meaning: str
    remedy: str
    """What to do; empty: wait, or ask for less."""


_ROWS = (
    ("Resources", "it is the next, and not enough nodes are free", ""),
    ("Priority", "jobs of higher priority come first", ""),
    ("Nodes required for job are DOWN", "nodes that it needs are down, drained or reserved",
     "leave out --nodelist and rare constraints, or wait for the nodes"),
    ("ReqNodeNotAvail", "a node that it names is down, drained or reserved",
     "leave out --nodelist, or end before the reservation with a shorter --time"),
    ("Reservation", "its reservation has not begun, or is full", "look at: scontrol show reservation"),
    ("Dependency", "it waits for another job", "look at: squeue -j ID -o %E"),
    ("DependencyNeverSatisfied", "the job that it waits for failed, so it will never run",
     "cancel it and submit it again; --kill-on-invalid-dep=yes does so by itself"),
    ("JobHeldUser", "its owner holds it", "scontrol release ID"),
    ("JobHeldAdmin", "the operators hold it", "ask them why"),
    ("BeginTime", "its --begin has not come, or it was just requeued", "wait, or change --begin"),
    ("JobArrayTaskLimit", "its array runs as many tasks at once as it allows",
     "raise the number after % with: scontrol update JobId=ID ArrayTaskThrottle=N"),
    ("PartitionTimeLimit", "its --time is over the partition's", "shorten it, or take another partition"),
    ("PartitionNodeLimit", "it asks for more nodes than the partition gives",
     "ask for fewer nodes, or take another partition"),
    ("PartitionDown", "the partition starts no jobs now", "take another partition"),
    ("PartitionInactive", "the partition takes no jobs", "take another partition"),
    ("PartitionConfig", "the request does not fit the partition", "compare it with: scontrol show partition"),
    ("BadConstraints", "no node has what it asks for", "change --constraint, --gres or --mem"),
    ("InvalidAccount", "its account does not exist or is over", "give --account anew"),
    ("InvalidQOS", "its QOS does not exist or is not for this account", "give --qos anew"),
    ("AccountNotAllowed", "the partition does not take its account", "take another partition"),
    ("QOSNotAllowed", "the partition does not take its QOS", "take another QOS or partition"),
    ("QOSMaxWallDurationPerJobLimit", "its --time is over its QOS's", "shorten --time"),
    ("QOSMaxJobsPerUserLimit", "its owner runs as many jobs as the QOS allows",
     "wait for one of your jobs, or take another QOS"),
    ("QOSGrp", "all users of its QOS together are at a limit", "take another QOS, or wait"),
    ("QOSMax", "it asks for more than its QOS gives one job or user", "ask for less, or take another QOS"),
    ("QOSUsageThreshold", "its QOS's usage is over a threshold", "take another QOS"),
    ("AssocGrp", "its account is at a limit for all its jobs together, often its GPU-hours",
     "wait for other jobs of the account, or ask for more hours"),
    ("AssocMax", "it asks for more than its account gives one job or user", "ask for less"),
    ("MaxGRESPerAccount", "its account holds as many GPUs as it may", "wait for its other jobs"),
    ("Max", "it is over a limit of its QOS per account or user", "ask for less"),
    ("Licenses", "it waits for a licence", "leave --licenses out if it is not needed"),
    ("Prolog", "its nodes are being prepared", "wait a minute"),
    ("Cleaning", "its last attempt is being cleaned up", "wait a minute"),
    ("BurstBuffer", "its burst buffer is being filled or is full", "ask for a smaller one"),
    ("launch failed requeued held", "it could not be started and is held",
     "look for bad nodes, then: scontrol release ID"),
    ("None", "the scheduler has not looked at it yet", "wait a minute"),
)  # fmt: skip
REASONS = tuple(Reason(code=code, meaning=meaning, remedy=remedy) for code, meaning, remedy in _ROWS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change to a waiting job and what it brings."""

    text: str
    command: str
    wait_s: float
    saves_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """A waiting job, explained."""

    job: QueuedJob
    reason: Reason
    ahead: int
    """Waiting jobs of higher priority that want some of its nodes."""
    nodes_ahead: int
    rank_by_priority: int
    wait_s: float | None
    """By the queue as it stands; None: never, or not before something changes."""
    change: Change | None


def reason_of(text: str) -> Reason:
    """The longest code that the reason begins with."""
    plain = text.strip("()")
    found = [reason for reason in REASONS if plain.startswith(reason.code)]
    if not found:
        return Reason(code=plain or "None", meaning="Slurm gives no more than that", remedy=f"see {SOURCE}")
    return max(found, key=lambda reason: len(reason.code))


def explain(queue: Queue, job_id: str) -> Explained:
    job = next((j for j in queue.jobs if j.id == job_id), None)
    if job is None:
        raise ConfigError(f"job {job_id} neither runs nor waits here: look for it with: sacct -j {job_id}")
    if job.is_running:
        raise ConfigError(f"job {job_id} runs already, on {','.join(job.nodes)}: there is nothing to explain")
    mine = {node for name in job.partitions for node in queue.nodes_of.get(name, ())}
    before = []
    for other in queue.waiting():
        if other.id == job.id:
            break
        theirs = {node for name in other.partitions for node in queue.nodes_of.get(name, ())}
        if other.competes and mine & theirs:
            before.append(other)
    wait_s = _wait_s(queue, job, num_nodes=job.num_nodes, limit_s=job.limit_s, partition="") if job.competes else None
    return Explained(
        job=job,
        reason=reason_of(job.reason),
        ahead=len(before),
        nodes_ahead=sum(other.num_nodes for other in before),
        rank_by_priority=1 + [j.id for j in queue.waiting()].index(job.id),
        wait_s=wait_s,
        change=None if wait_s is None else smallest_change(queue, job, wait_s),
    )


def smallest_change(queue: Queue, job: QueuedJob, wait_s: float) -> Change | None:
    """The first that is worth it, from the mildest on: a shorter limit, another partition, fewer nodes."""
    for text, command, num_nodes, limit_s, partition in _changes(queue, job):
        new_s = _wait_s(queue, job, num_nodes=num_nodes, limit_s=limit_s, partition=partition)
        if new_s is not None and wait_s - new_s >= max(WORTH_S, 0.1 * wait_s):
            return Change(text=text, command=command, wait_s=new_s, saves_s=wait_s - new_s)
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
    """Behind those of higher priority only: a changed job keeps its place."""
    ahead = []
    for other in queue.waiting():
        if other.id == job.id:
            break
        ahead.append(other)
    kept = Queue(jobs=(*queue.running(), *ahead), nodes_of=queue.nodes_of)
    plan = calendar(kept)
    waits = [
        plan.wait_s(num_nodes=num_nodes, limit_s=limit_s, partition=name)
        for name in ((partition,) if partition else job.partitions)
    ]
    known = [wait for wait in waits if wait is not None]
    return min(known) if known else None
