"""After an edit of a file, every function of the Python interface says what a fresh process would say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import scalewright as sw
from scalewright.catalog.library import packaged_data

MODEL, LAYOUT = "gpt2-small", "dp=4,mbs=8,gbs=32"
SCRIPT = (
    "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gres=gpu:4\n"
    "torchrun train.py --model_name_or_path meta-llama/Llama-3.1-8B\n"
)
TRAINING_STUDY = f"""
schema = "scalewright.study/1"
id = "steps"
title = "A step"
question = "How long is a step?"
kind = "language"

[point]
model = "{MODEL}"
system = "leonardo"
layout = "{LAYOUT}"

[matrix]
precision = ["bf16"]
"""
SEARCH_STUDY = f"""
schema = "scalewright.study/1"
id = "searches"
title = "A search"
question = "Which layout?"
kind = "plan"

[point]
model = "{MODEL}"
system = "leonardo"
global_batch = 32
nodes = 1

[matrix]
precision = ["bf16"]
"""
ROW = {
    "id": "one", "source": "a run", "year": 2024, "confidence": "sourced",
    "model": {"name": "m", "params_b": 0.1, "layers": 12, "hidden": 768, "heads": 12, "kv_heads": 12,
              "ffn_hidden": 3072, "vocab": 50257, "seq": 1024},
    "hardware": {"gpu": "A100-64GB-SXM", "gpus": 4, "gpus_per_node": 4, "intra_bw_GBps": 300,
                 "inter_bw_GBps_per_gpu": 25},
    "layout": {"dp": 4, "tp": 1, "pp": 1, "vpp": 1, "cp": 1, "ep": 1, "sp": False, "zero": 0, "micro_batch": 8,
               "global_batch": 32, "recompute": "none"},
    "dtype": "bf16", "measured": {"step_time_s": 0.2}, "derived": {},
}  # fmt: skip


def _study(name: str) -> Callable[[], object]:
    def ask() -> object:
        return sw.study(f"{name}.toml").predict().columns()["predicted_step_time_s"]

    return ask


VERBS: dict[str, dict[str, Callable[[], object]]] = {
    "predict": {"step": lambda: sw.predict(model=MODEL, system="leonardo", layout=LAYOUT).time_s},
    "predict_many": {
        "grid": lambda: sw.predict_many(model=MODEL, system="leonardo", layout=[LAYOUT]).columns()["step_time_s"]
    },
    "plan": {
        "search": lambda: sw.plan(model=MODEL, system="leonardo", nodes=1, global_batch=32).document()["best"][
            "step_time_s"
        ]
    },
    "study": {"training": _study("steps"), "search": _study("searches")},
    "lint": {"memory": lambda: sw.lint(SCRIPT, site="leonardo", select=["named-model-too-large"]).rules},
    "validate": {"rows": lambda: sw.validate("rows.jsonl").columns()["predicted_step_s"]},
    "catalog": {
        "table": lambda: sw.catalog.accelerators["a100-sxm-64gb"]["memory"],
        "found": lambda: sw.catalog.find("a100-sxm-64gb")["memory"],
        "compared": lambda: sw.catalog.compare("a100-sxm-64gb", "h100-sxm").columns()["ratio"],
    },
    "layouts": {},
    "ScalewrightError": {},
    "ConfigError": {},
    "EnvironmentFailedError": {},
    "__version__": {},
}
"""What each name of the interface says that follows from the entry of Leonardo's device; nothing: no files are read."""


def _write(folder: Path, *, peak: str, memory: str) -> None:
    text = (packaged_data() / "accelerators" / "a100-sxm-64gb.toml").read_text()
    path = folder / "scalewright" / "accelerators" / "a100-sxm-64gb.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.replace('"354.3 TFLOP/s"', f'"{peak}"').replace('"63.4 GiB"', f'"{memory}"'))
    path.write_text(path.read_text().replace('memory = { value = "64 GB"', f'memory = {{ value = "{memory}"'))


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_follows_an_edit_in_the_same_process(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCALEWRIGHT_HOME", str(tmp_path / "home"))
    (tmp_path / "steps.toml").write_text(TRAINING_STUDY)
    (tmp_path / "searches.toml").write_text(SEARCH_STUDY)
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROW) + "\n")
    for name, ask in VERBS[verb].items():
        said = []
        for peak, memory in (("354.3 TFLOP/s", "64 GiB"), ("35.43 TFLOP/s", "24 GiB"), ("354.3 TFLOP/s", "64 GiB")):
            _write(tmp_path, peak=peak, memory=memory)
            said.append(ask())
        assert said[0] != said[1], f"{verb}, {name}: the edit is not seen"
        assert said[0] == said[2], f"{verb}, {name}: the edit back is not seen"


def test_a_study_that_is_held_follows_an_edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "steps.toml").write_text(TRAINING_STUDY)
    _write(tmp_path, peak="354.3 TFLOP/s", memory="64 GiB")
    study = sw.study("steps.toml")
    before = study.predict().columns()["predicted_step_time_s"]
    _write(tmp_path, peak="35.43 TFLOP/s", memory="64 GiB")
    assert study.predict().columns()["predicted_step_time_s"] != before


def test_every_name_of_the_interface_is_in_the_rule() -> None:
    assert set(VERBS) == set(vars(sw)["__all__"])
