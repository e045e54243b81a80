"""A text pipeline that is killed at any point, or whose disk fills up, goes on and gives the same bytes."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Cli = Callable[..., subprocess.CompletedProcess[str]]
ROOT = Path(__file__).resolve().parents[2]
NUM_KILLS = int(os.environ.get("SCALEWRIGHT_TEST_KILLS", "4"))
"""The soak sets 20."""
PIPELINE = """schema = "scalewright.data-pipeline/1"
[read]
paths = ["in.jsonl"]
chunk = "8 kB"
[[filter]]
rule = "words"
minimum = 5
[deduplicate]
near = {}
[shuffle]
[write]
format = "parquet"
num_shards = 3
"""


def inputs(folder: Path, num: int) -> Path:
    rng = random.Random(0)
    texts = [" ".join(f"w{rng.randrange(3000)}" for _ in range(80)) for _ in range(num)]
    rows = [*texts, *(f"{text} end" for text in texts[: num // 8]), *texts[: num // 8]]
    (folder / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in rows))
    (folder / "p.toml").write_text(PIPELINE)
    return folder / "p.toml"


def shards(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("shard-*"))}


def started(path: Path, out: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "scalewright", "data", "run", str(path), "--out", str(out), "--workers", "2"]
    return subprocess.Popen(
        command, cwd=path.parent, env=os.environ | {"PYTHONPATH": str(ROOT / "src")}, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def num_done(out: Path) -> int:
    return len(list((out / ".work").glob("*/*.json")))


@pytest.mark.kills
def test_a_pipeline_killed_again_and_again_gives_the_same_bytes(tmp_path: Path, cli: Cli) -> None:
    path = inputs(tmp_path, 400)
    whole = cli("data", "run", str(path), "--out", "whole", "--workers", "1", "--json", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    num_tasks = 70
    rng = random.Random(1)
    num_kills = 0
    for number in range(NUM_KILLS):
        goal = 1 + (number * num_tasks) // NUM_KILLS
        process = started(path, tmp_path / "out")
        while process.poll() is None and num_done(tmp_path / "out") < goal:
            time.sleep(0.01)
        time.sleep(rng.random() * 0.05)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            num_kills += 1
        process.wait()
        if not (tmp_path / "out" / "data.json").exists():
            assert not any(name.startswith(".shard") for name in shards(tmp_path / "out"))
    assert num_kills >= min(NUM_KILLS, 3)
    last = cli("data", "run", str(path), "--out", "out", "--workers", "1", "--json", cwd=tmp_path)
    assert last.returncode == 0, last.stderr
    assert shards(tmp_path / "out") == shards(tmp_path / "whole")
    one, two = json.loads(whole.stdout), json.loads(last.stdout)
    assert one["steps"]["deduplicate"]["reasons"] == two["steps"]["deduplicate"]["reasons"]
    assert one["steps"]["deduplicate"]["reasons"] == {"equal text": 50, "near duplicate": 50}
    assert sorted(entry.name for entry in (tmp_path / "out").iterdir()) == sorted(
        [".lock", "data.json", "report.html", *shards(tmp_path / "whole")]
    )


@pytest.mark.kills
def test_workers_end_when_only_their_parent_is_killed(tmp_path: Path) -> None:
    process = started(inputs(tmp_path, 400), tmp_path / "out")
    while process.poll() is None and num_done(tmp_path / "out") < 2:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    for _ in range(600):
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            break
        time.sleep(0.1)
    else:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail("a worker outlives its parent")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 66 MiB: more than the reserve for others, less than the pipeline comes to need."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=68m", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system needs root")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.mark.kills
def test_a_full_disk_is_one_sentence_and_the_run_goes_on_later(tmp_path: Path, small_disk: Path, cli: Cli) -> None:
    path = inputs(tmp_path, 400)
    filler = small_disk / "of-others"
    done = cli(
        "data", "run", str(path), "--out", str(small_disk / "out"), "--workers", "1", "--keep-work", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr  # it fits while nobody else writes
    filler.write_bytes(bytes(60 * 2**20))
    refused = cli("data", "run", str(path), "--out", str(small_disk / "two"), "--workers", "1", cwd=tmp_path)
    assert refused.returncode == 3
    assert "do not fit in" in refused.stderr.splitlines()[-1]
    (small_disk / "out" / "data.json").unlink()
    for summary in (small_disk / "out" / ".work" / "finish").glob("*.json"):
        summary.unlink()
    handle = os.open(filler, os.O_WRONLY | os.O_APPEND)
    with contextlib.suppress(OSError):  # to the last byte
        while True:
            os.write(handle, bytes(4096))
    os.close(handle)
    full = cli("data", "run", str(path), "--out", str(small_disk / "out"), "--workers", "1", cwd=tmp_path)
    assert full.returncode == 3
    (error,) = [line for line in full.stderr.splitlines() if line.startswith("error:")]
    assert "No space left" in error
    assert "free space" in error
    filler.unlink()
    again = cli("data", "run", str(path), "--out", str(small_disk / "out"), "--workers", "1", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
