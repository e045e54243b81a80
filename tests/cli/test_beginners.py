"""Mistakes of a first day with catalog, predict and plan: each answer is one sentence that says what to type."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable

import pytest

Cli = Callable[..., subprocess.CompletedProcess[str]]
STEP = ("predict", "--model", "llama3-8b", "--system", "leonardo", "--layout")
PLAN = ("plan", "--model", "llama3-8b", "--system", "leonardo", "--nodes", "2")


def predict(
    model: str = "llama3-8b", system: str = "leonardo", layout: str = "tp=4,dp=4", *more: str
) -> tuple[str, ...]:
    return ("predict", "--model", model, "--system", system, "--layout", layout, *more)


MISTAKES: dict[tuple[str, ...], str] = {
    # catalog
    ("catalog", "modles"): "models",
    ("catalog", "gpu"): "scalewright catalog accelerators",
    ("catalog", "cluster"): "scalewright catalog systems",
    ("catalog", "systems", "leonrdo"): "leonardo",
    ("catalog", "systems", "h100"): "systems with it: generic-h100",
    ("catalog", "models", "llama3"): "llama3-8b",
    ("catalog", "models", "leonardo"): "it is one of the systems",
    ("catalog", "new"): "scalewright catalog new system my-cluster",
    ("catalog", "new", "gpu", "my"): "choose system, fabric, price, site",
    ("catalog", "compare", "h100-sxm"): "catalog compare h100-sxm a100-sxm-80gb",
    ("catalog", "compare", "h100-sxm", "leonardo"): "compare two of one kind",
    ("catalog", "--catalog", "nowhere"): "name one that holds accelerators/",
    # predict
    ("predict",): "--model, --system and --layout are missing: see scalewright predict --help",
    ("predict", "--model", "llama3-8b"): "--system and --layout are missing",
    ("predict", "--model=llama3-8b", "--system=lumi"): "--layout is missing",
    predict(model="meta-llama/Meta-Llama-3-8B"): "llama3-8b",
    predict(model="h100"): "it is one of the accelerators",
    predict(model="config.json"): "check the path",
    predict(model="layers=32,hidden=4096"): "lacks heads",
    predict(model="layers=32,hidden=4096,heads=33"): "change one or give head_dim",
    predict(system="h100-sxm"): "systems with it: generic-h100",
    predict(system="a100-sxm-80gb"): "systems with it: deucalion, generic-a100",
    predict(system="lummi"): "lumi",
    predict(layout="4"): "write NAME=VALUE, such as tp=4",
    predict(layout="tp4,dp4"): "write tp=4",
    predict(layout="tp=4 dp=4"): "separate its parts with commas: tp=4,dp=4",
    predict(layout="TP=4"): "did you mean tp?",
    predict(layout="tp=4,dp=0"): "dp must be 1 or more",
    predict(layout="tp=4,dp=2.5"): "write dp=8",
    predict(layout="tp=3,dp=4"): "choose a divisor of 32",
    predict(layout="tp=4,dp=4,gbs=30"): "dp x mbs = 4 x 1 = 4",
    predict(layout="dp=100000"): "leonardo/booster has 3456",
    predict(layout="tp=4,dp=4,zero=5"): "ZeRO stages are 0, 1, 2 and 3",
    predict(layout="tp=4,dp=4,recompute=yes"): "choose none, selective",
    (*predict(), "--precision", "BF16"): "did you mean bf16?",
    (*predict(), "--precision", "fp4"): "nvfp4",
    (*predict(), "--seq", "4x"): "128, 4Ki or 20k",
    (*predict(), "--seq", "0"): "such as 2048",
    (*predict(), "--partition", "gpu"): "choose booster, dcgp",
    (*predict(), "--network", "busy"): "choose quiet or shared",
    (*predict(), "--transport", "infiniband"): "ipoib",
    (*predict(), "--mode", "qlora"): "choose full, offload, lora",
    (*predict(), "--lora-rank", "8"): "choose mode lora",
    (*predict(), "--optimizer", "adamw"): "AdamW counts as adam",
    (*predict(), "--samples", "tar"): "choose shards or files",
    (*predict(), "--checkpoint", "never"): "choose sync or async",
    (*predict(), "--tokens", "1,000,000"): "write 1000000",
    (*predict(), "--tokens", "300 billion"): "did you mean B?",
    (*predict(), "--tokens", "0"): "such as 300B",
    (*predict(), "--what-if", "tp"): "write tp=VALUE",
    (*predict(), "--plot", "a.pdff"): ".png, .svg, .pdf",
    (*predict(), "--generate", "128,128"): "write NAME=VALUE, such as prompt=128",
    (*predict(), "--generate", "prompt=10"): "lacks response",
    (*predict(), "--rl", "prompts=4"): "lacks samples, prompt, response",
    (*predict(), "--explian"): "--explain",
    # plan
    ("plan",): "--model is missing: see scalewright plan --help",
    ("plan", "--model", "llama3-8b"): "name a system such as lumi",
    (*PLAN[:-1], "0"): "between 1 and",
    (*PLAN[:-1], "four"): "write 128, a list 8,16,32 or doublings 8-64",
    (*PLAN[:-1], "8-4"): "write the smaller one first",
    (*PLAN, "--gpus", "16"): "2 nodes of leonardo/booster have 8 devices",
    (*PLAN, "--global-batch", "4M"): "it counts samples, not tokens",
    (*PLAN, "--fix", "8"): "write NAME=VALUE, such as tp=8",
    (*PLAN, "--fix", "tp=3"): "8 is not a multiple of 3",
    (*PLAN, "--objective", "cost"): "choose time, gpu-hours, energy, money",
    (*PLAN, "--budget", "1000"): "such as gpu-hours=1000",
    (*PLAN, "--budget", "gpuhours=100"): "did you mean gpu-hours?",
    (*PLAN, "--budget", "money=100"): "such as 100 USD or 100 kUSD",
    (*PLAN, "--walltime", "24"): "24 h",
    (*PLAN, "--walltime", "24:00:00"): "write 24 h",
    (*PLAN, "--walltime", "1-12:00:00"): "write 36 h",
    (*PLAN, "--site", "leonrado"): "leonardo",
    (*PLAN, "--stage", "training"): "choose pretrain, sft, rl, generate, distill",
    (*PLAN, "--teacher", "llama3-70b"): "only distill has one",
    (*PLAN, "--emit", "pytorch"): "choose megatron, torchtitan, deepspeed, fsdp",
    (*PLAN, "--tokens", "300B", "--steps", "10"): "give one of them",
    (*PLAN, "--top", "0"): "1 to 1000",
}


def test_there_are_many_of_them() -> None:
    assert len(MISTAKES) >= 70


@pytest.mark.parametrize("words", MISTAKES, ids=lambda words: " ".join(words)[:80])
def test_a_beginner_is_told_what_to_type(cli: Cli, words: tuple[str, ...]) -> None:
    done = cli(*words)
    errors = [line for line in done.stderr.splitlines() if not line.startswith("note: ")]
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(errors) == 1
    assert MISTAKES[words] in errors[0]
    assert not re.search(r"Traceback|Error:|None|\bstr\b|\bint\b|unable to parse|valid integer", errors[0])
