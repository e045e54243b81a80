"""However a run ends, its directory says so: code and one sentence, which its starter sees as well."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from scalewright.observe.collect import collect
from scalewright.observe.summary import summarize
from scalewright.records import metric_names as names
from scalewright.records.documents import document, write_document
from scalewright.records.events import read_events
from scalewright.records.run_directory import RunDirectory
from scalewright.records.types import ExitCode

StartRanks = Callable[..., list[subprocess.Popen[bytes]]]


def happened(directory: RunDirectory, name: str) -> list[tuple[int, str]]:
    return [(e.step, e.detail) for e in read_events(directory.rank_events(0)) if e.name == name]


FINISHED = """
import atexit, sys, time
from pathlib import Path
from scalewright.run import __main__ as entry
entry.kind_named = lambda name: lambda *context: 0
atexit.register(lambda: (Path(sys.argv[1], "winding-down").touch(), time.sleep(2)))
sys.exit(entry.main(["language", "--run-dir", sys.argv[1]]))
"""


def test_a_notice_that_comes_after_the_end_changes_nothing(directory: RunDirectory) -> None:
    rank = subprocess.Popen([sys.executable, "-c", FINISHED, str(directory.path)])
    while not (directory.path / "winding-down").exists():
        assert rank.poll() is None
        time.sleep(0.02)
    rank.send_signal(signal.SIGUSR1)
    assert rank.wait(timeout=60) == 0


@pytest.mark.parametrize(
    ("behaviour", "code", "words"),
    [
        ("finish", 0, "finished"),
        ("refuse", 2, "seq 7 does not divide: use 8"),
        ("full", 3, "checkpoints/step-5: No space left on device; free space"),
        ("bug", 3, "ZeroDivisionError: division by zero; see logs/rank-0.log"),
        ("memory", 1, "does not fit in memory"),
        ("port", 3, "port 20000 of 127.0.0.1 is in use: set MASTER_PORT"),
    ],
)
def test_end_is_recorded(
    directory: RunDirectory, start_ranks: StartRanks, behaviour: str, code: int, words: str
) -> None:
    (rank,) = start_ranks(behaviour)
    _, screen = rank.communicate(timeout=60)
    assert rank.returncode == code
    info = directory.read_exit_info()
    assert info is not None
    assert (info.code, info.rank, info.job) == (code, 0, "j")
    assert words in info.reason
    assert (words in screen.decode()) == (code != 0)
    log = directory.log(0).read_text()
    assert ("Traceback" in log) == (code != 0)


def test_attempts_add_to_the_provenance_and_secrets_stay_out(directory: RunDirectory, start_ranks: StartRanks) -> None:
    for _ in range(2):
        (rank,) = start_ranks("finish", NCCL_DEBUG="WARN", SLURM_JWT="s3cret", MY_PASSWORD="s3cret", HF_TOKEN="s3cret")
        assert rank.wait(timeout=60) == 0
        assert rank.stderr is not None
        rank.stderr.close()
    attempts = json.loads(directory.provenance.read_text())["attempts"]
    assert len(attempts) == 2
    assert attempts[0]["packages"]["scalewright"]
    assert len(attempts[0]["source"]["commit"]) == 40
    text = directory.environment.read_text()
    assert json.loads(text)["variables"]["NCCL_DEBUG"] == "WARN"
    assert "s3cret" not in text


def test_signal_stops_between_two_steps_and_asks_for_a_requeue(
    directory: RunDirectory, start_ranks: StartRanks
) -> None:
    (rank,) = start_ranks("endless")
    while not directory.rank_events(0).exists():
        time.sleep(0.02)
    rank.send_signal(signal.SIGUSR1)
    assert rank.wait(timeout=60) == 75
    rank.communicate()
    info = directory.read_exit_info()
    assert info is not None
    assert (info.code, "SIGUSR1" in info.reason) == (75, True)
    assert happened(directory, names.EVENT_STOP) == [(-1, "SIGUSR1")]


@pytest.mark.parametrize(
    ("behaviour", "name", "step", "words"),
    [
        ("nan", names.EVENT_NAN, 21, "the loss is nan"),
        ("frozen", names.EVENT_FROZEN, 20, "the loss has been 3.0 for 20 steps"),
        ("impossible", names.EVENT_IMPOSSIBLE, 1, "above the device's"),
    ],
)
def test_what_no_healthy_run_shows_is_one_event(
    directory: RunDirectory, start_ranks: StartRanks, behaviour: str, name: str, step: int, words: str
) -> None:
    (rank,) = start_ranks(behaviour)
    rank.communicate(timeout=60)
    ((found_step, detail),) = happened(directory, name)
    assert found_step == step
    assert words in detail
    others = {names.EVENT_NAN, names.EVENT_FROZEN, names.EVENT_IMPOSSIBLE} - {name}
    assert not any(happened(directory, other) for other in others)


def test_what_may_take_long_does_not_wake_the_watchdog(directory: RunDirectory, start_ranks: StartRanks) -> None:
    (rank,) = start_ranks("suspended", SCALEWRIGHT_WATCHDOG_S="0.5")
    rank.communicate(timeout=60)
    assert rank.returncode == 0
    assert happened(directory, names.EVENT_STALL) == []


def test_a_save_that_never_ends_wakes_the_watchdog(directory: RunDirectory, start_ranks: StartRanks) -> None:
    """A rank that is stopped while all save: the limit is longer than that of a step, and there is one."""
    limits = {"SCALEWRIGHT_WATCHDOG_S": "0.4", "SCALEWRIGHT_WATCHDOG_SAVE_S": "1.5"}
    (rank,) = start_ranks("stuck-save", **limits)
    rank.communicate(timeout=60)
    assert rank.returncode == ExitCode.REQUEUE
    end = directory.read_exit_info()
    assert end is not None
    assert end.code == ExitCode.REQUEUE
    assert "a save or load of a checkpoint after step 20 does not end" in end.reason
    assert "limit 1.5 s" in end.reason


def test_a_request_of_an_earlier_attempt_with_a_clock_ahead_stops_nobody(
    directory: RunDirectory, start_ranks: StartRanks
) -> None:
    body = {"rank": 1, "reason": "old", "time": time.time() + 1e6, "job": "j", "attempt": 0}
    write_document(directory.stack_request, document("stack-request", body))
    ranks = start_ranks("finish", num_ranks=2)
    for rank in ranks:
        rank.communicate(timeout=60)
    assert [rank.returncode for rank in ranks] == [0, 0]


def test_the_reason_of_the_cause_replaces_that_of_a_rank_that_lost_it(
    directory: RunDirectory, start_ranks: StartRanks
) -> None:
    for rank in start_ranks("lost", num_ranks=2):
        rank.communicate(timeout=60)
    end = directory.read_exit_info()
    assert end is not None
    assert (end.rank, end.lost_another) == (1, False)
    assert "ZeroDivisionError: the cause" in end.reason


def test_a_run_whose_loss_is_not_finite_does_not_end_well(directory: RunDirectory, start_ranks: StartRanks) -> None:
    (rank,) = start_ranks("nan")
    rank.communicate(timeout=60)
    assert rank.returncode == ExitCode.NO
    end = directory.read_exit_info()
    assert end is not None
    assert "no loss since step 21 is finite" in end.reason
    summary = summarize(collect(directory))
    assert summary.not_finite_steps == (21, 10)


def test_watchdog_setting_that_is_no_number_is_refused(directory: RunDirectory, start_ranks: StartRanks) -> None:
    (rank,) = start_ranks("finish", SCALEWRIGHT_WATCHDOG_S="soon")
    _, screen = rank.communicate(timeout=60)
    assert rank.returncode == 2
    assert b"SCALEWRIGHT_WATCHDOG_S is 'soon'" in screen


REFUSED = """
import sys
from scalewright.run import __main__ as entry
entry.kind_named = lambda name: lambda *context: 0
sys.exit(entry.main(["language", "--run-dir", sys.argv[1]]))
"""


@pytest.mark.parametrize(("job", "code"), [("8", 2), ("7", 0)])
def test_a_second_job_in_a_run_directory_is_refused(directory: RunDirectory, job: str, code: int) -> None:
    """Ranks that srun starts have no launcher that holds the directory. A job that is queued again may go on."""
    slurm = {"SLURM_JOB_ID": job, "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0", "SLURM_NNODES": "1"}
    env = {name: text for name, text in os.environ.items() if not name.startswith("SCALEWRIGHT_")} | slurm
    info = {"code": 75, "reason": "x", "job": "7", "attempt": 0, "rank": 0, "last_checkpoint": None, "time": 1.0}
    write_document(directory.exit_info, document("exit-info", info))
    with directory.held(owner="7"):
        done = subprocess.run(
            [sys.executable, "-c", REFUSED, str(directory.path)], env=env, capture_output=True, text=True, check=False
        )
    assert done.returncode == code, done.stderr
    if code:
        assert "another run is active in it (job 7)" in done.stderr
        recorded = directory.read_exit_info()
        assert recorded is not None
        assert recorded.code == 75, "what the active run recorded was changed"
