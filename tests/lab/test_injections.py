"""What injections do to a process that does not know them: slow files, failing reads, a slow clock, a leak, a core."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scalewright.lab.faults.fault import Injection
from scalewright.lab.faults.injections import interposed, slow_files
from scalewright.lab.faults.laboratory import mean_step_s
from scalewright.lab.faults.leftovers import Leftovers
from scalewright.lab.faults.trial import Trial
from scalewright.records import metric_names as names
from scalewright.records.events import EventLine, EventWriter

READS = """
import json, pathlib, sys, time
def took(act):
    started = time.time()
    try:
        act()
        problem = ""
    except OSError as error:
        problem = error.strerror
    return time.time() - started, problem
folder = pathlib.Path(sys.argv[1])
slow, other = folder / "slow" / "a", folder / "other"
ticks, clock = time.perf_counter(), time.time()
print(json.dumps({
    "slow": took(slow.read_bytes), "again": took(slow.read_bytes), "other": took(other.read_bytes),
    "clock": (time.time() - clock) / max(time.perf_counter() - ticks, 1e-9),
}))
"""


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trial]:
    if shutil.which("cc") is None:
        pytest.skip("the library of faults needs a C compiler")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "slow").mkdir()
    for path in (tmp_path / "slow" / "a", tmp_path / "other"):
        path.write_bytes(bytes(200_000))
    with Leftovers() as leftovers:
        yield Trial(folder=tmp_path / "evidence", data=tmp_path, leftovers=leftovers, command=[])


def seen_by_a_process(trial: Trial, injection: Injection) -> dict[str, Any]:
    injection(trial)
    done = subprocess.run(
        [sys.executable, "-c", READS, str(trial.data)], env=trial.environment(), capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    read: dict[str, Any] = json.loads(done.stdout)
    return read


def test_only_files_of_the_folder_are_slow(trial: Trial) -> None:
    seen = seen_by_a_process(trial, slow_files("{data}/slow", open_s=0.1, bytes_per_s=1e6))
    assert seen["slow"][0] >= 0.3  # 0.1 s to open, and 0.2 MB at 1 MB/s
    assert seen["other"][0] < 0.1
    assert 0.9 < seen["clock"] < 1.1


def test_files_are_slow_for_the_first_seconds_only(trial: Trial) -> None:
    seen = seen_by_a_process(trial, slow_files("{data}/slow", open_s=0.3, for_s=0.2))
    assert seen["slow"][0] >= 0.3
    assert seen["again"][0] < 0.2


def test_reads_fail_and_the_clock_runs_slow(trial: Trial) -> None:
    seen = seen_by_a_process(
        trial, interposed(FAULT_FILES="{data}/slow", FAULT_FAILS_AFTER="0", FAULT_OPEN_S="0.1", FAULT_CLOCK="20")
    )
    assert seen["slow"][1] == "Input/output error"
    assert seen["other"][1] == ""
    assert 15 < seen["clock"] < 25


def test_time_of_a_step_is_from_end_to_end_and_leaves_out_profiled_steps(tmp_path: Path) -> None:
    assert mean_step_s(tmp_path) is None
    line = EventLine(job="j", rank=0, host="h")
    writer = EventWriter(tmp_path / "events" / "rank-0.jsonl")
    for step in range(10):
        at_s = 100.0 + 2.0 * step + (50.0 if step == 9 else 0.0)
        writer.append(line.format(time_s=at_s, step=step, name=names.STEP_TIME, value=0.1, unit="s"))
        if step == 9:
            writer.append(line.format(time_s=at_s, step=step, name=names.COMPUTE_TIME, value=0.1, unit="s"))
    writer.close()
    assert mean_step_s(tmp_path) == pytest.approx(2.0)
