"""Slurm's texts, read: states, queues, accounts, node lists; and what is asked of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalewright.errors import ConfigError
from scalewright.launch.slurm import commands as slurm
from scalewright.launch.slurm.job_state import RETRIED, JobState, parse_state
from scalewright.launch.slurm.task_ranges import format_ranges, parse_ranges
from scalewright.records.node_list import expand_nodes

# Printed by Slurm 22.05.8.
QUEUE = """\
12|2-9%2|PENDING||0:00|JobArrayTaskLimit|scalewright:ab-0
12|0|RUNNING|n1|1-02:03:04|None|scalewright:ab-0
12|1|FAILED|n[1-2]|0:03|NonZeroExitCode|a|comment with bars
13|N/A|OUT_OF_MEMORY|n3|2:05|OutOfMemory|(null)
"""
ACCOUNTS = """\
12_0|COMPLETED|0:0|n1|3
12_0.batch|COMPLETED|0:0|n1|3
12_1|FAILED|1:0|n2|4
12_1.batch|FAILED|1:0|n2|4
12_1.0|OUT_OF_MEMORY|0:125|n2|4
12_[2-9%2]|PENDING|0:0|None assigned|0
13|CANCELLED by 1000|0:15|n3|7
13.extern|COMPLETED|0:0|n3|7
"""


def test_queue() -> None:
    jobs = slurm.parse_queue(QUEUE)
    assert jobs["12", 0].state is JobState.RUNNING
    assert jobs["12", 0].elapsed_s == 93784
    assert {jobs["12", task].state for task in range(2, 10)} == {JobState.PENDING}
    assert (jobs["12", 5].reason, jobs["12", 1].nodes) == ("JobArrayTaskLimit", "n[1-2]")
    assert jobs["13", slurm.NO_TASK].state is JobState.OUT_OF_MEMORY
    assert len(jobs) == 11


def test_accounts_tell_a_starved_step_from_a_failure() -> None:
    jobs = slurm.parse_accounting(ACCOUNTS)
    assert jobs["12", 0].state is JobState.COMPLETED
    assert jobs["12", 1].state is JobState.OUT_OF_MEMORY
    assert (jobs["12", 1].exit_code, jobs["12", 1].nodes) == (1, "n2")
    assert jobs["12", 7].state is JobState.PENDING
    assert jobs["13", slurm.NO_TASK].state is JobState.CANCELLED
    assert jobs["13", slurm.NO_TASK].elapsed_s == 7


def test_queue_as_json_of_old_and_new_versions() -> None:
    old = {"job_id": 5, "array_job_id": 1, "array_task_id": 3, "array_task_string": "", "job_state": "FAILED",
           "state_reason": "NonZeroExitCode", "nodes": "n1", "exit_code": 256, "start_time": 100,
           "end_time": 103}  # fmt: skip
    number, unset = {"set": True, "infinite": False}, {"set": False, "infinite": False, "number": 0}
    new = {"job_id": 20, "array_job_id": number | {"number": 20}, "array_task_id": unset,
           "array_task_string": "4-6", "job_state": ["PENDING"], "state_reason": "None", "nodes": "",
           "exit_code": {"return_code": number | {"number": 0}}}  # fmt: skip
    alone = {"job_id": 30, "array_job_id": number | {"number": 0}, "array_task_id": unset,
             "array_task_string": "", "job_state": ["COMPLETED"], "nodes": "n2",
             "start_time": number | {"number": 10}, "end_time": number | {"number": 25}}  # fmt: skip
    jobs = slurm.parse_queue_json(json.dumps({"jobs": [old, new, alone]}))
    assert (jobs["1", 3].state, jobs["1", 3].exit_code, jobs["1", 3].elapsed_s) == (JobState.FAILED, 1, 3.0)
    assert [jobs["20", task].state for task in (4, 5, 6)] == [JobState.PENDING] * 3
    assert (jobs["30", slurm.NO_TASK].state, jobs["30", slurm.NO_TASK].elapsed_s) == (JobState.COMPLETED, 15.0)


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("CANCELLED by 0", JobState.CANCELLED),
        ("NODE_FAIL", JobState.NODE_FAIL),
        ("OUT_OF_ME+", JobState.LOST),  # cut short by a width: never asked for, and not guessed
        ("COMPLETING", JobState.RUNNING),
        (["RUNNING", "COMPLETING"], JobState.RUNNING),
        ("DEADLINE", JobState.TIMEOUT),
        ("PREEMPTED", JobState.PREEMPTED),
        ("REQUEUE_HOLD", JobState.REQUEUED),
        ("", JobState.LOST),
    ],
)
def test_states(text: str, state: JobState) -> None:
    assert parse_state(text) is state


def test_memory_and_cancelling_are_no_reason_to_try_again() -> None:
    assert not {JobState.OUT_OF_MEMORY, JobState.CANCELLED, JobState.BELOW_GATE} & RETRIED
    assert all(state.has_ended and not state.is_ok for state in RETRIED)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n[1-3,07],login1", ("n1", "n2", "n3", "n07", "login1")),
        ("nid[000098-000101]", ("nid000098", "nid000099", "nid000100", "nid000101")),
        ("x1-[2-3]-ib", ("x1-2-ib", "x1-3-ib")),
        ("(null)", ()),
        ("None assigned", ()),
        ("", ()),
    ],
)
def test_node_lists(text: str, names: tuple[str, ...]) -> None:
    assert expand_nodes(text) == names


@given(st.sets(st.integers(0, 5000)))
def test_ranges_are_read_as_they_are_written(tasks: set[int]) -> None:
    assert parse_ranges(format_ranges(tasks)) == tasks


def test_ranges_with_caps_steps_and_nonsense() -> None:
    assert parse_ranges("[0-6:3,9%2]") == {0, 3, 6, 9}
    with pytest.raises(ConfigError, match="write it like 0-3,7"):
        parse_ranges("0-x")
    with pytest.raises(ConfigError, match="not a list of array tasks"):
        parse_ranges("0-99999999999")


def test_sbatch_is_given_words_not_a_shell_text() -> None:
    job = slurm.Submission(
        script=Path("/a b/script.sh"), name="g.s", tag="ab-1", tasks="3,7", width=2, dependency="afterok:1:2",
        exclude=("n1", "n2"), options=("--partition=$(touch x)",),
    )  # fmt: skip
    assert slurm.sbatch_argv(job) == [
        "sbatch", "--parsable", "--job-name=g.s", "--comment=scalewright:ab-1", "--array=3,7%2",
        "--dependency=afterok:1:2", "--kill-on-invalid-dep=yes", "--exclude=n1,n2", "--partition=$(touch x)",
        "/a b/script.sh",
    ]  # fmt: skip


def test_jobs_are_found_by_their_tags() -> None:
    text = "12|scalewright:ab-0\n12|scalewright:ab-0\n13|(null)\n14_3|sbatch --comment=scalewright:ab-1 x.sh\n"
    assert slurm.parse_tags(text) == {"ab-0": "12", "ab-1": "14"}


def test_versions() -> None:
    assert slurm.parse_version("slurm-wlm 22.05.8") == (22, 5)
    assert slurm.parse_version("slurm 23.11.4") >= slurm.JSON_SINCE
    assert slurm.parse_version("nonsense") == (0, 0)
