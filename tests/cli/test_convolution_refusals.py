"""What `bench convolution` refuses: one sentence with the next step, and nothing is made."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Cli = Callable[..., subprocess.CompletedProcess[str]]
Refused = Callable[..., str]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--model", "llama3-8b"], "llama3-8b is no residual network: choose one such as resnet-50"),
        (["--model", "resnet-9000"], "no model is called 'resnet-9000'"),
        (["--precision", "fp8"], "precision 'fp8' is not known: choose from fp32, tf32, fp16, bf16"),
        (["--precision", "tf32"], "precision tf32 needs a GPU"),
        (["--layout", "middle"], "layout 'middle' is not known: choose from last, first"),
        (["--layout", "last,last"], "layout last,last: give each once"),
        (["--batch", "-1"], "--batch -1 must be 1 or more"),
        (["--size", "31"], "image size 31: give an even number of 32 or more"),
        (["--size", "-2"], "image size -2: give an even number of 32 or more"),
        (["--budget", "10 ms"], "too short to repeat"),
        (["--budget", "soon"], "'soon' is not a time"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_bad_input_is_one_sentence(tmp_path: Path, cli: Cli, refused: Refused, args: list[str], words: str) -> None:
    assert words in refused(cli("bench", "convolution", *args, "--device", "cpu", cwd=tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_gpu_where_there_is_none_is_the_environments_fault(tmp_path: Path, cli: Cli, refused: Refused) -> None:
    message = refused(cli("bench", "convolution", "--device", "cuda", cwd=tmp_path, env={"PATH": "/nonexistent"}), 3)
    assert "no GPU is visible here: use --device cpu" in message
    assert list(tmp_path.iterdir()) == []
