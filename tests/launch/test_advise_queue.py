"""The queue as text, and when a request would start in it."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalewright.errors import ConfigError
from scalewright.launch.advise.queue import Queue, QueuedJob, calendar, parse_nodes, parse_queue, parse_test_only

# As Slurm 22.05 printed it on a practice cluster of eight nodes; its own plan was 07:49:10 and 08:04:10.
QUEUE = """\
1604|batch|PENDING|6|2139|20:00|20:00||Resources|2026-11-15T07:49:10|root
1605|batch|PENDING|2|2113|2:00:00|2:00:00||Priority|2026-11-15T08:04:10|root
1601|batch|RUNNING|3|2119|30:00|29:53|n[1-3]|None|2026-11-15T07:19:10|root
1602|batch|RUNNING|2|2113|10:00|9:53|n[5-6]|None|2026-11-15T07:19:10|root
1603|batch|RUNNING|2|2113|45:00|44:53|n[7-8]|None|2026-11-15T07:19:10|root
"""
NODES = (
    "".join(f"n{n}|batch|{'idle' if n == 4 else 'allocated'}\n" for n in range(1, 9))
    + "n1|debug|alloc\nn9|batch|down*\n"
)


def queue(text: str = QUEUE, nodes: str = NODES) -> Queue:
    return Queue(jobs=parse_queue(text), nodes_of=parse_nodes(nodes))


def job(
    id: str, *, nodes: tuple[str, ...] = (), num_nodes: int = 1, limit_s: float = 600.0, **more: object
) -> QueuedJob:
    body: dict[str, object] = {
        "id": id, "partitions": ("batch",), "is_running": bool(nodes), "num_nodes": len(nodes) or num_nodes,
        "priority": 1,
        "limit_s": limit_s, "left_s": limit_s, "nodes": nodes, "reason": "Priority", "start": "N/A", "user": "u",
    }  # fmt: skip
    return QueuedJob(**(body | more))  # type: ignore[arg-type]


def test_the_text_of_squeue_and_sinfo() -> None:
    live = queue()
    assert [j.id for j in live.running()] == ["1601", "1602", "1603"]
    assert [j.id for j in live.waiting()] == ["1604", "1605"]
    assert live.running()[0].nodes == ("n1", "n2", "n3")
    assert live.running()[0].left_s == 29 * 60 + 53
    assert live.nodes_of == {"batch": tuple(f"n{n}" for n in range(1, 9)), "debug": ("n1",)}  # n9 is down
    assert parse_queue("nonsense\n1|2|3\n") == ()


def test_waiting_jobs_start_when_the_scheduler_itself_plans_them() -> None:
    plan = queue()
    first = calendar(Queue(jobs=tuple(plan.running()), nodes_of=plan.nodes_of))
    assert first.wait_s(num_nodes=6, limit_s=1200.0, partition="batch") == pytest.approx(29 * 60 + 53)
    behind = calendar(Queue(jobs=(*plan.running(), plan.waiting()[0]), nodes_of=plan.nodes_of))
    assert behind.wait_s(num_nodes=2, limit_s=7200.0, partition="batch") == pytest.approx(44 * 60 + 53)


def test_a_short_job_fills_the_gap_before_a_large_one() -> None:
    plan = calendar(queue())
    assert plan.wait_s(num_nodes=1, limit_s=600.0, partition="batch") == 0.0
    assert plan.wait_s(num_nodes=1, limit_s=7200.0, partition="batch") > 0.0


def test_more_nodes_than_there_are_never_start() -> None:
    plan = calendar(queue())
    assert plan.wait_s(num_nodes=9, limit_s=60.0, partition="batch") is None
    assert plan.wait_s(num_nodes=1, limit_s=60.0, partition="nowhere") is None


@pytest.mark.parametrize("reason", ["JobHeldUser", "Dependency", "QOSMaxGRESPerUser", "AssocGrpGRES", "BeginTime"])
def test_jobs_that_may_not_start_hold_nobody_up(reason: str) -> None:
    held = Queue(jobs=(job("1", num_nodes=8, limit_s=1e5, reason=reason),), nodes_of={"batch": ("n1",) * 1})
    assert calendar(held).wait_s(num_nodes=1, limit_s=60.0, partition="batch") == 0.0


JOBS = st.lists(
    st.tuples(st.integers(1, 6), st.sampled_from([600.0, 1200.0, 3600.0, 7200.0])), min_size=0, max_size=8
)  # fmt: skip
NAMES = tuple(f"n{i}" for i in range(6))


def drawn(running: list[tuple[int, float]], waiting: list[tuple[int, float]]) -> Queue:
    """Running jobs on nodes side by side, as far as they fit; the others wait."""
    jobs, used = [], 0
    for number, (size, limit_s) in enumerate(running):
        if used + size <= len(NAMES):
            jobs.append(job(str(number), nodes=NAMES[used : used + size], limit_s=limit_s))
            used += size
    jobs += [job(str(100 + n), num_nodes=size, limit_s=limit_s) for n, (size, limit_s) in enumerate(waiting)]
    return Queue(jobs=tuple(jobs), nodes_of={"batch": NAMES})


@given(JOBS, JOBS, st.integers(1, 6), st.sampled_from([600.0, 1800.0, 7200.0]))
def test_asking_for_less_never_starts_later(
    running: list[tuple[int, float]], waiting: list[tuple[int, float]], num_nodes: int, limit_s: float
) -> None:
    plan = calendar(drawn(running, waiting))
    wait_s = plan.wait_s(num_nodes=num_nodes, limit_s=limit_s, partition="batch")
    assert wait_s is not None
    shorter = plan.wait_s(num_nodes=num_nodes, limit_s=limit_s / 2, partition="batch")
    fewer = plan.wait_s(num_nodes=max(num_nodes // 2, 1), limit_s=limit_s, partition="batch")
    assert shorter is not None
    assert fewer is not None
    assert shorter <= wait_s
    assert fewer <= wait_s


@given(JOBS, JOBS, st.integers(1, 6))
def test_those_who_wait_only_make_it_later(
    running: list[tuple[int, float]], waiting: list[tuple[int, float]], num_nodes: int
) -> None:
    alone = calendar(drawn(running, [])).wait_s(num_nodes=num_nodes, limit_s=900.0, partition="batch")
    behind = calendar(drawn(running, waiting)).wait_s(num_nodes=num_nodes, limit_s=900.0, partition="batch")
    assert alone is not None
    assert behind is not None
    assert alone <= behind


@pytest.mark.parametrize(
    ("words", "nodes", "partition"),
    [
        ("Job 639625 to start at 2021-11-13T04:47:02 using 256 processors on nodes nid001294 in partition standard",
         "nid001294", "standard"),
        ("Job 7 to start at 2021-11-13T04:47:02 a using 8 processors on nodes n[1-2] in partition gpu;   Preempts: 5,6",
         "n[1-2]", "gpu"),
        ("Job 7 to start at 2021-11-13T04:47:02 using 2 processors on n[1,3-4]", "n[1,3-4]", ""),
    ],
)  # fmt: skip
def test_the_words_of_test_only(words: str, nodes: str, partition: str) -> None:
    parsed = parse_test_only(words)
    assert parsed.start_s == datetime(2021, 11, 13, 4, 47, 2).timestamp()
    assert (parsed.nodes, parsed.partition) == (nodes, partition)


@pytest.mark.parametrize("words", ["", "allocation failure: Invalid qos specification"])
def test_words_without_a_time_are_shown(words: str) -> None:
    with pytest.raises(ConfigError, match="no start time"):
        parse_test_only(words)
