"""What `calibrate --engine` refuses: one sentence with the next step, exit code, and the calibration as it was."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from calibration_cases import CPU_VALUES, calibration
from scalewright.catalog import calibration as calibrations
from scalewright.here.place import fingerprint_here, versions_here

Here = Callable[..., subprocess.CompletedProcess[str]]
CPU = ("--device", "cpu")


@pytest.fixture
def stored(here: Here) -> Path:
    """A calibration of this machine. The fixture `here` sets the home first."""
    del here
    return calibrations.write(
        calibration(*CPU_VALUES, name="mine", fingerprint=fingerprint_here("cpu"), versions=versions_here())
    )


def refused(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert done.returncode == code, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert all(word in done.stderr for word in words), done.stderr


def test_a_machine_without_a_calibration(here: Here) -> None:
    done = here("calibrate", "--engine", "deepspeed", *CPU)
    refused(done, 2, "this machine has no calibration", "run scalewright calibrate first")
    assert not Path("results").exists()


def test_a_calibration_of_another_machine(here: Here) -> None:
    calibrations.write(calibration(*CPU_VALUES, name="other"))
    refused(here("calibrate", "--engine", "trl", "--as", "other", *CPU), 2, "other is not of this machine as it is now")


@pytest.mark.usefixtures("stored")
def test_an_engine_that_nobody_knows(here: Here) -> None:
    refused(here("calibrate", "--engine", "deepsped", *CPU), 2, "deepsped", "deepspeed")


@pytest.mark.usefixtures("stored")
def test_an_engine_that_trains_nothing(here: Here) -> None:
    refused(here("calibrate", "--engine", "vllm", *CPU), 2, "vLLM trains no language model")


def test_an_engine_that_is_not_installed_is_named_with_its_pip_line(here: Here, stored: Path) -> None:
    before = stored.read_bytes()
    done = here("calibrate", "--engine", "deepspeed", "--python", sys.executable, *CPU)
    refused(done, 3, "is not installed", "pip install 'deepspeed==")
    assert stored.read_bytes() == before
    assert not Path("results").exists()


@pytest.mark.usefixtures("stored")
def test_a_budget_below_two_runs(here: Here) -> None:
    refused(
        here("calibrate", "--engine", "deepspeed", "--budget", "5 s", *CPU), 2, "5.00 s is too small", "--budget of"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--engine", "trl", "--system", "lumi"), "--system has no meaning with --engine"),
        (("--engine", "trl", "--for", "vision"), "--for has no meaning with --engine"),
        (("--python", sys.executable), "--python is of a training program: name it with --engine"),
        (("--set", "a=b"), "--set is of a training program"),
    ],
)
def test_options_that_do_not_belong_together(here: Here, words: tuple[str, ...], said: str) -> None:
    refused(here("calibrate", *words, *CPU), 2, said)


def test_an_engine_that_dies_is_named_with_its_own_error(here: Here, stored: Path, tmp_path: Path) -> None:
    """An interpreter that reports an installed engine, and cannot import it."""
    before, program = stored.read_bytes(), tmp_path / "python"
    program.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = -c ]; then echo \'{"python": "3.11", "deepspeed": "0.19.8", "torch": "2.13.0"}\'; exit 0; fi\n'
        "echo 'Traceback (most recent call last):' >&2\n"
        "echo \"RuntimeError: no room on the device\" >&2\nexit 1\n"
    )  # fmt: skip
    program.chmod(0o755)
    done = here("calibrate", "--engine", "deepspeed", "--python", str(program), *CPU)
    assert done.returncode == 3
    assert "no room on the device" in done.stderr.splitlines()[-1]
    assert "nothing is written" in done.stderr.splitlines()[-1]
    assert stored.read_bytes() == before
