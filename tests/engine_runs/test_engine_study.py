"""The shipped study `engines`: points of other programs beside our own trainer."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import Cli


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
