"""Requests ranked by time to result: the plan's run times plus the wait in the queue.

Every request that the plan and the partitions allow is placed in our own model of the queue, which costs the scheduler
nothing. Only the best are tested with `sbatch --test-only`, one after the other with a pause.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from scalewright.errors import ConfigError
from scalewright.launch.advise.queue import (
    NODES_FORMAT,
    QUEUE_FORMAT,
    Calendar,
    Queue,
    calendar,
    parse_nodes,
    parse_queue,
    parse_test_only,
)
from scalewright.launch.advise.run_times import NodeCount, PlannedRun
from scalewright.sites.cluster import LivePartition
from scalewright.sites.scheduler import Runner, SchedulerRefusedError
from scalewright.sites.walltime import MINUTE_S

MAX_TESTS = 16
"""Calls of `sbatch --test-only` for one advice, including that for the original request."""
PAUSE_S = 0.2
"""Between two such calls, because each one loads the controller."""
FRACTIONS = (1.0, 0.5, 0.25, 0.125)
"""Time limits that are tried, as shares of the whole run's limit. Short jobs fill the gaps between long ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRequest:
    """A request for nodes of a partition, for a time."""

    num_nodes: int
    partition: str
    limit_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A request, and when its result would be there."""

    request: QueueRequest
    count: NodeCount
    num_jobs: int
    planned_wait_s: float
    """From our calendar of the queue, behind all waiting jobs."""
    tested_wait_s: float | None = None
    """From `sbatch --test-only`; None: not tested."""
    total_s: float = 0.0
    refusal: str = ""
    """Why the scheduler would refuse it, in its own words; empty: it would not."""

    @property
    def wait_s(self) -> float:
        """The longer of both waits: our calendar knows the waiting jobs, --test-only all other rules."""
        return max(self.planned_wait_s, self.tested_wait_s or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Offers, the soonest result first, and the original request for comparison."""

    original: Offer
    offers: tuple[Offer, ...]
    refused: tuple[Offer, ...]
    num_considered: int
    num_tested: int
    notes: tuple[str, ...]

    @property
    def best(self) -> Offer:
        return self.offers[0]

    @property
    def helps(self) -> bool:
        return self.best.request != self.original.request and self.best.total_s < self.original.total_s


TestOnly = Callable[[QueueRequest], str]
"""The message of `sbatch --test-only` about a request.

Raises SchedulerRefusedError, or ConfigError if a rule of the site forbids the request."""


def read_queue(runner: Runner) -> Queue:
    """The queue from one squeue and one sinfo call."""
    jobs = runner.call(["squeue", "-h", "-a", "--states=RUNNING,PENDING,COMPLETING", "-o", QUEUE_FORMAT])
    nodes = runner.call(["sinfo", "-h", "-a", "-N", "-o", NODES_FORMAT])
    return Queue(jobs=parse_queue(jobs), nodes_of=parse_nodes(nodes))


def candidates(
    run: PlannedRun, partitions: Iterable[LivePartition], *, gpus_per_node: int
) -> list[tuple[QueueRequest, NodeCount]]:
    """Every node count of the plan in every partition, with the limit of the whole run and with shorter ones."""
    counts: dict[QueueRequest, NodeCount] = {}
    for partition in partitions:
        if partition.gpus < gpus_per_node:
            continue
        for count in run.counts:
            if partition.max_nodes is not None and count.num_nodes > partition.max_nodes:
                continue
            longest = min(run.request_s(count), partition.max_time_s or run.request_s(count))
            for fraction in FRACTIONS:
                limit_s = math.ceil(longest * fraction / MINUTE_S) * MINUTE_S
                if limit_s <= longest and run.num_jobs(count, limit_s) is not None:
                    counts[QueueRequest(num_nodes=count.num_nodes, partition=partition.name, limit_s=limit_s)] = count
    return list(counts.items())


