"""Rules about how a run ended: each fires for its cause, with rank and advice, and not for a near miss."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import Happening, JobFact, Spot, StepFact
from scalewright.observe.findings.catalogue import every_rule
from scalewright.observe.findings.order import explain
from scalewright.observe.findings.rule import Explained, FindingContext
from scalewright.observe.readers.reading import read_evidence
from scalewright.sites.pending import REASONS, reason_of

SPOT = Spot(file="job.out", line=3)
GIB = 2.0**30


def event(kind: str, message: str = "", *, line: int = 1, file: str = "job.out", **more: object) -> Happening:
    return Happening(kind=kind, message=message, spot=Spot(file=file, line=line), **more)  # type: ignore[arg-type]


def job(state: str, **more: object) -> JobFact:
    return JobFact(job_id="7", spot=SPOT, state=state, **more)  # type: ignore[arg-type]


def steps(losses: list[float], **more: object) -> list[StepFact]:
    return [
        StepFact(step=number, spot=Spot(file="job.out", line=number), dialect="x", rank=0, loss=loss, **more)  # type: ignore[arg-type]
        for number, loss in enumerate(losses, start=1)
    ]


def findings(evidence: Evidence, *, ended: bool = True) -> dict[str, Explained]:
    return {one.rule.id: one for one in explain(evidence, FindingContext(ended=ended))}


def first(*happenings: Happening, jobs: tuple[JobFact, ...] = (), **more: object) -> Explained:
    evidence = Evidence(happenings=list(happenings), jobs=list(jobs), **more)  # type: ignore[arg-type]
    return explain(evidence)[0]


def wavy(num: int, *, start: float = 4.0, slope: float = 0.01, noise: float = 0.03) -> list[float]:
    """A loss that falls with noise that repeats."""
    return [start - slope * n + noise * math.sin(7.3 * n) for n in range(num)]


@pytest.mark.parametrize(
    ("rule", "evidence", "words"),
    [
        (
            "device-out-of-memory",
            event("device_out_of_memory", "CUDA out of memory.", rank=3, values={"requested_bytes": 2 * GIB}),
            "Rank 3 ran out of device memory",
        ),
        ("host-out-of-memory", event("host_out_of_memory", "Out of memory: Killed process 77 (python)"), "host memory"),
        ("disk-full", event("traceback", "OSError: [Errno 28] No space left on device: '/s/ck.pt'"), "/s/ck.pt"),
        ("missing-file", event("traceback", "FileNotFoundError: No such file or directory: '/data/a'"), "/data/a"),
        ("access-denied", event("traceback", "GatedRepoError: 403 Client Error"), "refused access"),
        (
            "wrong-configuration-key",
            event("bad_configuration", "unrecognized arguments: --mirco-batch-size"),
            "--mirco-batch-size",
        ),
        ("version-mismatch", event("traceback", "CUDA driver version is insufficient for CUDA runtime"), "driver"),
        ("double-launch", event("traceback", "RuntimeError: Address already in use"), "in use"),
        ("ranks-share-device", event("warning", "Duplicate GPU detected : rank 1 and rank 0"), "same device"),
        ("rendezvous-refused", event("traceback", "ConnectionRefusedError: Connection refused", rank=1), "Rank 1"),
        ("device-error", event("device_error", "Xid 79", host="nid7", values={"xid": 79.0}), "Xid 79"),
        ("rank-killed", event("killed", "Killed", rank=2), "SIGKILL"),
        ("rank-failed", event("traceback", "KeyError: 'x'", rank=2), "Rank 2 failed first"),
        ("node-failure", event("node_failed", "nid7 not responding", host="nid7"), "nid7"),
        ("preempted", event("preempted", "CANCELLED DUE TO PREEMPTION"), "preempted"),
        ("time-limit", event("time_limit", "CANCELLED DUE TO TIME LIMIT"), "time limit"),
        ("cancelled", event("cancelled", "*** JOB 7 ON n CANCELLED AT t ***", values={"by": "1000"}), "user 1000"),
    ],
)
def test_a_cause_is_the_first_finding(rule: str, evidence: Happening, words: str) -> None:
    one = first(evidence)
    assert one.rule.id == rule
    assert words in one.seen.message + one.seen.next_step
    assert one.severity in ("error", "warning")


def test_memory_of_the_job_device_and_host_are_three_causes() -> None:
    limit = first(jobs=(job("OUT_OF_MEMORY", requested_memory_bytes=16 * GIB, peak_memory_bytes=15 * GIB),))
    assert limit.rule.id == "cgroup-memory-kill"
    assert "16.0 GiB" in limit.seen.message
    assert "--mem=24G" in limit.seen.next_step


def test_a_fragmented_device_needs_another_allocator_setting() -> None:
    one = first(
        event("device_out_of_memory", "CUDA out of memory.", rank=0,
              values={"requested_bytes": GIB, "reserved_unallocated_bytes": 3 * GIB}),
    )  # fmt: skip
    assert "expandable_segments" in one.seen.next_step


def test_a_hang_names_the_rank_that_did_not_report() -> None:
    stalls = [
        event("collective_timeout", "Watchdog caught collective operation timeout", rank=rank, line=rank + 1,
              values={"collective": "all_reduce", "sequence": 1580.0, "timeout_s": 600.0})
        for rank in (0, 1, 3)
    ]  # fmt: skip
    one = first(*stalls, settings={"num_ranks": ("4", SPOT)})
    assert one.rule.id == "hang"
    assert "all_reduce number 1580 for 10.0 min" in one.seen.message
    assert "rank 2 did not report it" in one.seen.message.lower()


def test_other_ranks_are_consequences_not_findings() -> None:
    shown = explain(Evidence(happenings=[
        event("traceback", "DistBackendError: NCCL error: remote process exited", line=1, rank=0),
        event("traceback", "ValueError: bad sample", line=2, rank=5),
        event("collective_abort", "NCCL communicator was aborted", line=3, rank=1),
    ]))  # fmt: skip
    assert [one.rule.id for one in shown if one.rule.role == "ended"] == ["rank-failed"]
    assert shown[0].seen.ranks == (5,)
    assert "ranks 0 and 1 ended because of it" in shown[0].seen.message


def test_an_end_that_was_survived_is_a_note() -> None:
    shown = findings(Evidence(happenings=[
        event("preempted", "preempted", at_s=10.0), event("requeued", "requeued", at_s=11.0),
        event("finished", "finished", at_s=99.0),
    ]))  # fmt: skip
    assert shown["preempted"].severity == "info"
    assert shown["requeued"].severity == "info"


def test_tasks_that_each_believe_to_be_alone_were_launched_wrongly() -> None:
    environment = {"SLURM_NTASKS": "8", "WORLD_SIZE": "1"}
    assert "double-launch" in findings(Evidence(environment=environment, run_dir="run"))
    assert "double-launch" not in findings(Evidence(environment={"SLURM_NTASKS": "8", "WORLD_SIZE": "8"}))


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        (Evidence(jobs=[job("PENDING", reason="Resources")]), "Job 7 waits (Resources): it is next in the queue"),
        (Evidence(jobs=[job("FAILED", exit_code=1, elapsed_s=2.0)]), "ended after 2.00 s with exit code 1"),
        (Evidence(run_dir="run"), "no rank wrote a step"),
    ],
    ids=["pending", "failed", "folder"],
)
def test_a_run_that_never_started(evidence: Evidence, words: str) -> None:
    assert words in findings(evidence)["never-started"].seen.message


def test_every_waiting_job_is_named_once_with_the_reason_and_the_step_of_the_one_table() -> None:
    waiting = [
        JobFact(job_id=str(number), spot=SPOT, state="PENDING", reason=reason.code)
        for number, reason in enumerate([*REASONS, *REASONS], start=100)
    ]
    told = [one.seen for one in explain(Evidence(jobs=waiting), FindingContext(ended=True))]
    for one in waiting:
        reason = reason_of(one.reason)
        (seen,) = [seen for seen in told if re.search(rf"\b{one.job_id}\b", seen.message)]
        assert reason.meaning in seen.message
        assert seen.severity == ("info" if reason.starts_by_itself else "warning")
        first = 100 + (int(one.job_id) - 100) % len(REASONS)
        assert seen.next_step == reason.next_step(f"{first},{first + len(REASONS)}")


def test_a_run_that_has_just_begun_or_finished_did_start() -> None:
    assert "never-started" not in findings(Evidence(run_dir="run"), ended=False)
    assert "never-started" not in findings(Evidence(run_dir="run", happenings=[event("finished")]))
    assert "never-started" not in findings(Evidence())


def test_a_loss_that_is_not_a_number() -> None:
    shown = findings(Evidence(steps=steps([*wavy(10), math.nan, math.nan, math.nan])))
    assert "from step 11 on (3 of 13 steps)" in shown["loss-nan"].seen.message
    assert shown["loss-nan"].severity == "error"
    recovered = findings(Evidence(steps=steps([*wavy(10), math.inf, *wavy(10)])))
    assert recovered["loss-nan"].severity == "warning"


def test_a_frozen_loss() -> None:
    shown = findings(Evidence(steps=steps([2.5] * 25, learning_rate=0.0)))
    assert "learning rate is 0" in shown["loss-frozen"].seen.message
    assert "loss-frozen" not in findings(Evidence(steps=steps([2.5] * 15)))
    assert "loss-frozen" not in findings(Evidence(steps=steps([2.5 + 0.0001 * (n % 2) for n in range(40)])))


def test_a_spike_comes_back_and_a_divergence_does_not() -> None:
    spike = wavy(80)
    spike[50] = 7.0
    assert "step 51" in findings(Evidence(steps=steps(spike)))["loss-spike"].seen.message
    diverged = findings(Evidence(steps=steps([*wavy(50), *[3.6 + 0.1 * n for n in range(30)]])))
    assert "loss-diverging" in diverged
    assert "loss-spike" not in diverged


@pytest.mark.parametrize(
    "losses",
    [wavy(200), wavy(60, slope=0.0, noise=0.2), [10.0 * math.exp(-n / 20) + 1 for n in range(100)],
     [0.001 * math.sin(n) for n in range(80)], wavy(12)],
    ids=["falling", "flat and noisy", "steep", "around zero", "short"],
)  # fmt: skip
def test_a_healthy_loss_has_no_finding(losses: list[float]) -> None:
    assert not [rule for rule in findings(Evidence(steps=steps(losses))) if rule.startswith("loss-")]


def test_every_cause_has_a_rule() -> None:
    from scalewright.observe.causes import CAUSES

    assert set(CAUSES) <= {rule.id for rule in every_rule()}


def test_a_barrier_names_who_did_not_come() -> None:
    one = first(event("collective_timeout", "Rank 3 failed to pass monitoredBarrier", rank=0,
                      values={"missing_ranks": "3", "collective": "barrier", "timeout_s": 30.0}))  # fmt: skip
    assert one.seen.ranks == (3,)
    assert "Rank 3 did not report it" in one.seen.message


def test_the_launcher_that_saw_a_failure_first_is_believed() -> None:
    one = first(
        event("traceback", "ValueError: a", rank=1, file="b"),
        event("traceback", "TypeError: b", rank=2, file="c"),
        event("exited", "exitcode 1", rank=2, file="torchrun", values={"is_first": 1.0, "exit_code": 1.0}),
    )
    assert 2 in one.seen.ranks


def test_no_finding_shows_a_credential() -> None:
    text = "ValueError: login failed with token=hf_abcdefghijklmnopqrst"
    one = explain(Evidence(happenings=[
        Happening(kind="traceback", message=text, rank=0, spot=Spot(file="job.out", line=1, text=text)),
    ]))[0]  # fmt: skip
    assert "login failed" in one.seen.message
    assert "hf_abc" not in repr(one.seen)


@pytest.mark.parametrize(
    "line",
    ["Received SIGTERM: 15", "[rank: 0] Received SIGTERM: 15", "Received Signals.SIGTERM death signal, shutting"],
)
def test_a_signal_that_nothing_else_explains_is_the_end(line: str, tmp_path: Path) -> None:
    (tmp_path / "job.out").write_text(f"step 1\n{line}\n")
    shown = explain(read_evidence([tmp_path / "job.out"]))[0]
    assert shown.rule.id == "stopped-by-signal"
    assert "Received" in shown.seen.message


def test_a_signal_after_an_error_is_no_cause(tmp_path: Path) -> None:
    trace = 'Traceback (most recent call last):\n  File "t.py", line 1, in f\nValueError: bad shape\n'
    (tmp_path / "job.out").write_text(f"{trace}\n[rank: 1] Received SIGTERM: 15\n")
    ids = [one.rule.id for one in explain(read_evidence([tmp_path / "job.out"]))]
    assert "rank-failed" in ids
    assert "stopped-by-signal" not in ids
