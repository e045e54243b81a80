"""A calibration keeps to its budget, whatever a point does: one that would not end is ended, and is said to be late."""

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
from scalewright.study.calibrate import Wanted, calibrate, wanted_here
from scalewright.study.calibrate_points import Micro, Point, RealRun, points
from scalewright.workload.micro_run import DispatchRun, MemoryRun

CATALOG = Catalog((packaged_data(),))
BUDGET_S = 20.0
NEEDED = Micro(
    name="memory", kind="memory", num_ranks=1, least_s=1.0, most_s=1.0, is_needed=True,
    config=lambda budget_s: MemoryRun(sizes_bytes=(2**20,), device="cpu", budget_s=budget_s).document(),
)  # fmt: skip
ENDLESS = Micro(
    name="endless", kind="memory", num_ranks=1, least_s=1.0, most_s=1.0,
    config=lambda _: MemoryRun(sizes_bytes=tuple(2**20 + 4096 * n for n in range(1000)), device="cpu",
                               budget_s=3000.0).document(),
)  # fmt: skip
AFTER = Micro(
    name="dispatch", kind="dispatch", num_ranks=1, least_s=1.0, most_s=1.0,
    config=lambda budget_s: DispatchRun(compiles=False, device="cpu", budget_s=budget_s).document(),
)  # fmt: skip


@pytest.fixture
def wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wanted:
    monkeypatch.setenv("SCALEWRIGHT_HOME", str(tmp_path / "home"))
    return wanted_here(CATALOG, budget_s=BUDGET_S, name="mine", device="cpu", ranks=1, out=tmp_path / "results")


def done_before(wanted: Wanted, kind: str, rows: list[Any]) -> None:
    """A point that an earlier, interrupted attempt has finished."""
    directory = RunDirectory.create_or_resume(wanted.folder / kind, {"schema": f"scalewright.{kind}-run/1"})
    device = {"type": "cpu", "name": wanted.fingerprint.name, "num_ranks": 1}
    write_measurements(directory, Measurements(kind=kind, device=device, versions={}, rows=rows))
    directory.write_exit_info(
        ExitInfo(code=ExitCode.YES, reason="finished", job="j", attempt=0, rank=0, last_checkpoint=None, time=1.0)
    )


def plan(monkeypatch: pytest.MonkeyPatch, *every: Point) -> None:
    monkeypatch.setattr("scalewright.study.calibrate.points", lambda *_, **__: list(every))


@pytest.mark.ranks
@pytest.mark.alone
def test_a_point_that_does_not_end_is_ended_with_the_budget(wanted: Wanted, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [point for point in points("cpu", num_ranks=1, scratch="/tmp") if isinstance(point, RealRun)]
    plan(monkeypatch, NEEDED, ENDLESS, AFTER, *steps[:2])
    done_before(wanted, "memory", memory_rows(20e9))
    said: list[str] = []
    begun_s = time.monotonic()
    found = calibrate(CATALOG, wanted, said.append)
    assert time.monotonic() - begun_s <= 1.1 * BUDGET_S
    assert {value.name for value in found.values} == {"memory_bytes_per_s"}
    assert found.skipped == (
        "the budget of 20.0 s ended before endless, dispatch, 2 short real runs: give --budget 60s",
    )
    assert "[3/5] dispatch: left out, no time left" in said  # and is not started
    assert not (wanted.folder / "dispatch").exists()
    assert path_of("mine").exists()


@pytest.mark.ranks
def test_a_real_run_far_slower_than_predicted_leaves_time_for_what_follows(
    wanted: Wanted, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = next(point for point in points("cpu", num_ranks=1, scratch="/tmp") if isinstance(point, RealRun))
    plan(monkeypatch, NEEDED, replace(step, config=lambda _: step.config(1_000_000)), AFTER)
    done_before(wanted, "memory", memory_rows(20e9))
    monkeypatch.setattr("scalewright.study.calibrate.LONGEST_REAL_S", 1.0)
    found = calibrate(CATALOG, replace(wanted, budget_s=40.0), lambda _: None)
    assert (wanted.folder / "dispatch").exists()
    counted, late = len(found.steps), any("1 short real run" in line for line in found.skipped)
    assert counted + late == 1  # its steps, as far as it got


def test_without_time_for_what_is_needed_there_is_no_calibration(
    wanted: Wanted, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan(monkeypatch, replace(NEEDED, least_s=80.0))
    with pytest.raises(EnvironmentFailedError, match=r"ended before memory: give --budget 120s; .* none is written"):
        calibrate(CATALOG, wanted, lambda _: None)
    assert not path_of("mine").exists()
