"""Requests that contradict themselves: exit code 2, one sentence that names the two, nothing written."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from test_plan_answers import Here, plan

Refused = Callable[..., str]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (plan("--gpus", "31"), ["nodes 4", "gpus 31", "conflict", "32 devices"]),
        (plan("--gpus", "32", nodes="2,4"), ["nodes 2,4", "gpus 32", "conflict"]),
        (plan("--fix", "tp=7"), ["tp=7", "32 devices", "conflict"]),
        (plan("--fix", "tp=8,pp=4,cp=1,dp=2"), ["tp=8", "dp=2", "conflict", "64 devices"]),
        (plan("--fix", "pp=16,vpp=4"), ["pp=16,vpp=4", "40 layers", "conflict"]),
        (plan("--fix", "gbs=64"), ["gbs=64", "global batch of 128", "conflict"]),
        (plan("--fix", "tq=8"), ["tq", "tp"]),
        (plan("--budget", "gpu-hours=10"), ["budget gpu-hours", "tokens", "conflict", "needs"]),
        (plan("--budget", "gpuhours=10"), ["gpuhours", "gpu-hours"]),
        (plan("--budget", "energy=10"), ["'10'", "unit"]),
        (plan("--tokens", "1B", "--steps", "5"), ["tokens 1B", "steps 5", "conflict"]),
        (plan("--tokens", "0"), ["tokens 0"]),
        (plan("--steps", "0"), ["steps 0"]),
        (plan(nodes="0"), ["nodes 0"]),
        (plan(nodes="8-2"), ["8-2"]),
        (plan(nodes="many"), ["many", "8,16,32"]),
        (plan(nodes="100000"), ["100000", "560"]),
        (plan("--objective", "speed"), ["speed", "gpu-hours"]),
        (plan("--objective", "money", system="lumi"), ["money", "mi250x-gcd", "gpu-hours"]),
        (plan("--what-if", "tp=16"), ["what-if tp=16", "40 attention heads"]),
        (plan("--what-if", "speed=2"), ["speed"]),
        (plan("--what-if", "mbs=128,recompute=none,tp=1,pp=1,cp=1", model="gpt3-6.7b"), ["what-if", "conflict"]),
        (plan("--emit", "megatrom"), ["megatrom", "megatron"]),
        (plan("--plot", "plan.gif"), ["plan.gif"]),
        (plan("--plot", "/proc/none/plan.pdf", model="no-such-model"), ["/proc/none", "cannot be written"]),
        (plan("--walltime", "24"), ["'24'", "unit"]),
        (plan("--walltime", "0 s"), ["walltime 0 s"]),
        (plan("--top", "0"), ["top 0"]),
        (plan("--stage", "fly"), ["fly", "pretrain"]),
        (plan("--stage", "distill"), ["teacher"]),
        (plan("--teacher", "llama3-70b"), ["teacher", "pretrain", "distill"]),
        (plan("--stage", "rl", "--teacher", "llama3-70b"), ["teacher", "rl", "distill"]),
        (plan("--stage", "rl", "--emit", "megatron"), ["emit", "rl"]),
        (plan("--stage", "generate", "--compare", "lumi"), ["compare", "generate"]),
        (plan("--stage", "generate", "--plot", "plan.png"), ["plot", "generate"]),
        (plan("--stage", "rl", "--tokens", "1B"), ["tokens", "rl"]),
        (plan("--stage", "sft", "--top", "0"), ["top 0"]),
        (plan("--stage", "rl", "--top", "0"), ["top 0"]),
        (plan("--stage", "generate", "--top", "-2"), ["top -2"]),
        (plan(model="resnet-50"), ["resnet-50", "predict"]),
        (plan("--mode", "half"), ["half", "lora"]),
        (plan("--precision", "fp8"), ["fp8", "a100"]),
        (plan("--global-batch", "0"), ["global batch 0"]),
        (plan(system="lummi"), ["lummi", "lumi"]),
        (plan(model="t5-base"), ["t5-base", "not covered"]),
        (["plan", "--model", "gpt3-13b", "--nodes", "4", "--global-batch", "8"], ["name a system"]),
        (plan("--site", "lummi"), ["lummi", "lumi"]),
        (plan("--stage", "rl", "--site", "lumi"), ["site", "rl"]),
        (plan("--stack", "eager", "--emit", "torchtitan"), ["stack eager", "emit torchtitan", "compiled"]),
        (["plan-show", "none.json"], ["none.json", "no such file"]),
    ],
    ids=lambda v: " ".join(v)[-60:],
)
def test_refused_in_one_sentence(here: Here, refused: Refused, args: list[str], words: list[str]) -> None:
    message = refused(here(*args))
    for word in words:
        assert word in message, message


def test_refusal_leaves_no_file(here: Here, refused: Refused, tmp_path: Path) -> None:
    refused(here(*plan("--fix", "tp=7", "--out", "plan.json", "--plot", "plan.png")))
    assert list(tmp_path.glob("plan*")) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"schema": "scalewright.prediction/1"}', ["prediction", "plan"]),
        ('{"schema": "scalewright.plan/9"}', ["newer"]),
        ('{"schema": "scalewright.plan/1"}', ["not a whole plan"]),
        ('{"schema": "scalewright.plan/1", "request": 5}', ["not a whole plan"]),
        ("[]", ["list"]),
        ("{", ["not valid JSON"]),
    ],
)
def test_file_that_is_no_plan_is_refused(
    here: Here, refused: Refused, tmp_path: Path, text: str, words: list[str]
) -> None:
    (tmp_path / "plan.json").write_text(text)
    message = refused(here("plan-show", "plan.json"))
    assert all(word in message for word in words), message


def test_markup_in_a_name_is_printed_as_it_is(here: Here, tmp_path: Path) -> None:
    folder = tmp_path / "[bold]x"
    folder.mkdir()
    done: subprocess.CompletedProcess[str] = here("plan-show", str(folder / "plan.json"))
    assert "[bold]x" in done.stderr
