"""`plan --emit` from outside: the file printed is that of the layout printed with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from engines.emitting import layout_of
from scalewright.engines.types import Emitted
from scalewright.workload.layout import Layout

if TYPE_CHECKING:
    from conftest import Cli, Refused

QUESTION = ("plan", "--system", "generic-h100", "--nodes", "2", "--global-batch", "64", "--seq", "4096")


@pytest.mark.parametrize("framework", ["megatron", "torchtitan", "deepspeed", "fsdp"])
def test_the_file_is_of_the_layout_beside_it(cli: Cli, framework: str) -> None:
    result = cli(*QUESTION, "--model", "llama3-8b", "--emit", framework, "--json")
    assert result.returncode == 0, result.stderr[-500:]
    document = json.loads(result.stdout)["emitted"]
    emitted = Emitted(
        framework=document["framework"], version=document["version"], filename=document["filename"],
        text=document["text"], notes=tuple(document["notes"]),
    )  # fmt: skip
    assert layout_of(emitted, 16) == Layout(**document["layout"])


def test_people_see_the_file_as_it_is(cli: Cli) -> None:
    result = cli(*QUESTION, "--model", "llama3-8b", "--fix", "tp=2,pp=2,zero=1", "--emit", "megatron")
    assert result.returncode == 0, result.stderr[-500:]
    assert "\nMEGATRON_ARGS=(\n    --num-layers 32\n" in result.stdout


def test_the_file_is_written_where_asked(cli: Cli, refused: Refused, tmp_path: Path) -> None:
    target = tmp_path / "ds.json"
    result = cli(*QUESTION, "--model", "llama3-8b", "--emit", "deepspeed", "--emit-to", str(target), "--json")
    assert target.read_text(encoding="utf-8") == json.loads(result.stdout)["emitted"]["text"]
    assert "name the framework" in refused(cli(*QUESTION, "--model", "llama3-8b", "--emit-to", str(tmp_path / "none")))
    assert not (tmp_path / "none").exists()


def test_a_model_that_a_framework_lacks_is_refused(cli: Cli, refused: Refused) -> None:
    message = refused(cli(*QUESTION, "--model", "gpt3-6.7b", "--emit", "torchtitan", "--json"))
    assert "torchtitan cannot express model gpt3-6.7b" in message
    assert "did you mean megatron" in refused(cli(*QUESTION, "--model", "llama3-8b", "--emit", "megatrn"))


def test_the_picture_is_drawn_beside_the_answer(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "plan.svg"
    result = cli(*QUESTION, "--model", "llama3-8b", "--plot", str(path), "--json")
    assert result.returncode == 0, result.stderr[-500:]
    assert json.loads(result.stdout)["best"]["input"]["model"] == "llama3-8b"
    assert "predicted step time (s)" in path.read_text()