def placed(run: PlannedRun, request: QueueRequest, count: NodeCount, plan: Calendar) -> Offer | None:
    """A request placed in the current queue; None if its partition does not have so many nodes."""
    wait_s = plan.wait_s(num_nodes=request.num_nodes, limit_s=float(request.limit_s), partition=request.partition)
    num_jobs = run.num_jobs(count, request.limit_s)
    if wait_s is None or num_jobs is None:
        return None
    return Offer(
        request=request, count=count, num_jobs=num_jobs, planned_wait_s=wait_s,
        total_s=run.total_s(count, num_jobs=num_jobs, wait_s=wait_s),
    )  # fmt: skip


def ranked(offers: Iterable[Offer], *, partition: str) -> list[Offer]:
    """The soonest result first. Ties: less node time, then fewer jobs, then the original partition."""

    def key(offer: Offer) -> tuple[float, float, int, bool, int]:
        node_time_s = offer.request.num_nodes * offer.count.run_s
        return (
            round(offer.total_s),
            node_time_s,
            offer.num_jobs,
            offer.request.partition != partition,
            offer.request.limit_s,
        )

    return sorted(offers, key=key)


def advise(
    run: PlannedRun,
    *,
    original: QueueRequest,
    partitions: Sequence[LivePartition],
    queue: Queue,
    test: TestOnly,
    now: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> Advice:
    """Place all requests in the calendar, test the best with the scheduler, and rank them by time to result."""
    plan = calendar(queue)
    first = placed(run, original, run.count(original.num_nodes), plan)
    if first is None:
        raise ConfigError(
            f"partition {original.partition} has {len(queue.nodes_of.get(original.partition, ()))} usable nodes, and "
            f"{original.num_nodes} are requested, or the time limit is too short to work: change --nodes, --time or "
            "--partition"
        )
    pairs = candidates(run, partitions, gpus_per_node=run.gpus_per_node)
    offers = [offer for request, count in pairs if (offer := placed(run, request, count, plan)) is not None]
    best = ranked((o for o in offers if o.request != original), partition=original.partition)[: MAX_TESTS - 1]
    tested = [_tested(run, offer, test, now) for offer in _paced([first, *best], sleep)]
    accepted = [offer for offer in tested if not offer.refusal]
    if not accepted:
        raise SchedulerRefusedError(
            f"the scheduler accepts none of {len(tested)} requests: {tested[0].refusal}", words=tested[0].refusal
        )
    return Advice(
        original=tested[0],
        offers=tuple(ranked(accepted, partition=original.partition)),
        refused=tuple(offer for offer in tested if offer.refusal),
        num_considered=len(offers) + 1,
        num_tested=len(tested),
        notes=_notes(queue, run),
    )


def _paced(offers: Sequence[Offer], sleep: Callable[[float], None]) -> Iterable[Offer]:
    for number, offer in enumerate(offers):
        if number:
            sleep(PAUSE_S)
        yield offer


def _tested(run: PlannedRun, offer: Offer, test: TestOnly, now: Callable[[], float]) -> Offer:
    try:
        start_s = parse_test_only(test(offer.request)).start_s
    except SchedulerRefusedError as error:
        return replace(offer, refusal=error.words or str(error))
    except ConfigError as error:
        return replace(offer, refusal=str(error))
    tested = replace(offer, tested_wait_s=max(start_s - now(), 0.0))
    return replace(tested, total_s=run.total_s(offer.count, num_jobs=offer.num_jobs, wait_s=tested.wait_s))


def _notes(queue: Queue, run: PlannedRun) -> tuple[str, ...]:
    waiting = [job for job in queue.waiting() if job.competes]
    notes = [
        f"{len(queue.running())} jobs run and {len(waiting)} wait for nodes; a new job is placed after them",
        "running jobs are assumed to use their whole time limit; most end sooner, so waits are upper bounds",
        f"run times: {run.basis}",
    ]
    if any(count.num_nodes != run.num_nodes for count in run.counts):
        notes.append("another number of nodes needs another layout: plan again with it before you launch")
    return tuple(notes)
