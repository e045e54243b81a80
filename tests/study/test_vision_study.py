"""EPICURE's vision protocol from run directories to figures: e(n) per epoch, per training and per batch, tails, AMP."""

from __future__ import annotations

import json

import pytest

from scalewright.catalog.library import open_catalog
from scalewright.launch.prepare.vision_setup import VisionRequest, resolve_vision_run
from scalewright.records import metric_names as names
from scalewright.records.run_directory import ExitInfo, RunDirectory
from scalewright.records.study_report import PointRow, StudyReport
from scalewright.study.points import Study, open_study
from scalewright.study.report_builder import measured_report
from scalewright.study.store import Store
from scalewright.workload.named import resolve_model

COUNTED = 3
"""The fourth of five epochs."""
BATCH_S = {("fp32", 1): 0.10, ("fp32", 2): 0.16, ("bf16", 1): 0.05, ("bf16", 2): 0.09}
VALIDATION_S = 0.5


def write_run(run: RunDirectory, *, precision: str, ranks: int, batch_s: float) -> tuple[float, float]:
    """A finished run as its ranks leave it; the training and the whole time of the epoch that counts."""
    catalog = open_catalog(None)
    request = VisionRequest(
        spec=resolve_model(catalog, "resnet-18"), ranks=ranks, batch=4, image_size=32, steps=24 // ranks, device="cpu",
        precision=precision, data="made", num_images=96, protocol="epicure",
    )  # fmt: skip
    config = resolve_vision_run(catalog, request)
    RunDirectory.create_or_resume(run.path, config.document())
    training_s = 0.0
    for rank in range(ranks):
        lines = []
        for step in range(config.steps):
            epoch, at = divmod(step, config.steps_per_epoch)
            # Warm-up in an epoch's first batch, a tail in its last fifth; epochs that do not count are slower.
            slow = 5.0 if at == 0 else 2.0 if at > 0.8 * config.steps_per_epoch else 1.0
            time_s = batch_s * slow * (1.0 if epoch == COUNTED else 3.0)
            training_s += time_s if epoch == COUNTED and rank == 0 else 0.0
            lines.append(line(rank, step, names.STEP_TIME, time_s))
            lines.append(line(rank, step, names.IMAGES_PER_S, 4 * ranks / time_s))
            if at == config.steps_per_epoch - 1:
                whole = training_s if epoch == COUNTED else 9.0
                lines.append(line(rank, step, names.TRAINING_TIME, whole))
                lines.append(line(rank, step, names.EPOCH_TIME, whole + VALIDATION_S))
        first = COUNTED * config.steps_per_epoch + 1
        last = (COUNTED + 1) * config.steps_per_epoch - 2
        lines.append(line(rank, first, names.EVENT_STEADY, batch_s))
        lines.append(line(rank, last, names.EVENT_STEADY_END, 1.0))
        run.rank_events(rank).write_text("".join(lines))
    ended = ExitInfo(code=0, reason="finished", job="j", attempt=0, rank=0, last_checkpoint=None, time=1.0)
    run.write_exit_info(ended)
    return training_s, training_s + VALIDATION_S


def line(rank: int, step: int, name: str, value: float) -> str:
    body = {"time": 1.0 + step, "job": "j", "rank": rank, "host": "n", "step": step, "name": name, "unit": "s"}
    return json.dumps({**body, "value": value}) + "\n"


@pytest.fixture(scope="module")
def measured(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[StudyReport, dict[tuple[str, int], tuple[float, float]]]:
    catalog = open_catalog(None)
    study: Study = open_study(catalog, "epicure-vision", is_measured=True)
    store = Store.create_or_resume(tmp_path_factory.mktemp("results") / "v", study)
    times = {}
    for point in study.points:
        key = point.labels["precision"], int(point.labels["ranks"])
        times[key] = write_run(store.run(point, 0), precision=key[0], ranks=key[1], batch_s=BATCH_S[key])
    return measured_report(catalog, "epicure-vision", store), times


def row(report: StudyReport, precision: str, ranks: int) -> PointRow:
    return next(r for r in report.points if r.labels["precision"] == precision and r.labels["ranks"] == str(ranks))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_efficiency_has_three_senses(measured: tuple[StudyReport, dict], precision: str) -> None:  # type: ignore[type-arg]
    """Median batch t(1)/t(2); epoch and its training t(1)/(2 t(2)), for as many images are in it on two ranks."""
    report, times = measured
    numbers = row(report, precision, 2).measured
    assert numbers["efficiency_frac"].value == pytest.approx(BATCH_S[precision, 1] / BATCH_S[precision, 2])
    (train_1, epoch_1), (train_2, epoch_2) = times[precision, 1], times[precision, 2]
    assert numbers["training_efficiency_frac"].value == pytest.approx(train_1 / (2 * train_2))
    assert numbers["epoch_efficiency_frac"].value == pytest.approx(epoch_1 / (2 * epoch_2))
    assert numbers["epoch_time_s"].value == pytest.approx(epoch_2)
    assert numbers["training_time_s"].value == pytest.approx(train_2)


def test_an_epoch_has_as_many_images_on_any_number_of_ranks() -> None:
    study = open_study(open_catalog(None), "epicure-vision", is_measured=True)
    images = {int(cell.values["gbs"]) * int(cell.values["steps"]) for cell in study.combinations}
    assert len(images) == 1


def test_the_elbow_is_where_the_tail_begins(measured: tuple[StudyReport, dict]) -> None:  # type: ignore[type-arg]
    """Of the 22 batches that count of 24, those after the twentieth take twice as long: 19 of 22 do not."""
    point = row(measured[0], "fp32", 1)
    assert len(point.series["batch_time_s"]) == 22
    bend = point.elbows["batch_time_s"]
    assert bend.time_s == pytest.approx(BATCH_S["fp32", 1])
    assert bend.share_frac == pytest.approx(19 / 22)


def test_mixed_precision_is_held_against_fp32(measured: tuple[StudyReport, dict]) -> None:  # type: ignore[type-arg]
    report, _ = measured
    assert row(report, "bf16", 1).measured["ratio"].value == pytest.approx(2.0)
    assert row(report, "bf16", 2).measured["ratio"].value == pytest.approx(0.16 / 0.09)
    assert any("precision bf16 is 1.89 times that of fp32, measured" in finding.text for finding in report.findings)
    assert report.scale_name == "ranks"
