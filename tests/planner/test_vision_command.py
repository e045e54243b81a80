"""ResNet-50 through the command line: rates, scaling and what does not apply."""

from __future__ import annotations

import json
from collections.abc import Callable
from subprocess import CompletedProcess

import pytest

Cli = Callable[..., CompletedProcess[str]]


def images_per_s(cli: Cli, layout: str, *more: str, system: str = "generic-h200") -> float:
    done = cli("predict", "--model", "resnet-50", "--system", system, "--layout", layout, "--json", *more)
    assert done.returncode == 0, done.stderr
    return float(json.loads(done.stdout)["images_per_s"])


def test_compiled_amp_outruns_fp32_on_one_device(cli: Cli) -> None:
    amp = images_per_s(cli, "mbs=512", "--stack", "compiled", "--precision", "bf16")
    assert amp > 4 * images_per_s(cli, "mbs=512", "--stack", "eager", "--precision", "fp32")


def test_eight_devices_scale_within_a_node(cli: Cli) -> None:
    one = images_per_s(cli, "mbs=256", "--stack", "compiled")
    eight = images_per_s(cli, "dp=8,mbs=256", "--stack", "compiled")
    assert 0.9 * 8 * one < eight <= 8 * one * (1 + 1e-9)


@pytest.mark.parametrize("layout", ["tp=2,mbs=8", "pp=2,mbs=8", "dp=2,mbs=8,gbs=64"])
def test_splitting_that_does_not_apply_is_refused(cli: Cli, layout: str) -> None:
    done = cli("predict", "--model", "resnet-50", "--system", "generic-h200", "--layout", layout)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "data parallel" in done.stderr


def test_answer_is_readable(cli: Cli) -> None:
    done = cli("predict", "--model", "resnet-50", "--system", "lumi", "--layout", "dp=8,mbs=128", "--explain-all")
    assert done.returncode == 0, done.stderr
    assert "images/s" in done.stdout
    assert "norm and activation" in done.stdout
    assert "Equation" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_document_has_what_every_prediction_has(cli: Cli) -> None:
    args = ["--model", "resnet-50", "--system", "marenostrum5", "--layout", "dp=64,mbs=256", "--precision", "fp16"]
    document = json.loads(cli("predict", *args, "--json").stdout)
    assert (document["stage"], document["model"], document["system"]) == ("vision", "resnet-50", "marenostrum5/acc")
    low, high = document["step_time_interval_s"]
    assert 0 < document["step_time_bound_s"] < low < document["step_time_s"] < high
    assert document["confidence"] == "model"
    assert document["confidence_of"]["step_time_bound"] == "bound"
    assert (
        document["memory_bytes"]
        < document["reserved_bytes"]
        < document["device_bytes"]
        < document["device_memory_bytes"]
    )
    assert document["fits"] is True
    assert document["energy_j"] > 0
    assert 0.89 <= document["efficiency_frac"] <= 1


def test_what_does_not_fit_is_a_no(cli: Cli) -> None:
    done = cli(
        "predict", "--model", "resnet-50", "--system", "generic-v100", "--layout", "mbs=1024", "--precision", "fp32"
    )
    assert done.returncode == 1
    assert "does not fit" in done.stdout


def test_named_storage_counts_the_wait_for_images(cli: Cli) -> None:
    """Leonardo has 8 cores a device: enough for FP32, not for mixed precision, whose advantage shrinks."""
    args = {"system": "leonardo"}
    ready = [images_per_s(cli, "dp=4,mbs=128", "--stack", "eager", "--precision", p, **args) for p in ("fp32", "fp16")]
    named = "--storage", "leonardo-fast"
    real = [
        images_per_s(cli, "dp=4,mbs=128", "--stack", "eager", "--precision", p, *named, **args)
        for p in ("fp32", "fp16")
    ]
    assert real[0] == pytest.approx(ready[0], rel=0.01)
    assert real[1] < 0.9 * ready[1]
    question = "--model", "resnet-50", "--system", "leonardo", "--layout", "dp=4,mbs=128", "--precision", "fp16"
    text = cli("predict", *question, *named).stdout
    assert "waits for data" in text


def test_explanation_ranks_places_and_turns_one_knob(cli: Cli) -> None:
    args = ["--model", "resnet-50", "--system", "generic-h200", "--layout", "dp=8,mbs=256", "--stack", "eager"]
    text = cli("predict", *args, "--precision", "bf16", "--explain-all").stdout
    for word in (
        "what limits it",
        "under which roof",
        "one change at a time",
        "channels last",
        "stack compiled",
        "inputs",
    ):
        assert word in text
    assert "9.7 TB/s" in text, "the roof of the L2 is among the inputs"


def test_figures_of_vision_and_generation_are_drawn_and_an_rl_step_is_refused(cli: Cli, tmp_path) -> None:
    vision = "--model", "resnet-50", "--system", "generic-h200", "--layout", "dp=8,mbs=256"
    assert cli("predict", *vision, "--plot", str(tmp_path / "v.png")).returncode == 0
    text = "--model", "llama3-8b", "--system", "generic-h100", "--layout", "dp=2,gbs=64"
    stage = "--generate", "prompt=512,response=128"
    assert cli("predict", *text, *stage, "--plot", str(tmp_path / "g.svg")).returncode == 0
    stage = "--rl", "prompts=8,samples=8,prompt=256,response=256,tp=1"
    done = cli("predict", *text, *stage, "--plot", str(tmp_path / "r.png"))
    assert done.returncode == 2
    assert "RL step" in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["g.svg", "v.png"]


def test_an_epoch_is_at_the_slower_of_devices_and_loader(cli: Cli) -> None:
    """The limit is named, with what to change; the step itself has its images ready."""
    args = ["--model", "resnet-50", "--system", "generic-a100", "--layout", "dp=8,mbs=256", "--precision", "fp16"]
    body = json.loads(cli("predict", *args, "--json").stdout)
    assert body["loader_limit"] == "workers"
    assert body["loader_images_per_s"] < body["images_per_s"]
    assert body["epoch_images_per_s"] == pytest.approx(body["loader_images_per_s"])
    assert body["epoch_time_s"] == pytest.approx(1_281_167 / body["loader_images_per_s"], rel=0.01)
    text = " ".join(cli("predict", *args).stdout.split())
    assert "sets the rate of an epoch" in text
    assert "decode on the device (DALI)" in text
    slow = json.loads(cli("predict", *args[:-1], "fp32", "--json").stdout)
    assert slow["epoch_images_per_s"] == pytest.approx(min(slow["images_per_s"], slow["loader_images_per_s"]))
