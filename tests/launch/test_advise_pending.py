"""Why a job waits, and the smallest change that helps."""

from __future__ import annotations

import pytest

from scalewright.errors import ConfigError
from scalewright.launch.advise.pending import explain
from scalewright.launch.advise.queue import Queue, parse_nodes, parse_queue
from scalewright.sites.pending import REASONS, reason_of

QUEUE = """\
4|batch|PENDING|6|2139|20:00|20:00||Resources|2026-11-15T07:49:10|ann
5|batch|PENDING|2|2113|2:00:00|2:00:00||Priority|N/A|bob
6|batch|PENDING|2|2100|2:00:00|2:00:00||QOSMaxJobsPerUserLimit|N/A|bob
1|batch|RUNNING|3|2119|30:00|30:00|n[1-3]|None|2026-11-15T07:19:10|ann
2|batch|RUNNING|2|2113|10:00|10:00|n[5-6]|None|2026-11-15T07:19:10|ann
3|batch|RUNNING|2|2113|45:00|45:00|n[7-8]|None|2026-11-15T07:19:10|ann
"""
FULL = "".join(f"n{n}|batch|allocated\n" for n in range(1, 9))


def queue(nodes: str = FULL) -> Queue:
    return Queue(jobs=parse_queue(QUEUE), nodes_of=parse_nodes(nodes))


def test_the_next_job_needs_fewer_nodes() -> None:
    """Two nodes are free now or in ten minutes; six only when the thirty-minute job ends. No shorter limit helps it."""
    explanation = explain(queue(), "4")
    assert (explanation.reason.code, explanation.ahead, explanation.wait_s) == ("Resources", 0, 1800.0)
    assert explanation.change is not None
    assert explanation.change.command == "scontrol update JobId=4 NumNodes=3"
    assert explanation.change.saves_s == 1200.0


def test_a_job_behind_it_needs_a_shorter_limit() -> None:
    explanation = explain(queue(), "5")
    assert (explanation.reason.code, explanation.ahead, explanation.nodes_ahead) == ("Priority", 1, 6)
    assert explanation.wait_s == 2700.0
    assert explanation.change is not None
    assert explanation.change.command == "scontrol update JobId=5 TimeLimit=00:15:00"
    assert explanation.change.wait_s == 600.0  # two nodes free up in ten minutes, the large job takes them at thirty


def test_another_partition_comes_before_fewer_nodes() -> None:
    more = FULL + "".join(f"m{n}|small|idle\n" for n in range(6))
    explanation = explain(queue(more), "4")
    assert explanation.change is not None
    assert explanation.change.command == "scontrol update JobId=4 Partition=small"
    assert explanation.change.wait_s == 0.0


def test_a_job_over_a_limit_has_no_predicted_wait() -> None:
    explanation = explain(queue(), "6")
    assert explanation.wait_s is None
    assert explanation.change is None
    assert "QOS" in explanation.reason.remedy


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Resources", "Resources"),
        ("(Priority)", "Priority"),
        ("DependencyNeverSatisfied", "DependencyNeverSatisfied"),
        ("QOSMaxWallDurationPerJobLimit", "QOSMaxWallDurationPerJobLimit"),
        ("QOSMaxGRESPerUser", "QOSMax"),
        ("AssocGrpGRESMinutes", "AssocGrp"),
        ("ReqNodeNotAvail, UnavailableNodes:n[1-4]", "ReqNodeNotAvail"),
        ("SomethingNew", "SomethingNew"),
    ],
)
def test_the_longest_code_that_fits(text: str, code: str) -> None:
    reason = reason_of(text)
    assert reason.code == code
    assert reason.meaning


def test_codes_are_there_once() -> None:
    assert len({reason.code for reason in REASONS}) == len(REASONS)


@pytest.mark.parametrize(("job", "words"), [("99", "neither runs nor waits"), ("1", "is running on n1,n2,n3")])
def test_jobs_that_do_not_wait(job: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        explain(queue(), job)
