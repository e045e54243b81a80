"""A calibration that measured little, or that does not predict its own runs: it warns, and it does not overrule."""

from __future__ import annotations

import io
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from calibration_cases import CPU_VALUES, calibration
from scalewright.catalog import calibration as calibrations
from scalewright.catalog.calibration import Calibration
from scalewright.catalog.library import Catalog, packaged_data
from scalewright.errors import EnvironmentFailedError
from scalewright.here.devices import Probe
from scalewright.here.place import fingerprint_here, versions_here
from scalewright.records.study_report import PointRow, StudyReport
from scalewright.records.types import WARNING
from scalewright.report.study.files import markdown
from scalewright.report.study.page import page
from scalewright.report.study.table import print_study
from scalewright.study.calibration.request import calibration_here, check_better

Here = Callable[..., subprocess.CompletedProcess[str]]
CATALOG = Catalog((packaged_data(),))
PREDICT = ("predict", "--model", "gpt2-tiny", "--system", "here", "--layout", "mbs=1,gbs=1")


def runs(left_out_s: float) -> list[dict[str, Any]]:
    """Two training runs of 100 ms, and what is predicted of them without themselves."""
    common = {"workload": "language", "label": "l", "num_ranks": 1, "num_steps": 9, "precision": "fp32", "size": 64.0,
              "low_s": 0.1, "high_s": 0.1, "measured_s": 0.1, "before_s": 0.2, "after_s": 0.11}  # fmt: skip
    return [common | {"run": name, "left_out_s": left_out_s} for name in ("one", "two")]


def of_this_machine(name: str, **more: object) -> Calibration:
    own = {"fingerprint": fingerprint_here("cpu"), "versions": versions_here(), "name": name}
    return calibration(*CPU_VALUES, **(own | more))  # type: ignore[arg-type]


THIN = {"num_parts": 20, "num_missing": 16, "created": "2026-06-01T00:00:00Z"}
GOOD = {"num_parts": 20, "num_missing": 0, "steps": runs(0.108), "created": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (THIN, "16 of 20 parts were not measured and no training run checks it"),
        ({"steps": runs(0.613)}, "it is off by a factor of 6.1 on training runs left out of its fit"),
        ({"steps": runs(0.108)[:1]}, "only one training run checks it"),
    ],
)
def test_a_prediction_from_a_weak_calibration_warns_beside_the_number(
    here: Here, changed: dict[str, object], words: str
) -> None:
    calibrations.write(of_this_machine("weak", **changed))
    done = here(*PREDICT)
    assert done.returncode == 0
    summary = " ".join(done.stdout.partition("where the step goes")[0].split())
    assert f"warning this prediction may be far off. Calibration weak is a weak basis: {words}." in summary


GENERATE = ("--generate", "prompt=64,response=32", "--layout", "gbs=4")
RL = ("--rl", "prompts=4,samples=2,prompt=64,response=32", "--layout", "mbs=1,gbs=8")


@pytest.mark.parametrize("stage", [GENERATE, RL], ids=["generate", "rl"])
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (THIN, "16 of 20 parts were not measured and no training run checks it."),
        (GOOD, "no decode step was measured, and published rates of GPUs stand in for them."),
    ],
)
def test_generation_from_a_weak_calibration_warns_and_is_not_called_calibrated(
    here: Here, stage: tuple[str, ...], changed: dict[str, object], words: str
) -> None:
    calibrations.write(of_this_machine("weak", **changed))
    done = here("predict", "--model", "gpt2-tiny", "--system", "here", *stage)
    assert done.returncode == 0, done.stderr
    summary = " ".join(done.stdout.partition("where the ")[0].split())
    assert f"warning this prediction may be far off. Calibration weak is a weak basis: {words}" in summary
    assert "calibrated" not in summary
    document = json.loads(here("predict", "--model", "gpt2-tiny", "--system", "here", *stage, "--json").stdout)
    assert document["confidence"] == document["confidence_of"]["step_time"] == "model"


