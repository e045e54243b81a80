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
    done = cli("predict", "--model", "resnet-50", "--system", "lumi", "--layout", "dp=8,mbs=128", "--explain")
    assert done.returncode == 0, done.stderr
    assert "images/s" in done.stdout
    assert "norm and activation" in done.stdout
    assert "Equation" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
