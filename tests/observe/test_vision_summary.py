"""The summary of a vision run: who is the limit, which steps count, and what is printed of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewright.observe.collect import collect
from scalewright.observe.summary import RunSummary, summarize
from scalewright.records import metric_names as names
from scalewright.records.documents import document, write_document
from scalewright.records.events import EventLine, EventWriter
from scalewright.records.run_directory import RunDirectory
from scalewright.report.run.vision import limit_sentence
from scalewright.workload.vision_run import VisionRun

STEPS, EPOCHS, BATCH, RANKS = 5, 5, 32, 2
RUN = VisionRun(
    model_id="tiny", blocks=(1, 1, 1, 1), width=8, num_classes=10, image_size=32, num_ranks=RANKS, batch=BATCH,
    epochs=EPOCHS, steps_per_epoch=STEPS, precision="fp32", protocol="epicure", data="/set",
)  # fmt: skip
PREDICTION = {"num_gpus": 2, "step_time_s": 0.4, "step_time_interval_s": [0.3, 0.6], "images_per_s": 160.0}


def make_run(path: Path, *, wait_s: float, loader: float | None = 100.0) -> RunSummary:
    """Steps of 0.5 s, but the first and last of an epoch take 5 s; the fourth epoch's take 0.6 s."""
    directory = RunDirectory.create_or_resume(path, RUN.document())
    write_document(directory.prediction, document("prediction", PREDICTION))
    for rank in range(RANKS):
        line, writer = EventLine(job="j", rank=rank, host="n1"), EventWriter(directory.rank_events(rank))

        def add(step: int, name: str, value: float, line: EventLine = line, writer: EventWriter = writer) -> None:
            unit = names.UNITS.get(name, "1")
            writer.append(line.format(time_s=1e9 + step, step=step, name=name, value=value, unit=unit))

        if loader is not None:
            add(0, names.LOADER_RATE, loader)
        add(0, names.COPYING_TIME, 3.0 + rank)
        for step in range(STEPS * EPOCHS):
            epoch, inside = divmod(step, STEPS)
            step_s = 5.0 if inside in (0, STEPS - 1) else 0.6 if epoch == 3 else 0.5
            add(step, names.STEP_TIME, step_s)
            add(step, names.IMAGES_PER_S, RANKS * BATCH / step_s)
            add(step, names.DATA_WAIT, wait_s)
            if inside == STEPS - 1:
                add(step, names.TRAINING_TIME, 10.0 + rank)
                add(step, names.EPOCH_TIME, 11.0 + rank)
                add(step, names.TOP_1, 0.1 * (epoch + 1))
        add(16, names.EVENT_STEADY, 0.6)
        add(18, names.EVENT_STEADY_END, 1.0)
        writer.close()
    return summarize(collect(directory))


def test_only_the_fourth_epoch_without_its_ends_counts(tmp_path: Path) -> None:
    summary = make_run(tmp_path / "r", wait_s=0.0)
    assert summary.compared(names.STEP_TIME).measured == pytest.approx(0.6)
    assert summary.throughput.measured == pytest.approx(RANKS * BATCH / 0.6)
    assert summary.throughput.predicted == 160.0
    assert summary.compared(names.STEP_TIME).inside is True
    assert summary.vision is not None
    assert summary.vision.images_per_s_per_gpu == pytest.approx(BATCH / 0.6)
    assert [epoch.counts for epoch in summary.vision.epochs] == [False, False, False, True, False]
    third = summary.vision.epochs[2]
    assert (third.epoch, third.epoch_s, third.training_s) == (3, 12.0, 11.0)
    assert third.top_1_frac == pytest.approx(0.3)
    assert summary.vision.copying_s == 4.0


def test_loader_is_the_limit_where_steps_wait_for_it(tmp_path: Path) -> None:
    summary = make_run(tmp_path / "r", wait_s=0.3)
    assert summary.vision is not None
    assert summary.vision.limit == "loader"
    assert summary.vision.data_wait_frac == pytest.approx(0.5)
    assert summary.vision.device_images_per_s == pytest.approx(RANKS * BATCH / 0.3)
    assert summary.vision.loader_images_per_s == 200.0
    assert limit_sentence(summary.vision) == (
        "the limit is the loader: the device takes 213 images/s, the loader alone delivers 200; "
        "50% of a step waits for images"
    )


def test_device_is_the_limit_where_nothing_waits(tmp_path: Path) -> None:
    fed, synthetic = (make_run(tmp_path / str(rate), wait_s=0.01, loader=rate) for rate in (900.0, None))
    for summary in (fed, synthetic):
        assert summary.vision is not None
        assert summary.vision.limit == "device"
    assert synthetic.vision is not None
    assert limit_sentence(synthetic.vision).startswith("synthetic images: the device takes 108 images/s")
