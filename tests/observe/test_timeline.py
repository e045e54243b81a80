"""The event that began the end is told apart from echoes and teardown, whatever the clocks say."""

from __future__ import annotations

import pytest

from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import Happening, JobFact, Spot, StepFact
from scalewright.observe.timeline import Timeline, build_timeline

NCCL_LOST = "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error"
OUT = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
WATCHDOG = "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)"


def event(kind: str, message: str = "", *, line: int = 1, file: str = "job.out", **more: object) -> Happening:
    return Happening(kind=kind, message=message, spot=Spot(file=file, line=line), **more)  # type: ignore[arg-type]


def story(*happenings: Happening, jobs: tuple[JobFact, ...] = (), steps: tuple[StepFact, ...] = ()) -> Timeline:
    return build_timeline(Evidence(happenings=list(happenings), jobs=list(jobs), steps=list(steps)))


def job(state: str, **more: object) -> JobFact:
    return JobFact(job_id="7", spot=Spot(file="sacct", line=2), state=state, **more)  # type: ignore[arg-type]


def test_a_rank_that_runs_out_of_memory_comes_before_those_that_lose_it() -> None:
    timeline = story(
        event("connection_lost", "Connection closed by peer", line=1, rank=0),
        event("traceback", NCCL_LOST, line=2, rank=1),
        event("device_out_of_memory", OUT, line=3, rank=2),
        event("exited", "srun: error: nid1: task 0: Terminated", line=4, rank=0),
    )
    assert timeline.cause == "device-out-of-memory"
    assert [one.happening.rank for one in timeline.initiating] == [2]
    assert [one.role for one in timeline.moments] == ["initiating", "cascading", "cascading", "teardown"]


def test_the_kernel_may_say_later_why_it_killed() -> None:
    killed = event("killed", "task 3: Killed", rank=3, at_s=100.0)
    kernel = event("cgroup_kill", "Detected 1 oom_kill event in StepId=7.0", file="slurm.out", at_s=130.0)
    timeline = story(killed, kernel)
    assert timeline.cause == "cgroup-memory-kill"
    assert timeline.is_certain


def test_a_kill_long_before_the_oom_of_another_process_is_its_own_cause() -> None:
    timeline = story(
        event("killed", "task 3: Killed", rank=3, at_s=100.0),
        event("cgroup_kill", "oom_kill event", at_s=4000.0),
    )
    assert timeline.cause == "rank-killed"


@pytest.mark.parametrize(
    ("timeout_at_s", "cause"), [(700.0, "rank-failed"), (50.0, "hang")], ids=["error first", "hang first"]
)
def test_a_timeout_is_an_echo_of_an_error_before_it_and_the_cause_of_one_after_it(
    timeout_at_s: float, cause: str
) -> None:
    timeline = story(
        event("traceback", "ValueError: bad batch", rank=3, at_s=100.0),
        event("collective_timeout", WATCHDOG, rank=1, at_s=timeout_at_s),
    )
    assert timeline.cause == cause


def test_the_abort_of_a_watchdog_is_no_cause() -> None:
    timeline = story(
        event("collective_timeout", WATCHDOG, line=10, rank=1, at_s=700.0),
        event("signal", "Fatal Python error: Aborted", line=11, rank=1, at_s=701.0, values={"signal": "SIGABRT"}),
    )
    assert timeline.cause == "hang"


def test_a_step_that_slurm_cancels_after_a_failed_task_is_teardown() -> None:
    timeline = story(
        event("traceback", "KeyError: 'loss'", line=1, rank=5),
        event("cancelled", "*** STEP 7.0 ON nid1 CANCELLED AT 2026-01-01T00:00:00 ***", line=2),
        jobs=(job("FAILED"),),
    )
    assert timeline.cause == "rank-failed"
    assert [one.happening.kind for one in timeline.with_role("teardown")] == ["cancelled"]


def test_a_time_limit_explains_the_kill_at_its_end() -> None:
    timeline = story(event("killed", "task 0: Killed", rank=0), jobs=(job("TIMEOUT", ended_at_s=500.0),))
    assert timeline.cause == "time-limit"


def test_a_hang_that_ran_into_the_limit_is_the_cause() -> None:
    timeline = story(
        event("stalled", "no step for 120 s", rank=0, at_s=100.0), jobs=(job("TIMEOUT", ended_at_s=3600.0),)
    )
    assert timeline.cause == "hang"
    assert [one.meaning.cause for one in timeline.with_role("teardown")] == ["time-limit"]


