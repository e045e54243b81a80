"""A scratch that is full or read-only: refused before it is filled, by benchmarks and by makers of data sets."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Cli = Callable[..., subprocess.CompletedProcess[str]]
STORAGE = ["bench", "storage", "--formats", "shards,lmdb", "--workers", "1", "--budget", "30 s", "--files", "0"]
CHECKPOINT = ["bench", "checkpoint", "--device", "cpu", "--budget", "20 s"]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 100 MiB, of which 64 are left for others."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={100 * 2**20}", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system needs root")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.mark.kills
@pytest.mark.parametrize(
    "command", [[*STORAGE, "--size", "30 MiB"], [*CHECKPOINT, "--sizes", "30 MiB"]], ids=["storage", "checkpoint"]
)
def test_a_full_scratch_is_refused_and_stays_as_it_was(disk: Path, cli: Cli, command: list[str]) -> None:
    (disk / "of-others").write_bytes(bytes(100))
    done = cli(*command, "--path", str(disk), "--run-dir", "r", cwd=disk.parent)
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert "60.0 MiB do not fit in" in last
    assert "with a reserve of 64.0 MiB for others" in last
    assert [path.name for path in disk.iterdir()] == ["of-others"]


@pytest.mark.kills
@pytest.mark.parametrize(
    "command", [[*STORAGE, "--size", "2 MiB"], [*CHECKPOINT, "--sizes", "2 MiB"]], ids=["storage", "checkpoint"]
)
def test_a_scratch_that_takes_no_writes_is_one_sentence(disk: Path, cli: Cli, command: list[str]) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    done = cli(*command, "--path", str(disk), "--run-dir", "r", cwd=disk.parent)
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    assert "cannot be written: Read-only file system" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.kills
def test_a_ram_disk_is_measured_warm_and_says_so(disk: Path, cli: Cli) -> None:
    done = cli(*STORAGE, "--size", "2 MiB", "--path", str(disk), "--run-dir", "r", cwd=disk.parent)
    assert done.returncode == 0, done.stderr
    assert "warm only: 100% of the files stay in memory on tmpfs" in " ".join(done.stdout.split())
    assert " cold " not in done.stdout.split("note:")[0]
    assert list(disk.iterdir()) == []
