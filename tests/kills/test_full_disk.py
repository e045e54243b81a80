"""A disk fills up while a checkpoint is written, or takes no writes at all: what was saved before stays whole."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scalewright.records import metric_names as names
from scalewright.records.events import read_events
from scalewright.records.run_directory import RunDirectory
from scalewright.run.checkpoint_files import problem_with, read_manifest

Cli = Callable[..., subprocess.CompletedProcess[str]]
DISK_BYTES = 5 * 2**20  # a few checkpoints of the model below, which take about 1 MB each
COMMAND = [
    "bench", "language", "--model", "layers=2,hidden=64,heads=2,seq=16,vocab=128", "--layout", "dp=1,mbs=2,gbs=2",
    "--device", "cpu", "--system", "discoverer", "--budget", "60 min", "--steps", "40",
    "--checkpoint-every", "5", "--keep", "50", "--run-dir",
]  # fmt: skip


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system needs root")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.mark.kills
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_full_disk_ends_the_run_and_leaves_earlier_checkpoints_whole(disk: Path, cli: Cli, mode: str) -> None:
    done = cli(*COMMAND, str(disk / "r"), "--checkpoint", mode, timeout=170)
    assert done.returncode == 3, done.stderr[-500:]
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert "No space left on device" in last
    directory = RunDirectory(disk / "r")
    steps = directory.checkpoint_steps()
    assert steps == list(range(5, 5 * len(steps) + 1, 5))
    assert steps
    for step in steps:
        folder = directory.checkpoint(step)
        assert problem_with(folder, read_manifest(folder), only=slice(None)) is None
    subprocess.run(["mount", "-o", f"remount,size={50 * DISK_BYTES}", str(disk)], check=True)
    more = cli(*COMMAND, str(disk / "r"), "--checkpoint", mode, timeout=170)
    assert more.returncode == 0, more.stderr[-500:]
    resumed = [e.detail for e in read_events(directory.rank_events(0)) if e.name == names.EVENT_RESUME]
    assert resumed == [f"from step-{steps[-1]:08d}"]


@pytest.mark.kills
def test_read_only_disk_is_one_sentence_and_can_still_be_reported(disk: Path, cli: Cli) -> None:
    short = [word if word != "40" else "4" for word in COMMAND]
    done = cli(*short, str(disk / "r"), timeout=170)
    assert done.returncode == 0, done.stderr[-500:]
    directory = RunDirectory(disk / "r")
    directory.rollup.unlink()
    directory.exit_info.unlink()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    for name in ("r", "other"):
        refused = cli(*short, str(disk / name))
        assert refused.returncode == 3, refused.stderr
        assert (refused.stdout, "Traceback" in refused.stderr) == ("", False)
        assert "Read-only file system" in refused.stderr.splitlines()[-1]
    report = cli("report", str(directory.path))
    assert report.returncode == 0, report.stderr
    assert "4 steps on 1 rank" in report.stdout