def test_clocks_that_disagree_are_corrected_by_shared_steps() -> None:
    steps = tuple(
        StepFact(step=step, spot=Spot(file=host), dialect="x", rank=rank, host=host, at_s=10.0 * step + ahead_s)
        for rank, host, ahead_s in ((0, "a", 0.0), (1, "b", 300.0))
        for step in range(5)
    )
    # By its own clock, b failed 290 s after a; in truth 10 s before.
    timeline = story(
        event("traceback", "ValueError: a", rank=0, host="a", at_s=60.0, file="a"),
        event("traceback", "ValueError: b", rank=1, host="b", at_s=350.0, file="b"),
        steps=steps,
    )
    assert [one.happening.rank for one in timeline.initiating] == [1]
    assert timeline.notes == (
        "The clock of b is 300.0 s ahead of that of a, by steps that both wrote: times are corrected.",
    )


def test_two_causes_that_no_clock_orders_are_not_certain() -> None:
    timeline = story(
        event("disk_full", "No space left on device", file="a.log", rank=0),
        event("traceback", "ValueError: b", file="b.log", rank=1),
        event("bad_configuration", "unrecognized arguments: --x", file="c.log", rank=2),
    )
    assert timeline.cause == "disk-full"
    assert not timeline.is_certain
    assert timeline.notes


def test_a_run_that_finished_later_survived() -> None:
    timeline = story(
        event("preempted", "preempted", at_s=100.0), event("finished", "finished", at_s=900.0), jobs=(job("COMPLETED"),)
    )
    assert timeline.is_survived


@pytest.mark.parametrize(
    "one",
    [
        event("warning", "connection refused, retrying"),
        event("signal", "SIGTERM", values={"signal": "SIGTERM"}),
        event("exited", "done", values={"exit_code": 0.0}),
        event("device_error", "Xid 43", is_benign=True),
        event("step", ""),
    ],
    ids=["warning", "TERM", "exit 0", "benign", "step"],
)
def test_what_does_not_end_a_run_is_no_cause(one: Happening) -> None:
    assert story(one).cause == ""


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB", "device-out-of-memory"),
        ("RuntimeError: DefaultCPUAllocator: can't allocate memory: tried 8 bytes", "host-out-of-memory"),
        ("OSError: [Errno 28] No space left on device: 'x'", "disk-full"),
        ("OSError: You are trying to access a gated repo.", "access-denied"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/x'", "missing-file"),
        ("train.py: error: unrecognized arguments: --mirco-batch-size 4", "wrong-configuration-key"),
        ("ImportError: flash_attn.so: undefined symbol: _ZN3c105ErrorC2E", "version-mismatch"),
        ("RuntimeError: The server socket has failed to listen: EADDRINUSE", "double-launch"),
        ("NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 4000", "ranks-share-device"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "device-error"),
        ("torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.",
         "rendezvous-refused"),
        ("RuntimeError: found NaN in local grad norm for bucket #0", "loss-nan"),
        ("scalewright.errors.ConfigError: every checkpoint is damaged (step-00000003): start again in another folder",
         "unreadable-data"),
        ("ValueError: too many values to unpack (expected 2)", "rank-failed"),
    ],
)  # fmt: skip
def test_words_of_programs_say_the_cause(message: str, cause: str) -> None:
    assert story(event("traceback", message, rank=0)).cause == cause


STOPPED = "Received SIGTERM: 15"
OWN = "ValueError: bad batch"


@pytest.mark.parametrize("seconds", [(None, None), (100.0, 101.0)], ids=["by lines", "by times"])
def test_an_error_before_a_signal_is_the_cause_and_one_right_after_it_follows_from_it(
    seconds: tuple[float | None, float | None],
) -> None:
    first, second = seconds
    error_first = story(
        event("traceback", OWN, line=8, at_s=first),
        event("signal", STOPPED, line=9, at_s=second, values={"signal": 15.0}),
    )
    assert error_first.cause == "rank-failed"
    assert [one.role for one in error_first.moments] == ["initiating", "teardown"]
    signal_first = story(
        event("signal", STOPPED, line=3, at_s=first, values={"signal": 15.0}),
        event("traceback", OWN, line=9, at_s=second),
    )
    assert signal_first.cause == "stopped-by-signal"
    assert [one.role for one in signal_first.moments] == ["initiating", "cascading"]


def test_an_error_long_after_a_signal_is_its_own() -> None:
    signal = event("signal", STOPPED, line=3, at_s=100.0, values={"signal": 15.0})
    assert story(signal, event("traceback", OWN, line=9, at_s=900.0)).cause == "rank-failed"
    assert story(signal, event("traceback", OWN, line=900)).cause == "rank-failed"


def test_an_error_after_a_signal_does_not_hide_the_error_of_another_rank() -> None:
    """The launcher ends rank 0 because rank 1 failed; the logs have no times."""
    timeline = story(
        event("signal", STOPPED, line=3, file="rank0.log", rank=0, values={"signal": 15.0}),
        event("traceback", "RuntimeError: interrupted", line=9, file="rank0.log", rank=0),
        event("traceback", OWN, line=400, file="rank1.log", rank=1),
    )
    assert (timeline.cause, timeline.initiating[0].happening.rank) == ("rank-failed", 1)
