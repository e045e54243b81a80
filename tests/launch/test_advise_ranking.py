"""Requests ranked by time to result; honest limits; a bounded number of questions to the scheduler."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest

from scalewright.costs.campaign import Interruptions, Saving
from scalewright.errors import ConfigError
from scalewright.launch.advise.queue import Queue, parse_nodes, parse_queue
from scalewright.launch.advise.ranking import MAX_TESTS, PAUSE_S, Advice, QueueRequest, advise
from scalewright.launch.advise.run_times import NodeCount, Pilot, PlannedRun, planned_run, with_pilot
from scalewright.sites.cluster import LivePartition, NodeKind
from scalewright.sites.scheduler import SchedulerRefusedError

NOW_S = datetime(2026, 11, 15, 8, 0, 0).timestamp()
RUN = PlannedRun(
    name="m", plan_id="p", gpus_per_node=4, num_nodes=4, margin_frac=0.1, every_s=300.0, basis="test",
    counts=tuple(
        NodeCount(num_nodes=n, num_gpus=4 * n, layout=f"dp={4 * n}", run_s=7200.0 / n, high_s=9000.0 / n)
        for n in (1, 2, 4, 8)
    ),
    saving=Saving(size_bytes=1e9, write_s=10.0, stall_s=1.0, read_s=5.0),
    stops=Interruptions(mttf_s=1e6, restart_s=600.0, startup_s=60.0),
)  # fmt: skip
ORIGINAL = QueueRequest(num_nodes=4, partition="batch", limit_s=4 * 3600)


def partition(name: str, num_nodes: int, *, max_time_s: int | None = 86400, gpus: int = 4) -> LivePartition:
    kind = NodeKind(partition=name, num_nodes=num_nodes, cpus=64, memory_mb=1, gpu_type="a", gpus=gpus, features=())
    return LivePartition(
        name=name, is_default=True, max_time_s=max_time_s, default_time_s=None, max_nodes=None, whole_node=True,
        nodes=(kind,),
    )  # fmt: skip


def queue(*busy_min: int, nodes: int = 8) -> Queue:
    """A partition of eight nodes; node i is taken for the i-th number of minutes."""
    jobs = "".join(
        f"{i}|batch|RUNNING|1|9|{m}:00|{m}:00|n{i}|None|N/A|u\n" for i, m in enumerate(busy_min, start=1) if m
    )
    listed = "".join(f"n{i}|batch|mixed\n" for i in range(1, nodes + 1)) + "s1|debug|idle\n"
    return Queue(jobs=parse_queue(jobs), nodes_of=parse_nodes(listed))


class FakeScheduler:
    """A scheduler that answers with the time it is now, and remembers what it was asked."""

    def __init__(self, *, wait_min: int = 0, refuses: str = "") -> None:
        self.wait_min, self.refuses = wait_min, refuses
        self.asks: list[QueueRequest] = []
        self.pauses: list[float] = []

    def __call__(self, ask: QueueRequest) -> str:
        self.asks.append(ask)
        if self.refuses and ask.partition == self.refuses:
            raise SchedulerRefusedError("sbatch refused: not you", words="not you")
        start = datetime.fromtimestamp(NOW_S + 60 * self.wait_min)
        return f"Job 1 to start at {start.isoformat()} using 4 processors on nodes n1 in partition {ask.partition}"


def advice(
    live: Queue, scheduler: FakeScheduler, *partitions: LivePartition, original: QueueRequest = ORIGINAL
) -> Advice:
    return advise(
        RUN, original=original, partitions=partitions or (partition("batch", 8),), queue=live, test=scheduler,
        now=lambda: NOW_S, sleep=scheduler.pauses.append,
    )  # fmt: skip


def test_in_an_empty_queue_the_most_nodes_are_the_soonest() -> None:
    ranking = advice(queue(), FakeScheduler())
    assert ranking.best.request.num_nodes == 8
    assert ranking.best.total_s == pytest.approx(900.0)


def test_in_a_full_queue_fewer_nodes_that_are_free_now_are_the_soonest() -> None:
    ranking = advice(queue(0, 0, 600, 600, 600, 600, 600, 600), FakeScheduler())
    assert (ranking.best.request.num_nodes, ranking.best.wait_s) == (2, 0.0)
    assert ranking.original.wait_s == 600 * 60
    assert ranking.helps


def test_the_limit_is_honest() -> None:
    ranking = advice(queue(), FakeScheduler())
    assert ranking.best.request.limit_s == 21 * 60  # 9000 s / 8, and a tenth, in whole minutes
    assert RUN.least_s(ranking.best.count) < ranking.best.request.limit_s


def test_offers_are_in_the_order_of_time_to_result() -> None:
    ranking = advice(queue(0, 30, 60, 60, 90, 90, 120, 240), FakeScheduler())
    totals = [offer.total_s for offer in ranking.offers]
    assert totals == sorted(totals)
    assert ranking.original in ranking.offers
    assert all(offer.total_s >= offer.wait_s + offer.count.run_s for offer in ranking.offers)


def test_the_later_of_both_answers_counts() -> None:
    ranking = advice(queue(), FakeScheduler(wait_min=50))
    assert {offer.wait_s for offer in ranking.offers} == {3000.0}


def test_questions_are_few_and_spaced() -> None:
    scheduler = FakeScheduler()
    many = [partition(f"p{i}", 8) for i in range(20)]
    live = queue()
    live = replace(live, nodes_of=live.nodes_of | {p.name: live.nodes_of["batch"] for p in many})
    ranking = advice(live, scheduler, partition("batch", 8), *many)
    assert len(scheduler.asks) == MAX_TESTS == ranking.num_tested
    assert scheduler.asks[0] == ORIGINAL
    assert scheduler.pauses == [PAUSE_S] * (MAX_TESTS - 1)
    assert ranking.num_considered > MAX_TESTS


def test_what_the_scheduler_refuses_is_no_offer_and_its_words_are_kept() -> None:
    live = queue()
    live = replace(live, nodes_of=live.nodes_of | {"vip": live.nodes_of["batch"]})
    ranking = advice(live, FakeScheduler(refuses="vip"), partition("batch", 8), partition("vip", 8))
    assert {offer.request.partition for offer in ranking.offers} == {"batch"}
    assert {offer.refusal for offer in ranking.refused} == {"not you"}


def test_nothing_but_refusals_is_an_error_with_its_words() -> None:
    with pytest.raises(SchedulerRefusedError, match="not you"):
        advice(queue(), FakeScheduler(refuses="batch"))


def test_partitions_without_enough_gpus_or_nodes_are_left_out() -> None:
    ranking = advice(queue(), FakeScheduler(), partition("batch", 8), partition("debug", 1, gpus=0))
    assert {offer.request.partition for offer in ranking.offers} == {"batch"}
    with pytest.raises(ConfigError, match="usable nodes"):
        advice(queue(nodes=3), FakeScheduler())


def test_a_partition_with_a_short_limit_cuts_the_run_and_every_job_waits() -> None:
    live = queue()
    ranking = advice(live, FakeScheduler(wait_min=10), partition("batch", 8, max_time_s=15 * 60))
    sliced = [o for o in ranking.offers if o.num_jobs > 1 and o.request.num_nodes == 1]
    assert sliced
    for offer in sliced:
        assert offer.request.limit_s <= 15 * 60
        assert offer.num_jobs * offer.request.limit_s >= offer.count.run_s
        assert offer.total_s >= offer.num_jobs * 600.0 + offer.count.run_s


def test_a_pilot_sets_times_and_memory() -> None:
    pilot = Pilot(
        path="r", num_ranks=4, step_s=3.0, high_step_s=3.6, predicted_step_s=2.0, host_memory_bytes=100 * 2.0**30
    )
    piloted = with_pilot(RUN, pilot)
    assert piloted.count(4).run_s == pytest.approx(1.5 * RUN.count(4).run_s)
    assert piloted.count(4).high_s == pytest.approx(1.2 * piloted.count(4).run_s)
    memory = piloted.memory_request_gib()
    assert memory is not None
    assert 110 <= memory <= 120  # the peak and 10 to 20 %
    assert RUN.memory_request_gib() is None
    with pytest.raises(ConfigError, match="no prediction"):
        with_pilot(RUN, replace(pilot, predicted_step_s=None))


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({}, "no layout that fits"),
        ({"fits": True, "best": {}}, "does not give the length of the run"),
        ({"fits": True, "best": {}, "whole_run": {}}, "not a complete plan"),
    ],
)
def test_plans_that_say_too_little(plan: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        planned_run(plan, where="p.json", margin_frac=0.1, startup_s=60.0)
