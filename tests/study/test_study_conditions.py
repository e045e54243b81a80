"""What else a machine did while a run was measured on it: our own work is not counted, others' is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scalewright.errors import DocumentError
from scalewright.records.run_directory import RunDirectory
from scalewright.study.conditions import read_attempts, watched

CORES = sorted(os.sched_getaffinity(0))
TICKS = os.sysconf("SC_CLK_TCK")


def proc(folder: Path, *, busy_s: float, idle_s: float = 5.0) -> Path:
    """A /proc whose first core of ours has worked so long; user, nice, system, idle, iowait, irq, softirq, steal."""
    folder.mkdir(exist_ok=True)
    rows = ["cpu 9 9 9 9 9 9 9 9 9 9"]
    for core in CORES:
        work = round(busy_s * TICKS) if core == CORES[0] else 0
        rows.append(f"cpu{core} {work} 0 0 {round(idle_s * TICKS)} 7 0 0 0 99 99")
    (folder / "stat").write_text("\n".join(rows) + "\n")
    return folder


def test_what_others_did_is_counted(tmp_path: Path) -> None:
    run, stat = RunDirectory(tmp_path), proc(tmp_path / "proc", busy_s=100.0)
    with watched(run, proc=stat, sys=tmp_path):
        begun = time.monotonic()
        time.sleep(0.3)
        proc(tmp_path / "proc", busy_s=100.3, idle_s=50.0)
        took_s = time.monotonic() - begun
    (attempt,) = read_attempts(run)
    assert attempt.num_cores == len(CORES)
    assert attempt.others_cores == pytest.approx(0.3 / took_s, rel=0.2)
    assert attempt.num_throttles == 0


def test_what_our_own_processes_did_is_not(tmp_path: Path) -> None:
    """A child spins for half a second of its own CPU time, and the cores were busy for just as long."""
    spin = "import time\nwhile time.process_time() < 0.5: pass"
    run, stat = RunDirectory(tmp_path), proc(tmp_path / "proc", busy_s=100.0)
    with watched(run, proc=stat, sys=tmp_path):
        subprocess.run([sys.executable, "-c", spin], check=True)
        proc(tmp_path / "proc", busy_s=100.5)
    (attempt,) = read_attempts(run)
    assert attempt.others_cores == pytest.approx(0.0, abs=0.02)


def test_attempts_are_kept_and_heat_is_counted(tmp_path: Path) -> None:
    count = tmp_path / f"devices/system/cpu/cpu{CORES[0]}/thermal_throttle/core_throttle_count"
    count.parent.mkdir(parents=True)
    run, stat = RunDirectory(tmp_path), proc(tmp_path / "proc", busy_s=1.0)
    for number in (3, 5):
        count.write_text("2")
        with watched(run, proc=stat, sys=tmp_path):
            count.write_text(str(number))
    assert [one.num_throttles for one in read_attempts(run)] == [1, 3]


def test_a_kernel_that_does_not_tell_is_no_error(tmp_path: Path) -> None:
    with watched(RunDirectory(tmp_path), proc=tmp_path / "nowhere", sys=tmp_path):
        pass
    assert read_attempts(RunDirectory(tmp_path)) == []


def test_a_file_that_somebody_changed_is_refused(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    for attempts in ("none", [{"others_cores": "many"}]):
        run.conditions.write_text(json.dumps({"schema": "scalewright.run-conditions/1", "attempts": attempts}))
        with pytest.raises(DocumentError, match=r"conditions\.json"):
            read_attempts(run)
