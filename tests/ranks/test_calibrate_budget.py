"""A calibration keeps to its budget, whatever a point does: one that would not end is stopped, and reported as late."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from calibration_cases import memory_rows
from scalewright.catalog.calibration import path_of
from scalewright.catalog.library import Catalog, packaged_data
from scalewright.errors import EnvironmentFailedError
from scalewright.records.measurements import Measurements, write_measurements
from scalewright.records.run_directory import ExitInfo, RunDirectory
from scalewright.records.types import ExitCode
from scalewright.study.calibration.measure import calibrate
from scalewright.study.calibration.points import CalibrationPoint, MicroPoint, TrainingRun, points
from scalewright.study.calibration.request import CalibrationRequest, calibration_here

CATALOG = Catalog((packaged_data(),))
BUDGET_S = 20.0
NEEDED = MicroPoint(
    name="memory", kind="memory", num_ranks=1, least_s=1.0, most_s=1.0, is_needed=True,
    options=lambda budget_s: {"sizes": "1 MiB", "device": "cpu", "budget": f"{budget_s} s"},
)  # fmt: skip
ENDLESS = MicroPoint(
    name="endless", kind="memory", num_ranks=1, least_s=1.0, most_s=1.0,
    options=lambda _: {"sizes": ",".join(f"{2**20 + 4096 * n} B" for n in range(1000)), "device": "cpu",
                       "budget": "3000 s"},
)  # fmt: skip
AFTER = MicroPoint(
    name="dispatch", kind="dispatch", num_ranks=1, least_s=1.0, most_s=1.0,
    options=lambda budget_s: {"compile": False, "device": "cpu", "budget": f"{budget_s} s"},
)  # fmt: skip


@pytest.fixture
def calibration_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CalibrationRequest:
    monkeypatch.setenv("SCALEWRIGHT_HOME", str(tmp_path / "home"))
    return calibration_here(CATALOG, budget_s=BUDGET_S, name="mine", device="cpu", ranks=1, out=tmp_path / "results")


def done_before(calibration_request: CalibrationRequest, kind: str, rows: list[Any]) -> None:
    """A point that an earlier, interrupted attempt has finished."""
    directory = RunDirectory.create_or_resume(
        calibration_request.folder / kind, {"schema": f"scalewright.{kind}-run/1"}
    )
    device = {"type": "cpu", "name": calibration_request.fingerprint.name, "num_ranks": 1}
    write_measurements(directory, Measurements(kind=kind, device=device, versions={}, rows=rows))
    directory.write_exit_info(
        ExitInfo(code=ExitCode.YES, reason="finished", job="j", attempt=0, rank=0, last_checkpoint=None, time=1.0)
    )


def plan(monkeypatch: pytest.MonkeyPatch, *every: CalibrationPoint) -> None:
    monkeypatch.setattr("scalewright.study.calibration.measure.points", lambda *_, **__: list(every))


@pytest.mark.ranks
@pytest.mark.alone
def test_a_point_that_does_not_end_is_ended_with_the_budget(
    calibration_request: CalibrationRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [point for point in points("cpu", num_ranks=1, scratch="/tmp") if isinstance(point, TrainingRun)]
    plan(monkeypatch, NEEDED, ENDLESS, AFTER, *steps[:2])
    done_before(calibration_request, "memory", memory_rows(20e9))
    messages: list[str] = []
    begun_s = time.monotonic()
    calibration = calibrate(CATALOG, calibration_request, messages.append)
    assert time.monotonic() - begun_s <= 1.1 * BUDGET_S
    assert {value.name for value in calibration.values} == {"memory_bytes_per_s"}
    assert calibration.skipped == (
        "the budget of 20.0 s ended before endless, dispatch, 2 short training runs: give --budget 60s",
    )
    assert "[3/5] dispatch: left out, the budget is used up" in messages  # and is not started
    assert not (calibration_request.folder / "dispatch").exists()
    assert path_of("mine").exists()


@pytest.mark.ranks
def test_a_real_run_far_slower_than_predicted_leaves_time_for_what_follows(
    calibration_request: CalibrationRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = next(point for point in points("cpu", num_ranks=1, scratch="/tmp") if isinstance(point, TrainingRun))
    plan(monkeypatch, NEEDED, replace(step, options=lambda _: step.options(1_000_000)), AFTER)
    done_before(calibration_request, "memory", memory_rows(20e9))
    monkeypatch.setattr("scalewright.study.calibration.measure.LONGEST_TRAINING_S", 1.0)
    calibration = calibrate(CATALOG, replace(calibration_request, budget_s=40.0), lambda _: None)
    assert (calibration_request.folder / "dispatch").exists()
    counted, late = len(calibration.steps), any("1 short training run" in line for line in calibration.skipped)
    assert counted + late == 1  # its steps, as far as it got


def test_without_time_for_what_is_needed_there_is_no_calibration(
    calibration_request: CalibrationRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan(monkeypatch, replace(NEEDED, least_s=80.0))
    with pytest.raises(EnvironmentFailedError, match=r"ended before memory: give --budget 120s; .* none is written"):
        calibrate(CATALOG, calibration_request, lambda _: None)
    assert not path_of("mine").exists()
