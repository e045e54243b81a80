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


def refusal(done: subprocess.CompletedProcess[str], code: int) -> str:
    """The only line that was said."""
    assert done.returncode == code, done.stderr
    (line,) = done.stderr.strip().splitlines()
    return line


def test_a_machine_without_a_calibration(here: Here) -> None:
    done = here("calibrate", "--engine", "deepspeed", *CPU)
    said = refusal(done, 2)
    assert "this machine has no calibration" in said
    assert "run scalewright calibrate first" in said
    assert not Path("results").exists()


def test_a_calibration_of_another_machine(here: Here) -> None:
    calibrations.write(calibration(*CPU_VALUES, name="other"))
    said = refusal(here("calibrate", "--engine", "trl", "--as", "other", *CPU), 2)
    assert "other is not of this machine as it is now" in said


@pytest.mark.usefixtures("stored")
def test_an_engine_that_nobody_knows(here: Here) -> None:
    said = refusal(here("calibrate", "--engine", "deepsped", *CPU), 2)
    assert "deepsped" in said
    assert "deepspeed" in said


@pytest.mark.usefixtures("stored")
def test_an_engine_that_trains_nothing(here: Here) -> None:
    assert "vLLM trains no language model" in refusal(here("calibrate", "--engine", "vllm", *CPU), 2)


def test_an_engine_that_is_not_installed_is_named_with_its_pip_line(here: Here, stored: Path) -> None:
    before = stored.read_bytes()
    done = here("calibrate", "--engine", "deepspeed", "--python", sys.executable, *CPU)
    said = refusal(done, 3)
    assert "is not installed" in said
    assert "pip install 'deepspeed==" in said
    assert stored.read_bytes() == before
    assert not Path("results").exists()


@pytest.mark.usefixtures("stored")
def test_a_budget_below_two_runs(here: Here) -> None:
    said = refusal(here("calibrate", "--engine", "deepspeed", "--budget", "5 s", *CPU), 2)
    assert "5.00 s is too small" in said
    assert "--budget of" in said


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
    assert said in refusal(here("calibrate", *words, *CPU), 2)


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