def test_a_small_rate_of_generation_keeps_its_digits(here: Here) -> None:
    calibrations.write(of_this_machine("weak", **THIN))
    model = ("predict", "--model", "gpt2-xl", "--precision", "fp32", "--system", "here")
    text = " ".join(here(*model, "--generate", "prompt=512,response=16", "--layout", "gbs=1").stdout.split())
    row = re.search(r"throughput (\S+) tokens/s model; (\S+) to (\S+); (\S+) each", text)
    assert row is not None, text
    rate, low, high, each = (float(number) for number in row.groups())
    assert 0.0 < low < rate < high < 10.0
    assert each == rate


def test_a_whole_calibration_does_not_warn(here: Here) -> None:
    calibrations.write(of_this_machine("good", **GOOD))
    assert "warning" not in here(*PREDICT).stdout


def test_a_newer_weak_calibration_does_not_overrule_an_older_good_one(here: Here) -> None:
    calibrations.write(of_this_machine("good", **GOOD))
    calibrations.write(of_this_machine("newer", **THIN))
    text = " ".join(here(*PREDICT).stdout.split())
    assert "(good/local, 1 node)" in text
    assert "note calibration good is used and not the newer newer: 16 of 20 parts were not measured" in text
    assert "warning" not in text


@pytest.mark.parametrize(("changed", "basis"), [(THIN, "probe of Made-up"), (GOOD, "calibration mine of 2026-01-01")])
def test_a_run_here_uses_a_probe_instead_of_a_weak_calibration_and_says_so(
    here: Here, monkeypatch: pytest.MonkeyPatch, changed: dict[str, object], basis: str
) -> None:
    probe = Probe(device="cpu", name="Made-up", num_devices=1, num_cores=2, precision="fp32", memory_bytes=2**34,
                  matmul_flop_per_s=1e9, memory_bytes_per_s=1e10, import_s=1.0)  # fmt: skip
    monkeypatch.setattr("scalewright.here.devices.run_probe", lambda **_: probe)
    calibrations.write(of_this_machine("mine", **changed))
    done = here("bench", "language", "--model", "gpt2-xl", "--steps", "60", "--device", "cpu", "--ranks", "1")
    assert done.returncode == 1  # it takes too long here, so nothing is started
    assert f"({basis}" in done.stderr


def test_a_model_too_large_for_a_cpu_says_what_it_needs_and_what_helps(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = Probe(device="cpu", name="Made-up", num_devices=1, num_cores=2, precision="fp32", memory_bytes=2**34,
                  matmul_flop_per_s=1e9, memory_bytes_per_s=1e10, import_s=1.0)  # fmt: skip
    monkeypatch.setattr("scalewright.here.devices.run_probe", lambda **_: probe)
    done = here("bench", "generate", "--model", "llama3-8b", "--device", "cpu", "--ranks", "1")
    assert done.returncode == 1
    message = " ".join(done.stderr.split())
    assert message.count("Made-up") == 1
    assert re.search(r"needs 3\d\.\d GiB, and a device gives an engine 1\d\.\d GiB of 16\.0 GiB", message)
    assert message.endswith("choose a smaller model or --precision bf16")


def test_a_weak_calibration_does_not_replace_a_better_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALEWRIGHT_HOME", str(tmp_path / "home"))
    request = calibration_here(CATALOG, budget_s=60.0, name="mine", device="cpu", out=tmp_path / "results")
    good, thin = of_this_machine("mine", **GOOD), of_this_machine("mine", **THIN)
    calibrations.write(thin)
    check_better(CATALOG, request, good)
    calibrations.write(good)
    check_better(CATALOG, request, good)
    with pytest.raises(EnvironmentFailedError, match=r"worse than the stored one \(16 of 20 parts .*copy .*--force"):
        check_better(CATALOG, request, thin)


def test_a_study_shows_the_warning_once_in_the_terminal_on_the_page_and_in_the_text() -> None:
    text = f"{WARNING}this prediction may be far off."
    rows = tuple(PointRow(id=name, labels={"ranks": name}, notes=(text, "fp32")) for name in ("1", "2"))
    report = StudyReport(study="s", title="t", question="q", created="", version="", axes=("ranks",), points=rows)
    console = Console(width=80, record=True, file=io.StringIO())
    print_study(console, report)
    shown = {"terminal": console.export_text(), "page": page(report), "text": markdown(report)}
    words = {"terminal": "warning this", "page": "<strong>Warning:</strong> this", "text": "**Warning:** this"}
    for where, start in words.items():
        assert shown[where].count(f"{start} prediction may be far off.") == 1, where
