"""What `calibrate` refuses to write over, and to begin: one sentence with the next step, and every file as it was."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from calibration_cases import CPU_VALUES, calibration
from scalewright.catalog import calibration as calibrations
from scalewright.catalog.library import Catalog, packaged_data
from scalewright.errors import EnvironmentFailedError
from scalewright.here.place import fingerprint_here, versions_here
from scalewright.records.host_load import HostLoad
from scalewright.study.calibration.request import calibration_here, check_replaceable

Here = Callable[..., subprocess.CompletedProcess[str]]
Edit = Callable[[str], str]


def as_it_is(text: str) -> str:
    return text


@pytest.mark.parametrize(
    ("changed", "edit", "words"),
    [
        ({"fingerprint": calibration().fingerprint}, as_it_is, "does not describe this machine as it is now"),
        ({"versions": {"torch": "1.0"}}, as_it_is, "choose another name with --as, or replace it with --force"),
        ({}, lambda text: text[: len(text) // 2], "make it again with scalewright calibrate --as mine --force"),
        ({}, lambda _: "[]", "not a calibration: make it again with scalewright calibrate --as mine --force"),
        ({}, lambda text: text.replace("calibration/1", "calibration/2"), "newer than 1"),
        ({}, lambda text: text.replace('"budget_s"', '"budget_h"'), "budget_h"),
    ],
    ids=["other machine", "other version", "torn", "a list", "newer", "unknown key"],
)
def test_a_calibration_that_is_not_ours_is_left_alone(
    here: Here, changed: dict[str, object], edit: Edit, words: str
) -> None:
    own = {"fingerprint": fingerprint_here("cpu"), "versions": versions_here()}
    path = calibrations.write(calibration(*CPU_VALUES, name="mine", **(own | changed)))  # type: ignore[arg-type]
    path.write_text(edit(path.read_text()))
    before = path.read_bytes()
    done = here("calibrate", "--as", "mine", "--budget", "30 s", "--device", "cpu")
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert path.read_bytes() == before
    assert not Path("results").exists()


def test_an_unwritable_home_is_refused_before_anything_is_measured(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALEWRIGHT_HOME", "/proc/nowhere")
    done = here("calibrate", "--budget", "30 s", "--device", "cpu")
    assert done.returncode == 3
    assert "set SCALEWRIGHT_HOME to another place" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not list(Path("results").rglob("gemm"))


def test_no_gpu_to_calibrate(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    done = here("calibrate", "--budget", "30 s", "--device", "cuda")
    assert done.returncode == 3
    assert "no GPU is visible here" in done.stderr
    assert not Path("results").exists()


@pytest.mark.parametrize(("before", "now", "refused"), [(False, 9.0, True), (True, 9.0, False), (False, 0.1, False)])
def test_a_quiet_hours_calibration_is_not_replaced_by_a_busy_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool, now: float, refused: bool
) -> None:
    monkeypatch.setenv("SCALEWRIGHT_HOME", str(tmp_path))
    monkeypatch.setattr("scalewright.study.calibration.request.load_now", lambda: HostLoad(load=now, num_cores=2))
    own = {"fingerprint": fingerprint_here("cpu"), "versions": versions_here(), "is_disturbed": before}
    calibrations.write(calibration(*CPU_VALUES, name="mine", **own))  # type: ignore[arg-type]
    request = calibration_here(Catalog((packaged_data(),)), budget_s=60.0, name="mine", device="cpu")
    if refused:
        with pytest.raises(EnvironmentFailedError, match=r"is busy \(load 9.0 on 2 cores\).*--force"):
            check_replaceable(request)
        check_replaceable(replace(request, force=True))
    else:
        check_replaceable(request)


def test_a_prediction_says_that_its_calibration_was_disturbed(here: Here) -> None:
    own = {"fingerprint": fingerprint_here("cpu"), "versions": versions_here(), "is_disturbed": True}
    calibrations.write(calibration(*CPU_VALUES, name="mine", **own))  # type: ignore[arg-type]
    done = here("predict", "--model", "gpt2-tiny", "--system", "here", "--layout", "mbs=1,gbs=1")
    assert "made while others used this machine" in " ".join(done.stdout.split())
