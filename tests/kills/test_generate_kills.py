"""A rank is lost, or Ctrl-C is pressed, in the middle of generation: finished answers stay, the others follow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scalewright.records.answers import read_answers
from scalewright.records.run_directory import RunDirectory

NUM = 60
COMMAND = [
    sys.executable, "-m", "scalewright", "bench", "generate", "--model", "layers=1,hidden=16,heads=2,seq=32,vocab=32",
    "--device", "cpu", "--layout", "tp=2", "--system", "discoverer", "--num", str(NUM), "--rate", "15",
    "--prompt-lengths", "4", "--answer-lengths", "3", "--temperature", "0", "--run-dir",
]  # fmt: skip


def pid_of_rank(directory: RunDirectory, rank: int) -> int:
    """The process whose variables say that it is this rank of a run in this directory."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command, env = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
        except OSError:
            continue
        if str(directory.path).encode() in command and f"\0RANK={rank}\0".encode() in b"\0" + env:
            return int(entry.name)
    raise AssertionError(f"rank {rank} is not running")


def interrupted(directory: RunDirectory, *, after: int, number: signal.Signals, rank: int | None) -> tuple[int, str]:
    """Exit code and last line of a run that gets a signal once it has so many answers; to one rank, or to all."""
    process = subprocess.Popen(
        [*COMMAND, str(directory.path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 120
        while len(read_answers(directory.all_rank_answers())) < after:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(process.pid if rank is None else pid_of_rank(directory, rank), number)
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    return process.returncode, stderr.splitlines()[-1]


@pytest.mark.kills
def test_answers_survive_a_lost_rank_and_an_interrupt_and_none_is_given_twice(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "r")
    code, last = interrupted(directory, after=5, number=signal.SIGKILL, rank=1)
    assert code == 3, last
    assert "rank 1 ended with signal SIGKILL" in last
    first = read_answers(directory.all_rank_answers())
    assert 5 <= len(first) < NUM

    code, last = interrupted(directory, after=len(first) + 5, number=signal.SIGINT, rank=None)
    assert code == 130, last
    second = read_answers(directory.all_rank_answers())
    assert second[: len(first)] == first
    assert len(first) < len(second) < NUM

    done = subprocess.run([*COMMAND, str(directory.path)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    answers = read_answers(directory.all_rank_answers())
    assert [answer.request for answer in answers] == list(range(NUM))
    assert {answer.attempt for answer in answers} == {1, 2, 3}
    lines = [
        line for path in directory.all_rank_answers() for line in path.read_text().splitlines() if '"request"' in line
    ]
    assert len(lines) == NUM, "an answer was generated twice"
    assert "answers come from several attempts" in " ".join(done.stdout.split())
