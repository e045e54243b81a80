"""`scalewright calibrate` on this machine: within its budget, used by predict and bench, refused where it must be."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from tests.conftest import Cli

from scalewright.catalog.calibration import Calibration
from scalewright.catalog.calibration_quality import is_trusted
from scalewright.catalog.library import Catalog, packaged_data

BUDGET_S = 30.0
MODEL = "layers=2,hidden=64,heads=2,vocab=512,seq=64"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("calibrated")


@pytest.mark.ranks
@pytest.mark.alone
def test_a_machine_is_calibrated_within_its_budget_and_then_predicted(cli: Cli, folder: Path) -> None:
    env = {"SCALEWRIGHT_HOME": str(folder / "home")}
    cli("--version")  # the server behind `cli` may still be importing PyTorch
    begun_s = time.monotonic()
    made = cli("calibrate", "--as", "mine", "--budget", f"{BUDGET_S} s", "--device", "cpu", "--ranks", "1", "--json",
               cwd=folder, env=env, timeout=300)  # fmt: skip
    spent_s = time.monotonic() - begun_s
    assert made.returncode == 0, made.stderr
    document = json.loads(made.stdout)
    assert document["schema"] == "scalewright.calibration/1"
    names = {value["name"] for value in document["values"]}
    assert "memory_bytes_per_s" in names
    assert "matmul_flop_per_s" in names or "products in fp32 were measured" in document["skipped"][0]  # others' work
    assert document["spent_s"] <= 1.1 * BUDGET_S
    assert spent_s <= 1.1 * BUDGET_S + 10.0  # and the command's own start on a busy machine
    assert len(document["residuals"]) <= 3
    assert (folder / "home" / "calibration" / "mine.json").exists()
    runs = list((folder / "results" / "calibrate").glob("*-mine/*/measurements.json"))
    assert {path.parent.name for path in runs} >= {"gemm", "memory"}

    question = ("predict", "--model", MODEL, "--layout", "mbs=2,gbs=2", "--precision", "fp32", "--json")
    done = cli(*question, "--system", "here", env=env)
    assert done.returncode == 0, done.stderr
    prediction = json.loads(done.stdout)
    assert prediction["confidence"] == "calibrated"
    assert prediction["input"]["machine"]["calibration"].startswith("mine@")
    by_name = json.loads(cli(*question, "--system", "mine", env=env).stdout)
    assert by_name["id"] == prediction["id"]

    ran = cli("bench", "language", "--model", MODEL, "--ranks", "1", "--steps", "6", "--device", "cpu", "--json",
              cwd=folder, env=env, timeout=300)  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "calibration mine of" in ran.stderr
    # On a busy machine too few training runs check the calibration: a probe is used instead, and the run says so.
    trusts = is_trusted(Catalog((packaged_data(),)), Calibration.model_validate(document))
    assert (json.loads(ran.stdout)["confidence"] == "calibrated") is trusts
    assert ("is not used, because" in ran.stderr) is not trusts

    planned = cli("plan", "--model", MODEL, "--global-batch", "4", "--gpus", "1", "--system", "here", "--precision",
                  "fp32", "--steps", "10", "--json", env=env)  # fmt: skip
    assert planned.returncode == 0, planned.stderr
    assert json.loads(planned.stdout)["best"]["confidence"] == "calibrated"

    path = folder / "home" / "calibration" / "mine.json"
    foreign = json.loads(path.read_text())
    foreign["fingerprint"]["num_cores"] += 1
    path.write_text(json.dumps(foreign))
    again = cli("calibrate", "--as", "mine", "--budget", "40 s", "--device", "cpu", cwd=folder, env=env)
    assert again.returncode == 2
    assert "--force" in again.stderr
    assert json.loads(path.read_text()) == foreign
    nobody = cli(*question, "--system", "here", env=env)
    assert nobody.returncode == 2
    assert "mine (it was made with number of cores" in nobody.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--budget", "5 s"), 2, "too short"),
        (("--budget", "5"), 2, "unit"),
        (("--as", "here"), 2, "cannot be called"),
        (("--device", "tpu"), 2, "is not known"),
        (("--ranks", "0"), 2, "--ranks 0"),
        (("--system", "nowhere"), 2, "no system is called"),
        (("--out", "/proc/nowhere"), 3, "choose another place"),
    ],
)
def test_bad_input_is_one_sentence(cli: Cli, tmp_path: Path, arguments: tuple[str, ...], code: int, words: str) -> None:
    given = ("calibrate", "--device", "cpu") if "--device" not in arguments else ("calibrate",)
    done = cli(*given, *arguments, cwd=tmp_path, env={"SCALEWRIGHT_HOME": str(tmp_path / "home")})
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "home").exists()
