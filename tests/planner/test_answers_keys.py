"""Every prediction document has the same first keys, whatever was predicted."""

from __future__ import annotations

import html
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

import scalewright as sw

Cli = Callable[..., CompletedProcess[str]]
REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "prediction.md"
TEXT = "--model", "llama3-8b", "--system", "generic-h100"
ASKED = {
    "pretrain": (*TEXT, "--layout", "dp=8,mbs=1,gbs=64,zero=1"),
    "vision": ("--model", "resnet-50", "--system", "generic-h200", "--layout", "dp=8,mbs=256"),
    "generate": (*TEXT, "--layout", "dp=2,gbs=64", "--generate", "prompt=512,response=128,engine=tensorrt-llm"),
    "rl": (*TEXT, "--layout", "dp=8,mbs=1,gbs=64,zero=1", "--rl", "prompts=16,samples=8,prompt=256,response=256,tp=1"),
}
SHARED = [
    "schema", "id", "scalewright", "stage", "model", "num_params", "num_active_params", "model_assumed",
    "model_not_modelled", "model_words", "system", "stack_origin", "input", "num_gpus", "num_nodes",
    "step_time_s", "step_time_interval_s", "step_time_bound_s", "confidence", "confidence_of",
]  # fmt: skip
LATER = {
    "memory_bytes", "reserved_bytes", "device_bytes", "device_memory_bytes", "fits", "room", "energy_j", "warnings",
    "time", "memory",
}  # fmt: skip


def ask(cli: Cli, stage: str, *more: str) -> dict[str, Any]:
    done = cli("predict", *ASKED[stage], "--json", *more)
    assert done.returncode in (0, 1), done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.mark.parametrize("stage", ASKED)
def test_keys_are_shared_and_documented(cli: Cli, stage: str) -> None:
    document = ask(cli, stage)
    assert list(document)[: len(SHARED)] == SHARED
    assert set(document) >= LATER
    assert document["stage"] == stage
    low, high = document["step_time_interval_s"]
    assert document["step_time_bound_s"] < document["step_time_s"]
    assert low < document["step_time_s"] < high
    assert document["confidence_of"] == {
        "step_time": "model", "step_time_bound": "bound", "memory": "model", "energy": "model",
    }  # fmt: skip
    page = set(re.findall(r"`(\w+)`", REFERENCE.read_text(encoding="utf-8")))
    assert set(SHARED) - {"scalewright"} <= page
    assert page >= LATER


@pytest.mark.parametrize(
    ("stage", "model"),
    [
        (stage, model)
        for stage in ASKED
        for model in (("resnet-50",) if stage == "vision" else ("layers=32,hidden=4096,heads=32", "mixtral-8x7b"))
    ],
)
def test_the_line_about_the_model_is_the_same_in_table_document_and_python(cli: Cli, stage: str, model: str) -> None:
    options = dict(zip(ASKED[stage][::2], ASKED[stage][1::2], strict=True)) | {"--model": model}
    words = tuple(itertools.chain.from_iterable(options.items()))
    document = json.loads(cli("predict", *words, "--json").stdout)
    keywords: dict[str, Any] = {name.removeprefix("--"): value for name, value in options.items()}
    answer = sw.predict(**keywords)
    assert document["model_words"] == answer.model_words
    assert answer.model_words in html.unescape(answer._repr_html_())
    assert (document["num_params"], document["num_active_params"]) == (answer.num_params, answer.num_active_params)
    assert " ".join(document["model_words"].split()) in " ".join(cli("predict", *words).stdout.split())
    assert all(words in document["model_words"] for words in document["model_assumed"])
    assert ("assumed" in document["model_words"]) == ("=" in model)
    assert ("active" in document["model_words"]) == (model == "mixtral-8x7b")


def test_a_plan_says_of_its_model_what_a_prediction_says(cli: Cli) -> None:
    asked = ("plan", "--model", "layers=12,hidden=768,heads=12", "--system", "leonardo", "--nodes", "1")
    document, plan = json.loads(cli(*asked, "--json").stdout), " ".join(cli(*asked).stdout.split())
    assert document["best"]["model_words"] == document["model_words"]
    assert " ".join(document["model_words"].split()) in plan


@pytest.mark.parametrize("stage", ["vision", "generate", "rl"])
def test_an_unseen_device_widens_the_interval_and_says_so(cli: Cli, stage: str) -> None:
    def width(document: dict[str, Any]) -> float:
        low, high = document["step_time_interval_s"]
        return float(high / low)

    seen = ask(cli, stage)
    other = ask(cli, stage, "--system", "generic-mi355x")
    assert width(other) > width(seen)
    assert any("the interval is wider" in warning for warning in other["warnings"])
    assert not any("the interval is wider" in warning for warning in seen["warnings"])


@pytest.mark.parametrize("stage", ASKED)
def test_confidence_stands_beside_the_numbers(cli: Cli, stage: str) -> None:
    text = cli("predict", *ASKED[stage]).stdout
    assert re.search(r"(step time|all answers) .*model; 90 % interval", text)
    assert re.search(r"at least .*bound;", text)
    assert re.search(r"memory .*model;", text)
