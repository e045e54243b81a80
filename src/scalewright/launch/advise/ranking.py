"""Which request gets the result soonest: the planner's run times and the scheduler's start times, put together.

Every request that the plan and the partitions allow is placed in the queue as it stands, which costs nobody anything;
only the most promising are asked of the scheduler, one after the other with a pause.
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

MAX_TESTS = 16
"""Calls of `sbatch --test-only` for one advice, the original request's among them."""
PAUSE_S = 0.2
"""Between two such calls: each of them plans on the controller."""
FRACTIONS = (1.0, 0.5, 0.25, 0.125)
"""Limits looked at, as shares of the honest one: short jobs fill the gaps between long ones."""
MINUTE_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request to a queue."""

    num_nodes: int
    partition: str
    limit_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A request, and when it would bring the result."""

    ask: Ask
    count: NodeCount
    num_jobs: int
    planned_wait_s: float
    """By the queue as it stands, behind all that wait."""
    tested_wait_s: float | None = None
    """By `sbatch --test-only`; None: not asked."""
    total_s: float = 0.0
    refusal: str = ""
    """Why the scheduler would not take it, in its words."""

    @property
    def wait_s(self) -> float:
        """The later of both: one knows who waits, the other what the request needs besides nodes."""
        return max(self.planned_wait_s, self.tested_wait_s or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Offers, the soonest result first, and the original beside them."""

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
        return self.best.ask != self.original.ask and self.best.total_s < self.original.total_s


Test = Callable[[Ask], str]
"""The scheduler's words about a request. Raises SchedulerRefusedError, or ConfigError where a site's rule says no."""


def read_queue(runner: Runner) -> Queue:
    """Two calls, whatever the size of the cluster."""
    jobs = runner.call(["squeue", "-h", "-a", "--states=RUNNING,PENDING,COMPLETING", "-o", QUEUE_FORMAT])
    nodes = runner.call(["sinfo", "-h", "-a", "-N", "-o", NODES_FORMAT])
    return Queue(jobs=parse_queue(jobs), nodes_of=parse_nodes(nodes))


def candidates(
    run: PlannedRun, partitions: Iterable[LivePartition], *, gpus_per_node: int
) -> list[tuple[Ask, NodeCount]]:
    """Every node count of the plan in every partition, at the honest limit and at shorter ones."""
    found: dict[Ask, NodeCount] = {}
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
                    found[Ask(num_nodes=count.num_nodes, partition=partition.name, limit_s=limit_s)] = count
    return list(found.items())


def placed(run: PlannedRun, ask: Ask, count: NodeCount, plan: Calendar) -> Offer | None:
    """A request in the queue as it stands; None where its partition never has so many nodes."""
    wait_s = plan.wait_s(num_nodes=ask.num_nodes, limit_s=float(ask.limit_s), partition=ask.partition)
    num_jobs = run.num_jobs(count, ask.limit_s)
    if wait_s is None or num_jobs is None:
        return None
    return Offer(
        ask=ask, count=count, num_jobs=num_jobs, planned_wait_s=wait_s,
        total_s=run.total_s(count, num_jobs=num_jobs, wait_s=wait_s),
    )  # fmt: skip


def ranked(offers: Iterable[Offer], *, partition: str) -> list[Offer]:
    """The soonest result first; of equals the least node time, the fewest jobs, then the partition that was asked."""

    def key(offer: Offer) -> tuple[float, float, int, bool, int]:
        node_time_s = offer.ask.num_nodes * offer.count.run_s
        return (round(offer.total_s), node_time_s, offer.num_jobs, offer.ask.partition != partition, offer.ask.limit_s)

    return sorted(offers, key=key)


def advise(
    run: PlannedRun,
    *,
    original: Ask,
    partitions: Sequence[LivePartition],
    queue: Queue,
    test: Test,
    now: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> Advice:
    """Place everything, ask the scheduler about the best, rank by time to result."""
    plan = calendar(queue)
    first = placed(run, original, run.count(original.num_nodes), plan)
    if first is None:
        raise ConfigError(
            f"partition {original.partition} has {len(queue.nodes_of.get(original.partition, ()))} usable nodes and "
            f"{original.num_nodes} are asked for, or the limit leaves no time to work: change --nodes, --time or "
            "--partition"
        )
    pairs = candidates(run, partitions, gpus_per_node=run.gpus_per_node)
    offers = [offer for ask, count in pairs if (offer := placed(run, ask, count, plan)) is not None]
    chosen = ranked((o for o in offers if o.ask != original), partition=original.partition)[: MAX_TESTS - 1]
    asked = [_tested(run, offer, test, now) for offer in _paced([first, *chosen], sleep)]
    good = [offer for offer in asked if not offer.refusal]
    if not good:
        raise SchedulerRefusedError(
            f"the scheduler takes none of {len(asked)} requests: {asked[0].refusal}", words=asked[0].refusal
        )
    return Advice(
        original=asked[0],
        offers=tuple(ranked(good, partition=original.partition)),
        refused=tuple(offer for offer in asked if offer.refusal),
        num_considered=len(offers) + 1,
        num_tested=len(asked),
        notes=_notes(queue, run),
    )


def _paced(offers: Sequence[Offer], sleep: Callable[[float], None]) -> Iterable[Offer]:
    for number, offer in enumerate(offers):
        if number:
            sleep(PAUSE_S)
        yield offer


def _tested(run: PlannedRun, offer: Offer, test: Test, now: Callable[[], float]) -> Offer:
    try:
        start_s = parse_test_only(test(offer.ask)).start_s
    except SchedulerRefusedError as error:
        return replace(offer, refusal=error.words or str(error))
    except ConfigError as error:
        return replace(offer, refusal=str(error))
    found = replace(offer, tested_wait_s=max(start_s - now(), 0.0))
    return replace(found, total_s=run.total_s(offer.count, num_jobs=offer.num_jobs, wait_s=found.wait_s))


def _notes(queue: Queue, run: PlannedRun) -> tuple[str, ...]:
    waiting = [job for job in queue.waiting() if job.competes]
    notes = [
        f"{len(queue.running())} jobs run, {len(waiting)} wait and compete; a new job counts as the last of them",
        "running jobs are taken to use their whole limit: most end sooner, so waits are upper ends",
        f"run times: {run.basis}",
    ]
    if any(count.num_nodes != run.num_nodes for count in run.counts):
        notes.append("another node count means another layout: plan again with it before launching")
    return tuple(notes)
