"""`calibrate --engine`: factors fitted to short runs of a program make predictions of its other runs better."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from tests.conftest import Cli

from calibration_cases import CPU_VALUES, calibration
from scalewright.here.place import fingerprint_here, versions_here
from scalewright.records.documents import to_json

MODEL = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 192, "intermediate_size": 512,
         "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 1024,
         "max_position_embeddings": 128, "hidden_act": "silu", "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
         "rope_theta": 10000.0}  # fmt: skip


def home(folder: Path) -> dict[str, str]:
    return {"SCALEWRIGHT_HOME": str(folder / "home")}


def predicted_s(cli: Cli, folder: Path, stack: str) -> float:
    done = cli("predict", "--model", str(folder / "model" / "config.json"), "--layout", "mbs=2,gbs=2,zero=1",
               "--precision", "fp32", "--stack", stack, "--system", "mine", "--json", cwd=folder,
               env=home(folder))  # fmt: skip
    assert done.returncode == 0, done.stderr
    return float(json.loads(done.stdout)["step_time_s"])


@pytest.mark.engines
def test_factors_of_short_runs_improve_the_prediction_of_another(cli: Cli, engines_python: str, tmp_path: Path) -> None:
    """The machine's own calibration is made up and much too fast: the factors have to bring all that DeepSpeed adds."""
    path = tmp_path / "home" / "calibration" / "mine.json"
    path.parent.mkdir(parents=True)
    made_up = calibration(*CPU_VALUES, name="mine", fingerprint=fingerprint_here("cpu"), versions=versions_here())
    path.write_text(to_json(made_up.document()))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(MODEL))
    before_s = predicted_s(cli, tmp_path, "deepspeed")
    done = cli("calibrate", "--engine", "deepspeed", "--as", "mine", "--device", "cpu", "--budget", "90s", "--python",
               engines_python, "--json", cwd=tmp_path, env=home(tmp_path), timeout=200)  # fmt: skip
    assert done.returncode == 0, done.stderr
    (fit,) = json.loads(done.stdout)["engines"]
    assert fit["engine"] == "deepspeed"
    assert fit["release"].startswith("0.19")
    assert 2 <= len(fit["steps"]) <= 5
    run = tmp_path / "judged"
    judged = cli("bench", "engine", "deepspeed", "--model", str(tmp_path / "model" / "config.json"), "--layout",
                 "mbs=2,gbs=2,zero=1", "--steps", "12", "--device", "cpu", "--system", "mine", "--python",
                 engines_python, "--run-dir", str(run), "--json", cwd=tmp_path, env=home(tmp_path),
                 timeout=200)  # fmt: skip
    assert judged.returncode == 0, judged.stderr
    rows = (json.loads(line) for line in (run / "events" / "rank-0.jsonl").read_text().splitlines())
    times_s = sorted(row["value"] for row in rows if row.get("name") == "step_time")
    measured_s = times_s[len(times_s) // 2]
    after_s = predicted_s(cli, tmp_path, "deepspeed")
    assert abs(math.log(after_s / measured_s)) < abs(math.log(before_s / measured_s))
