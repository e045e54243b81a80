"""What `bench vision` refuses: one sentence with the next step, before anything starts, and nothing is touched."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Cli = Callable[..., subprocess.CompletedProcess[str]]
Refused = Callable[..., str]
COMMAND = ["bench", "vision", "--device", "cpu"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--model", "gpt2-tiny"], "gpt2-tiny is no residual network"),
        (["--model", "resnet-51"], "no model is called 'resnet-51'"),
        (["--ranks", "0"], "--ranks 0 must be 1 or more"),
        (["--batch", "0"], "batch is 0"),
        (["--epochs", "-1"], "0 (as usual) or more"),
        (["--precision", "fp8"], "precision 'fp8' is not known"),
        (["--compile", "graphs"], "compile=graphs replays a step of one GPU"),
        (["--channels", "middle"], "--channels 'middle' is not known"),
        (["--data", "nowhere"], "--data 'nowhere': no such folder"),
        (["--data", "made:zip"], "images are made as folder, shards, lmdb"),
        (["--data", "made", "--images", "10"], "10 training images are fewer than the 16 of one step"),
        (["--data", "made", "--copy-to", "nowhere"], "--copy-to 'nowhere': no such folder"),
        (["--copy-to", "ram"], "synthetic images lie on the device"),
        (["--protocol", "epicure", "--epochs", "3"], "counts the fourth epoch"),
        (["--label-smoothing", "1"], "label smoothing 1.0: give 0 or more, below 1"),
        (["--data", "made", "--passes", "0"], "--passes 0: an epoch reads each image 1 time or more"),
        (["--size", "31"], "image size 31"),
        (["--system", "atlantis"], "no system is called 'atlantis'"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_bad_input_is_one_sentence(tmp_path: Path, cli: Cli, refused: Refused, args: list[str], words: str) -> None:
    assert words in refused(cli(*COMMAND, *args, cwd=tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_data_set_that_is_none_is_refused(tmp_path: Path, cli: Cli, refused: Refused) -> None:
    (tmp_path / "set").mkdir()
    assert "set: holds no CLASS/IMAGE" in refused(cli(*COMMAND, "--data", "set", cwd=tmp_path))


def test_no_gpu_is_the_machines_fault(tmp_path: Path, cli: Cli, refused: Refused) -> None:
    message = refused(cli("bench", "vision", "--device", "cuda", cwd=tmp_path, env={"PATH": "/nonexistent"}), 3)
    assert "no GPU is visible here" in message


def test_too_long_says_how_many_steps_would_fit(tmp_path: Path, cli: Cli) -> None:
    done = cli(*COMMAND, "--steps", "100000", "--system", "generic-h200", "--budget", "2 min", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "over the budget of 120 s" in done.stderr
    assert "--steps" in done.stderr
    assert list(tmp_path.iterdir()) == []
