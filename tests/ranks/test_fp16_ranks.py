"""fp16 on several ranks: all pass over the step in which one of them overflowed, and agree on the scale."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from pool import RankPool

from scalewright.records import metric_names as names
from scalewright.records.events import read_events
from scalewright.records.run_directory import RunDirectory
from scalewright.workload.language_run import OptimizerSettings, resolve
from scalewright.workload.layout import parse_layout
from scalewright.workload.model import from_shape
from scalewright.workload.vision_run import VisionRun

pytestmark = pytest.mark.ranks

Cli = Callable[..., subprocess.CompletedProcess[str]]
STEPS, BAD_STEP = 4, 2
FIRST, HALF = 2.0**15, 2.0**14


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    made = RankPool()
    yield made
    made.close()


def language(layout: str) -> dict[str, Any]:
    return resolve(
        from_shape("layers=4,hidden=32,heads=4,vocab=64,seq=16"), parse_layout(f"{layout},mbs=1,gbs=4"),
        precision="fp16", steps=STEPS, device="cpu", optimizer=OptimizerSettings(learning_rate=1e-2),
    ).document()  # fmt: skip


def check(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        assert answer == {
            "untouched": True, "after": {"value": HALF, "good_steps": 0}, "changed": True,
            "end": {"value": HALF, "good_steps": STEPS - BAD_STEP - 1}, "num_updates": STEPS - 1,
        }  # fmt: skip


@pytest.mark.parametrize("layout", ["dp=1", "dp=2", "dp=2,zero=1", "dp=2,zero=3", "tp=2,sp=1", "cp=2", "pp=2"])
def test_one_ranks_overflow_is_everyones(pool: RankPool, layout: str) -> None:
    num_ranks = int(parse_layout(layout).num_gpus)
    check(pool.run("jobs:train_with_overflow", language(layout), BAD_STEP, num_ranks - 1, num_ranks=num_ranks))


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_one_ranks_overflow_is_everyones_with_images(pool: RankPool, num_ranks: int) -> None:
    run = VisionRun(
        model_id="tiny", blocks=(1, 1, 1, 1), width=8, num_classes=10, image_size=32, num_ranks=num_ranks, batch=4,
        epochs=1, steps_per_epoch=STEPS, precision="fp16", device="cpu",
    )  # fmt: skip
    job = "jobs:train_images_with_overflow"
    check(pool.run(job, run.document(), BAD_STEP, num_ranks - 1, num_ranks=num_ranks))


def test_fp16_layouts_train_the_same_model(pool: RankPool) -> None:
    (alone,) = pool.run("jobs:train", language("dp=1"), num_ranks=1)
    for layout in ("dp=2", "dp=2,zero=3", "pp=2"):
        steps = pool.run("jobs:train", language(layout), num_ranks=2)[0]
        assert [loss for loss, _ in steps] == pytest.approx([loss for loss, _ in alone], rel=1e-2)


def test_a_checkpoint_in_fp16_goes_on_bit_by_bit(tmp_path: Path, cli: Cli) -> None:
    args = [
        "bench", "language", "--model", "layers=2,hidden=32,heads=2,seq=32,vocab=64", "--device", "cpu", "--system",
        "discoverer", "--budget", "60 min", "--precision", "fp16", "--layout", "mbs=2,gbs=2", "--seed", "7",
    ]  # fmt: skip
    more = ["--checkpoint-every", "3", "--keep", "3", "--checkpoint", "sync", "--steps", "6"]
    whole, resumed = RunDirectory(tmp_path / "a"), RunDirectory(tmp_path / "b")
    done = cli(*args, *more, "--run-dir", "a", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = cli(*args, *more, "--start-from", str(whole.checkpoint(3)), "--run-dir", "b", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    losses, continued = (
        {event.step: event.value for event in read_events(run.rank_events(0)) if event.name == names.LOSS}
        for run in (whole, resumed)
    )
    assert continued == {step: losses[step] for step in (3, 4, 5)}
    states = [json.loads((run.checkpoint(6) / "manifest.json").read_text())["state"] for run in (whole, resumed)]
    assert states[0] == states[1]
    assert states[0]["num_updates"] == 6
    assert states[0]["loss_scale"] == {"value": FIRST, "good_steps": 6}
