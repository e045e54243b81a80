"""The calibrate study: what is measured in which order, where its runs go, and what is said of their machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from calibration_cases import memory_rows, product_rows
from scalewright.catalog.calibration import Step
from scalewright.catalog.library import Catalog, packaged_data
from scalewright.errors import ConfigError, EnvironmentFailedError
from scalewright.observe.residuals import Fitted
from scalewright.records.documents import document, write_document
from scalewright.records.measurements import Measurements, write_measurements
from scalewright.records.run_directory import RunDirectory
from scalewright.study.calibration import result as calibration_result
from scalewright.study.calibration.points import MicroPoint, TrainingRun, points
from scalewright.study.calibration.request import RESULT, calibration_here, study_folder
from scalewright.study.calibration.result import calibration_of, disturbance_note
from scalewright.study.execute import execution_of

CATALOG = Catalog((packaged_data(),))


@pytest.mark.parametrize(("device", "ranks"), [("cpu", 1), ("cpu", 2), ("cuda", 1), ("cuda", 4)])
def test_every_point_has_a_name_of_its_own_and_a_configuration_that_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, ranks: int
) -> None:
    monkeypatch.setattr("scalewright.here.devices.visible_gpus", lambda: [str(index) for index in range(ranks)])
    every = points(device, num_ranks=ranks, scratch="/tmp")  # type: ignore[arg-type]
    assert len({point.name for point in every}) == len(every)
    for point in every:
        options = point.options(point.least_s) if isinstance(point, MicroPoint) else point.options(10)
        execution = execution_of(CATALOG, point.kind, options, path=tmp_path / "r", where="test", predicts=False)
        assert execution.config["schema"] == f"scalewright.{point.kind}-run/1"
        assert execution.num_ranks == point.num_ranks
    assert {"gemm", "memory", "attention", "dispatch", "storage", "checkpoint"} <= {point.kind for point in every}
    assert ("collectives" in {point.kind for point in every}) == (ranks > 1)
    assert {point.kind for point in every if isinstance(point, TrainingRun)} == {"language", "vision"}
    assert [point.kind for point in every if isinstance(point, MicroPoint) and point.is_needed] == ["gemm", "memory"]


def test_products_and_memory_come_first_and_a_real_step_before_the_rest() -> None:
    every = points("cpu", num_ranks=2, scratch="/tmp")
    assert [point.name for point in every[:2]] == ["gemm", "memory"]
    assert any(isinstance(point, TrainingRun) for point in every[:5])


@pytest.mark.parametrize(
    ("workload", "kinds"),
    [
        ("generation", {"decode"}),
        ("language", {"attention", "language", "storage", "checkpoint"}),
        ("vision", {"convolution", "vision", "storage", "checkpoint"}),
    ],
)
def test_a_calibration_for_one_workload_measures_what_it_needs(workload: str, kinds: set[str]) -> None:
    every = points("cuda", num_ranks=1, scratch="/tmp", workload=workload)  # type: ignore[arg-type]
    assert {point.kind for point in every} == {"gemm", "memory", "dispatch"} | kinds


def test_an_interrupted_attempt_goes_on_and_a_finished_one_is_left_alone(tmp_path: Path) -> None:
    first = study_folder(tmp_path, "mine")
    assert first.parent == tmp_path
    assert first.name.endswith("-mine")
    begun = tmp_path / "20260101T000000Z-mine"
    begun.mkdir()
    assert study_folder(tmp_path, "mine") == begun
    (begun / RESULT).write_text("{}")
    assert study_folder(tmp_path, "mine") != begun
    assert study_folder(tmp_path, "other").name.endswith("-other")


def measured(path: Path, kind: str, rows: list[Any], *, name: str, throttled: tuple[str, ...] = ()) -> Path:
    """A run directory that a micro benchmark could have left."""
    directory = RunDirectory.create_or_resume(path / kind, {"schema": f"scalewright.{kind}-run/1"})
    device = {"type": "cpu", "name": name, "num_ranks": 1}
    write_measurements(
        directory,
        Measurements(kind=kind, device=device, versions={}, rows=rows, conditions={"throttled": list(throttled)}),
    )
    return directory.path


def test_a_calibration_notes_a_device_that_slowed_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALEWRIGHT_HOME", str(tmp_path / "home"))
    request = calibration_here(CATALOG, budget_s=60.0, name="mine", device="cpu", ranks=1, out=tmp_path / "results")
    cpu = request.fingerprint.name
    hot = measured(tmp_path, "gemm", product_rows(150e9), name=cpu, throttled=("hardware thermal slowdown",))
    cool = measured(tmp_path, "memory", memory_rows(20e9), name=cpu)
    made = calibration_of(CATALOG, request, [hot, cool], spent_s=50.0, skipped=[])
    assert made.notes == ("gemm: the device slowed itself down (hardware thermal slowdown)",)
    assert not (tmp_path / "home").exists()


def test_runs_of_another_machine_are_refused(tmp_path: Path) -> None:
    request = calibration_here(CATALOG, budget_s=60.0, name="mine", device="cpu", ranks=1, out=tmp_path / "results")
    foreign = measured(tmp_path, "gemm", product_rows(150e9), name="Another CPU")
    with pytest.raises(ConfigError, match=r"was measured on Another CPU, not on .*: choose another folder with --out"):
        calibration_of(CATALOG, request, [foreign], spent_s=50.0, skipped=[])


@pytest.mark.parametrize(
    ("cores_of_others", "is_noted"), [((0.1, 0.1), False), ((0.0, 0.9), True), ((0.9, 0.0), False)]
)
def test_other_work_counts_by_its_cores_during_measurement(
    tmp_path: Path, cores_of_others: tuple[float, float], is_noted: bool
) -> None:
    """A run of 1 s and one of 9 s on two cores: more than 0.3 of them in the mean is too much."""
    runs = []
    for took_s, cores in zip((1.0, 9.0), cores_of_others, strict=True):
        run = RunDirectory.create_or_resume(tmp_path / str(took_s), {"schema": "scalewright.gemm-run/1"})
        one = {"others_cores": cores, "num_cores": 2, "num_throttles": 0.0, "took_s": took_s}
        write_document(run.conditions, document("run-conditions", {"attempts": [one]}))
        runs.append(run.path)
    assert ("calibrate again" in disturbance_note(runs)) is is_noted
    assert disturbance_note([]) == ""


def test_values_that_their_own_steps_contradict_are_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = calibration_here(CATALOG, budget_s=60.0, name="mine", device="cpu", ranks=1, out=tmp_path / "results")
    cpu = request.fingerprint.name
    runs = [measured(tmp_path, "gemm", product_rows(150e9), name=cpu),
            measured(tmp_path, "memory", memory_rows(20e9), name=cpu)]  # fmt: skip
    common = {"run": "r", "workload": "language", "label": "l", "num_ranks": 1, "num_steps": 9, "precision": "fp32",
              "size": 64.0, "low_s": 0.1, "high_s": 0.1, "measured_s": 0.1, "before_s": 1.0}  # fmt: skip
    for after_s, holds in ((0.12, True), (0.47, False)):
        steps = (Step.model_validate(common | {"after_s": after_s, "left_out_s": after_s}),) * 2
        fitted = Fitted(residuals=(), steps=steps, language_interval=None, vision_interval=None)
        monkeypatch.setattr(calibration_result, "fit_residuals", lambda *_, fitted=fitted: fitted)
        if holds:
            assert calibration_of(CATALOG, request, runs, spent_s=50.0, skipped=[]).steps == steps
        else:
            with pytest.raises(
                EnvironmentFailedError, match=r"off by a factor of 4.7 .* nothing is written; calibrate again"
            ):
                calibration_of(CATALOG, request, runs, spent_s=50.0, skipped=[])
