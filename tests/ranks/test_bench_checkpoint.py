"""`bench checkpoint` from outside: rows of every size and mode, over ranks, and nothing left in the scratch."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Cli = Callable[..., subprocess.CompletedProcess[str]]
Refused = Callable[..., str]
SMALL = [
    "bench", "checkpoint", "--path", "scratch", "--sizes", "2 MiB,8 MiB", "--device", "cpu", "--repeats", "2",
    "--budget", "60 s", "--run-dir", "r",
]  # fmt: skip


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    path = tmp_path / "scratch"
    path.mkdir()
    return path


@pytest.mark.ranks
@pytest.mark.alone
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_every_size_and_mode_is_saved_restored_and_removed(scratch: Path, cli: Cli, num_ranks: int) -> None:
    done = cli(*SMALL, "--ranks", str(num_ranks), "--json", cwd=scratch.parent)
    assert done.returncode == 0, done.stderr
    doc = json.loads(done.stdout)
    mib = 2**20
    cells = [(row["size_bytes"], row["mode"], row["num_ranks"]) for row in doc["rows"]]
    assert cells == [(size * mib, mode, num_ranks) for size in (2, 8) for mode in ("sync", "async")]
    for row in doc["rows"]:
        assert 0 < row["stall_low_s"] <= row["stall_s"] <= row["stall_high_s"]
        assert row["stall_s"] <= row["total_high_s"]
        assert row["bytes_per_s"] == pytest.approx(row["size_bytes"] / row["total_s"])
        assert row["restore_s"] > 0
        assert 1 <= row["repeats"] <= 2
    assert {fit["mode"] for fit in doc["fits"]} == {"sync", "async"}
    assert doc["summary"]["size_bytes"] == 8 * mib
    assert doc["summary"]["sync_over_async_stall"] > 1
    assert list(scratch.iterdir()) == []
    again = cli(*SMALL, "--ranks", str(num_ranks), cwd=scratch.parent)
    assert all(len(line) <= 80 for line in again.stdout.splitlines())
    assert "async stops training" in again.stdout


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--sizes", "8 MiB,2 MiB"], "sizes [8388608, 2097152]: give each once, smallest first"),
        (["--sizes", "1 kB"], "sizes [1000]: give each once, smallest first, from 1048576"),
        (["--modes", "later"], "modes 'later': name one or more of sync, async, each once"),
        (["--ranks", "0"], "--ranks 0 starts nothing"),
        (["--repeats", "0"], "0 saves of each size"),
        (["--budget", "0 s"], "a budget of 0 s is too short"),
    ],
)
def test_bad_options_of_saving_are_one_sentence(
    scratch: Path, cli: Cli, refused: Refused, options: list[str], says: str
) -> None:
    assert says in refused(cli(*SMALL, *options, cwd=scratch.parent))
    assert not (scratch.parent / "r").exists()


@pytest.mark.ranks
def test_a_state_larger_than_memory_or_disk_is_refused_before_it_is_made(scratch: Path, cli: Cli) -> None:
    done = cli(*SMALL, "--sizes", "900 TiB", cwd=scratch.parent)
    assert done.returncode == 2, done.stderr
    assert "of host memory and" in done.stderr
    missing = cli(*SMALL, "--path", "nowhere", "--run-dir", "r2", cwd=scratch.parent)
    assert missing.returncode == 3
    assert "nowhere: no such folder to measure in" in missing.stderr
    assert not (scratch.parent / "r2").exists()
    assert list(scratch.iterdir()) == []
