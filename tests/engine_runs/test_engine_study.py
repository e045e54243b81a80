"""The shipped study `engines`: points of other programs beside our own trainer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.conftest import Cli

STUDY = """
schema = "scalewright.study/1"
id = "mine"
title = "Mine"
question = "How fast?"
kind = "engine"
metrics = ["step_time_s"]
[matrix]
engine = ["megatron"]
[point]
engine = "{engine}"
model = "layers=1,hidden=32,heads=2,vocab=64,seq=16"
layout = "dp=1,mbs=1,gbs=1"
system = "here"
device = "cpu"
steps = 3
OTHERWISE
[measure]
repeats = 1
"""


def run_study(cli: Cli, folder: Path, otherwise: str, *, python: str = "") -> tuple[int, str, dict[str, object]]:
    """Exit code, what was said, and the only point of the report."""
    (folder / "mine.toml").write_text(STUDY.replace("OTHERWISE", f'otherwise = "{otherwise}"' if otherwise else ""))
    env = {"SCALEWRIGHT_ENGINE_PYTHON": python} if python else {}
    done = cli("study", "run", "mine.toml", "--out", "out", "--no-plots", "--json", cwd=folder, env=env, timeout=120)
    (point,) = json.loads(done.stdout)["points"]
    return done.returncode, done.stderr, point


def test_a_point_whose_engine_is_not_installed_fails_with_the_line_of_pip(cli: Cli, tmp_path: Path) -> None:
    code, _, point = run_study(cli, tmp_path, "")
    assert code == 1
    assert "pip install 'megatron-core==0.16.1'" in str(point["measured_problem"])
    assert point["measured"] == {}


@pytest.mark.engines
def test_our_own_trainer_runs_where_the_study_says_so(cli: Cli, tmp_path: Path) -> None:
    code, said, point = run_study(cli, tmp_path, "scalewright")
    assert code == 0, said
    assert "pip install 'megatron-core==0.16.1'" in said
    assert "our own trainer runs instead, as the study says" in said
    assert point["words"] == {"program": "scalewright"}
    code, said, _ = run_study(cli, tmp_path, "scalewright")
    assert (code, "measured in" in said) == (0, False)


@pytest.mark.engines
def test_megatron_runs_where_it_is_installed(cli: Cli, tmp_path: Path, engines_python: str) -> None:
    code, said, point = run_study(cli, tmp_path, "scalewright", python=engines_python)
    assert code == 0, said
    assert point["words"] == {"program": "megatron 0.16.1"}
    code, said, _ = run_study(cli, tmp_path, "scalewright", python=engines_python)
    assert (code, "measured in" in said) == (0, False), "a finished point of an engine is run again"


def test_another_program_than_ours_cannot_stand_in(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(STUDY.replace("OTHERWISE", 'otherwise = "deepspeed"'))
    done = cli("study", "check", "mine.toml", cwd=tmp_path)
    assert done.returncode == 2
    assert "otherwise is 'deepspeed': use 'scalewright', or leave it out" in done.stderr


def test_the_study_predicts_every_engine(cli: Cli, tmp_path: Path) -> None:
    done = cli("study", "predict", "engines", "--json", cwd=tmp_path, env={"SCALEWRIGHT_SYSTEM": "laptop"})
    assert done.returncode == 0, done.stderr
    text = json.dumps(json.loads(done.stdout))
    for engine in ("scalewright", "torchtitan", "deepspeed", "huggingface", "megatron"):
        assert engine in text


def test_an_engine_that_is_not_installed_is_named_with_its_line_of_pip(cli: Cli, tmp_path: Path) -> None:
    done = cli(
        "bench", "engine", "deepspeed", "--model", "llama-tiny", "--layout", "dp=2,mbs=2,gbs=8", "--device", "cpu",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 3
    assert "pip install 'deepspeed==0.19.8'" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_bad_options_of_an_engine_are_one_sentence(cli: Cli, tmp_path: Path) -> None:
    for words, message in (
        (("megatorn", "--model", "llama-tiny", "--layout", "dp=2,mbs=1,gbs=2"), "did you mean megatron"),
        (("trl", "--model", "llama-tiny", "--layout", "dp=2,mbs=1,gbs=2", "--task", "pretrain"), "choose sft, grpo"),
        (("deepspeed", "--model", "llama-tiny", "--layout", "dp=2,mbs=1,gbs=2", "--load", "no"), "no such file"),
        (("deepspeed", "--model", "llama-tiny", "--layout", "dp=2,mbs=1,gbs=2", "--set", "x"), "is not key=value"),
        (("deepspeed", "--model", "llama-tiny", "--layout", "dp=2,mbs=1,gbs=2", "--steps", "0"), "needs 1 or more"),
        (("deepspeed", "--model", "llama-tiny", "--layout", "dp=2,mbs=1,gbs=2", "--python", "no"), "no interpreter"),
    ):
        done = cli("bench", "engine", *words, "--device", "cpu", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert message in done.stderr
