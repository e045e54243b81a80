"""`bench storage` from outside: its rows, its table, its refusals, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalewright.data.copying import RAM_FOLDER
from scalewright.data.opening import open_samples
from scalewright.data.room import file_system_type
from scalewright.run.micro.disk import page_cache
from scalewright.run.micro.disk.scratch import scratch_folder
from scalewright.run.micro.disk.storage_set import RandomSamples, make_sets
from scalewright.workload.storage_run import StorageRun

Cli = Callable[..., subprocess.CompletedProcess[str]]
Refused = Callable[..., str]
SMALL = [
    "bench", "storage", "--path", "scratch", "--size", "2 MB", "--sample-size", "20 kB", "--workers", "1,2",
    "--io-sizes", "256 KiB,1 MiB", "--files", "50", "--budget", "60 s", "--run-dir", "r",
]  # fmt: skip


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    path = tmp_path / "scratch"
    path.mkdir()
    return path


def ram_copies() -> set[Path]:
    """Ours alone: others may run the same tests."""
    return set(RAM_FOLDER.glob(f"scalewright-{os.getuid()}-files-*")) | set(
        RAM_FOLDER.glob(f".scalewright-{os.getuid()}-files-*")
    )


@pytest.mark.ranks
def test_every_way_of_reading_is_a_row_and_nothing_is_left(scratch: Path, cli: Cli) -> None:
    done = cli(*SMALL, "--json", cwd=scratch.parent)
    assert done.returncode == 0, done.stderr
    doc = json.loads(done.stdout)
    assert (doc["schema"], doc["kind"]) == ("scalewright.measurements/1", "storage")
    points = {(r["format"], r["order"], r["num_workers"]) for r in doc["rows"]}
    assert {(f, o, 2) for f in ("files", "shards", "lmdb", "ram") for o in ("random", "sequential")} <= points
    for row in doc["rows"]:
        assert row["time_low_s"] <= row["time_s"] <= row["time_high_s"]
        assert row["samples_per_s"] == pytest.approx(row["num_samples"] / row["time_s"])
        assert row["bytes_per_s"] == pytest.approx(row["bytes"] / row["time_s"])
    whole = {row["bytes"] for row in doc["rows"] if row["num_samples"] == 100}
    assert len(whole) == 1, "the same samples have the same bytes in every format and order"
    assert whole.pop() == pytest.approx(2_000_000, rel=0.01)
    assert set(doc["summary"]["metadata_per_s"]) == {"create", "stat", "open", "unlink"}
    assert [row["num_files"] for row in doc["summary"]["metadata"]] == [50, 100]
    assert list(scratch.iterdir()) == []
    again = cli(*SMALL, cwd=scratch.parent)
    assert "is finished: nothing to run" in again.stderr
    assert all(len(line) <= 80 for line in again.stdout.splitlines())
    for word in ("samples/s", "mdtest", "file creation", "lmdb", "sequential"):
        assert word in again.stdout


@pytest.mark.ranks
def test_it_runs_where_torch_is_not_installed(scratch: Path, cli: Cli) -> None:
    missing = scratch.parent / "missing"
    missing.mkdir()
    (missing / "torch.py").write_text("raise ModuleNotFoundError('No module named torch', name='torch')\n")
    env = {"PYTHONPATH": str(missing)}
    done = cli(*SMALL, "--formats", "shards", cwd=scratch.parent, env=env)
    assert done.returncode == 0, done.stderr
    saving = cli("bench", "checkpoint", "--path", "scratch", "--device", "cpu", cwd=scratch.parent, env=env)
    assert saving.returncode == 3
    assert "pip install 'scalewright[run]'" in saving.stderr


@pytest.mark.ranks
def test_a_short_budget_says_what_was_left_out(scratch: Path, cli: Cli) -> None:
    done = cli(*SMALL, "--budget", "1 s", "--size", "40 MB", "--json", cwd=scratch.parent)
    assert done.returncode == 0, done.stderr
    doc = json.loads(done.stdout)
    assert doc["rows"]
    assert any("the budget ended before" in note for note in doc["notes"])
    assert all(row["num_workers"] == 2 for row in doc["rows"][:1])


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--path", "nowhere"], "nowhere: no such folder to measure in"),
        (["--size", "900 PB", "--sample-size", "900 TB"], "do not fit in"),
    ],
)
def test_a_scratch_that_cannot_hold_it_is_refused_before_it_is_filled(
    scratch: Path, cli: Cli, options: list[str], says: str
) -> None:
    done = cli(*SMALL, *options, "--files", "0", cwd=scratch.parent)
    assert (done.returncode, done.stdout) == (3, "")
    assert says in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            ["--formats", "files,hdf5"],
            "formats 'hdf5': name one or more of files, shards, lmdb, squashfs, ram, each once",
        ),
        (["--workers", "2,1"], "workers [2, 1]: give each once, smallest first"),
        (["--workers", "0"], "--workers '0' is not a list of whole numbers above 0"),
        (["--size", "10 kB"], "give a --size for 16 or more"),
        (["--size", "256"], "'256' has no unit"),
        (["--sample-size", "10 B"], "samples of 10 bytes: give 64 bytes or more"),
        (["--io-sizes", "1 MiB,4 KiB"], "read sizes [1048576, 4096]: give each once, smallest first"),
        (["--budget", "10 ms"], "a budget of 0.01 s is too short"),
        (["--files", "-1"], "-1 files for metadata"),
    ],
)
def test_bad_options_are_one_sentence(scratch: Path, cli: Cli, refused: Refused, options: list[str], says: str) -> None:
    assert says in refused(cli(*SMALL, *options, cwd=scratch.parent))
    assert not (scratch.parent / "r").exists()


@pytest.mark.kills
def test_ctrl_c_removes_what_was_made(scratch: Path) -> None:
    before = ram_copies()
    command = [sys.executable, "-m", "scalewright", *SMALL, "--size", "40 MB", "--budget", "10 min"]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SCALEWRIGHT_"))}
    process = subprocess.Popen(
        command, cwd=scratch.parent, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline_s = time.monotonic() + 60
    while not list(scratch.glob("*/lmdb")) and time.monotonic() < deadline_s:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert list(scratch.iterdir()) == []
    assert ram_copies() <= before


def test_what_a_killed_benchmark_left_is_removed_and_what_another_uses_is_not(tmp_path: Path) -> None:
    left = tmp_path / "scalewright-bench-old"
    left.mkdir()
    (left / "in-use").touch()
    (left / "data").write_bytes(bytes(100))
    mine = tmp_path / "scalewright-bench-results"
    mine.mkdir()  # not one of ours: it has no lock
    with scratch_folder(tmp_path) as first, scratch_folder(tmp_path) as second:
        assert first.is_dir()
        assert second.is_dir()
        assert not left.exists()
    assert list(tmp_path.iterdir()) == [mine]


def test_dropping_the_cache_is_seen(tmp_path: Path) -> None:
    if file_system_type(tmp_path) in ("tmpfs", "overlay"):
        pytest.skip("a RAM disk is never cold")
    path = tmp_path / "file"
    path.write_bytes(os.urandom(2**20))
    page_cache.flush([path])
    assert page_cache.cached_frac(path) == 1.0
    page_cache.drop([path])
    assert page_cache.cached_frac(path) < 0.1
    page_cache.fill([path])
    assert page_cache.cached_frac(path) == 1.0


def test_random_samples_are_the_same_in_every_format_and_do_not_compress(tmp_path: Path) -> None:
    import zlib

    config = StorageRun(path=str(tmp_path), size_bytes=2_000_000, sample_bytes=20_000)
    parts: list[str] = []
    places = make_sets(config, tmp_path, report_part=parts.append, is_stopped=lambda: False)
    assert parts == ["making files", "making shards", "making lmdb"]
    source = RandomSamples(config)
    sizes = [len(source.read(index)[0]) for index in range(len(source))]
    assert sum(sizes) == pytest.approx(2_000_000, rel=0.01)
    assert np.std(sizes) > 4_000
    for path in places.values():
        opened: Any = open_samples(path)
        assert [len(content) for content, _ in opened.stream(0, 100)] == sizes
    content = source.read(3)[0]
    assert len(zlib.compress(content)) > 0.99 * len(content)
