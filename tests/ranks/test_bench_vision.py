"""`bench vision` by command: it learns, measures, resumes to the same losses, and names the image that is damaged."""

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

import pytest

from scalewright.data.imagenet_like import ImageSet, make_images
from scalewright.records import metric_names as names
from scalewright.records.events import Event, read_events
from scalewright.records.run_directory import RunDirectory

Cli = Callable[..., subprocess.CompletedProcess[str]]
Refused = Callable[..., str]
pytestmark = pytest.mark.ranks

TINY = """
schema = "scalewright.model/1"
id = "resnet-tiny"
name = "A residual network for tests"
family = "resnet"
[conv]
source = "us"
blocks = [1, 1, 1, 1]
width = 8
num_classes = 20
image_size = 32
[sources.us]
kind = "assumed"
text = "made up for tests"
checked = 2026-11-15
"""
# A catalogued system, so that nothing is probed; what it predicts of this machine does not matter here.
COMMON = ["--model", "resnet-tiny", "--catalog", "cat", "--device", "cpu", "--system", "discoverer"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "cat" / "models").mkdir(parents=True)
    (tmp_path / "cat" / "models" / "resnet-tiny.toml").write_text(TINY)
    return tmp_path


def events_of(path: Path, name: str, rank: int = 0) -> list[Event]:
    return [e for e in read_events(RunDirectory(path).rank_events(rank)) if e.name == name]


def test_two_ranks_learn_made_images_by_epicures_protocol(folder: Path, cli: Cli) -> None:
    command = [
        "bench", "vision", *COMMON, "--ranks", "2", "--batch", "8", "--data", "made:shards", "--images", "100",
        "--workers", "1", "--protocol", "epicure", "--copy-to", str(folder), "--run-dir", "r", "--json",
    ]  # fmt: skip
    done = cli(*command, cwd=folder, timeout=200)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["num_steps"], summary["num_ranks"], summary["end"]) == (30, 2, "finished")
    assert summary["losses"][1] < 0.7 * summary["losses"][0]
    compared = {row["name"]: row for row in summary["comparisons"]}
    assert compared[names.IMAGES_PER_S]["measured"] > 0
    assert compared[names.STEP_TIME]["predicted"] > 0
    vision = summary["vision"]
    assert [epoch["counts"] for epoch in vision["epochs"]] == [False, False, False, True, False]
    assert all(0 < e["training_s"] <= e["epoch_s"] for e in vision["epochs"])
    assert vision["epochs"][-1]["top_1_frac"] > 1.5 / 5  # five classes
    assert vision["loader_images_per_s"] > 0
    assert vision["limit"] in ("loader", "device")
    assert vision["copying_s"] > 0
    assert not list(folder.glob("scalewright-*")), "the copies are removed"
    for rank in (0, 1):
        assert [e.step for e in events_of(folder / "r", names.STEP_TIME, rank)] == list(range(30))
        assert [e.step for e in events_of(folder / "r", names.EPOCH_TIME, rank)] == [5, 11, 17, 23, 29]
    first = events_of(folder / "r", names.EVENT_STEADY)[0]
    assert (first.step, events_of(folder / "r", names.EVENT_STEADY_END)[0].step) == (19, 22)
    assert (folder / "r" / "data" / "train" / "dataset.json").exists()
    shown = cli("report", "r", "--plot", "p.svg", cwd=folder)
    assert shown.returncode == 0, shown.stderr
    for words in ("the limit is the", "top-1", "counts", "images/s", "8 images of 32 px a rank"):
        assert words in shown.stdout
    assert "images/s" in (folder / "p.svg").read_text()
    assert "is finished: nothing to run" in cli(*command, cwd=folder).stderr


def losses(path: Path) -> dict[int, float]:
    return {e.step: float(e.value or 0.0) for e in events_of(path, names.LOSS)}


def test_stopped_run_resumes_to_the_losses_and_scores_of_one_that_was_not(folder: Path, cli: Cli) -> None:
    make_images(folder / "set", ImageSet(num_images=42, num_classes=4), to="folder")
    options = [*COMMON, "--ranks", "1", "--batch", "4", "--epochs", "8", "--data", "set", "--workers", "1"]
    whole = cli("bench", "vision", *options, "--run-dir", "whole", cwd=folder, timeout=200)
    assert whole.returncode == 0, whole.stderr
    command = [sys.executable, "-m", "scalewright", "bench", "vision", *options, "--run-dir", "cut"]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as started:
        deadline = time.monotonic() + 100
        while not _has_step(folder / "cut", 11):
            assert started.poll() is None, "it ended before it could be stopped"
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(started.pid, signal.SIGUSR1)
        assert started.wait(60) == 75
    stopped_at = RunDirectory(folder / "cut").checkpoint_steps()[-1]
    assert 11 < stopped_at < 80
    again = cli("bench", "vision", *options, "--run-dir", "cut", cwd=folder, timeout=200)
    assert again.returncode == 0, again.stderr
    assert losses(folder / "cut") == losses(folder / "whole")
    scores: list[list[Any]] = [
        [(e.step, e.value) for e in events_of(folder / run, names.VALIDATION_LOSS)] for run in ("whole", "cut")
    ]
    assert scores[0] == scores[1]
    assert len(scores[0]) == 8


def _has_step(path: Path, step: int) -> bool:
    file = RunDirectory(path).rank_events(0)
    return file.exists() and any(e.name == names.STEP_TIME and e.step >= step for e in read_events(file))


def test_damaged_image_ends_the_run_with_its_name(folder: Path, cli: Cli) -> None:
    made = make_images(folder / "set", ImageSet(num_images=24, num_classes=2), to="folder")
    spoilt = sorted(made.rglob("*.jpg"))[3]
    spoilt.write_bytes(spoilt.read_bytes()[:2000])
    options = [*COMMON, "--ranks", "2", "--batch", "4", "--workers", "1", "--data", "set", "--epochs", "2"]
    done = cli("bench", "vision", *options, "--run-dir", "r", cwd=folder, timeout=200)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert spoilt.name in last
    assert "cut off" in last
    assert done.stdout == ""
