"""The catalogue of faults, and that nothing is left behind when the laboratory is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from scalewright.lab.daemon import start_ticks
from scalewright.lab.faults.catalogue import CONTROLS, FAULTS
from scalewright.lab.faults.leftovers import PREFIX, Leftovers, release, sweep

Cli = Callable[..., subprocess.CompletedProcess[str]]
Refused = Callable[..., str]


def test_there_are_enough_kinds_variations_and_controls() -> None:
    assert len({fault.kind for fault in FAULTS}) == len(FAULTS) >= 25
    assert all(len(fault.variations) >= 3 for fault in FAULTS)
    assert len({control.name for control in CONTROLS}) == len(CONTROLS) >= 10
    for fault in FAULTS:
        words = [one.words for one in fault.variations]
        assert len(set(words)) == len(words), fault.kind


def test_list_names_every_kind_with_its_truth(cli: Cli) -> None:
    done = cli("lab", "fault", "list", "--json")
    assert done.returncode == 0, done.stderr
    rows = {row["kind"]: row for row in json.loads(done.stdout)["faults"]}
    assert rows["slowed-rank"]["rules"] == ["straggler-rank"]
    assert rows["throttled-clocks"]["replayed"]
    assert rows["lost-node"]["slow"]
    table = cli("lab", "fault", "list").stdout
    assert all(kind in table for kind in rows)


def test_unknown_kinds_and_variations_are_refused(cli: Cli) -> None:
    unknown = cli("lab", "fault", "run", "killed-rnak")
    assert unknown.returncode == 2
    assert "killed-rank" in unknown.stderr
    beyond = cli("lab", "fault", "run", "killed-rank", "--variation", "9")
    assert (beyond.returncode, beyond.stdout) == (2, "")
    assert "has variations 1 to 3" in beyond.stderr


def test_a_folder_that_is_not_empty_is_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    done = cli("lab", "fault", "run", "wrong-key", "--run-dir", str(tmp_path))
    assert done.returncode == 2
    assert "is not an empty folder" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


HELD = """
import subprocess, sys, time
from scalewright.lab.faults.leftovers import Leftovers
leftovers = Leftovers()
child = subprocess.Popen(["sleep", "300"], start_new_session=True)
leftovers.process(child.pid)
disk = group = None
if {root}:
    disk, group = leftovers.disk(2**20), leftovers.group("cpu")
print(child.pid, leftovers.folder, disk, group, flush=True)
time.sleep(300)
"""


@pytest.mark.parametrize("with_groups", [False, True])
def test_what_a_killed_laboratory_left_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_groups: bool
) -> None:
    if with_groups and (os.geteuid() != 0 or not Path("/sys/fs/cgroup/cpu/cgroup.procs").exists()):
        pytest.skip("mounts and control groups of version 1 need root")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    script = HELD.format(root=with_groups)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        pid, folder, disk, group = holder.stdout.readline().split()
        sweep()
        assert Path(folder).exists(), "its owner still runs"
        holder.send_signal(signal.SIGKILL)
    assert start_ticks(int(pid)) is not None
    assert [path.name for path in sweep()] == [Path(folder).name]
    assert not Path(folder).exists()
    assert _ends(int(pid))
    if with_groups:
        assert disk not in Path("/proc/mounts").read_text()
        assert not Path(group).exists()
    assert list((tmp_path / "scalewright").glob(f"{PREFIX}*")) == []


def _ends(pid: int) -> bool:
    until_s = time.monotonic() + 20
    while start_ticks(pid) is not None and time.monotonic() < until_s:
        time.sleep(0.02)
    return start_ticks(pid) is None


def test_another_process_with_the_same_id_is_not_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    other = subprocess.Popen(["sleep", "300"])
    try:
        leftovers = Leftovers()
        leftovers.note("process", [other.pid, (start_ticks(other.pid) or 0) - 1])
        release(leftovers.folder)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
