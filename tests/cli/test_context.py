"""Requests longer than the positions of a model: refused with a table of positions, noted without one."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

Here = Callable[..., subprocess.CompletedProcess[str]]
GENERATE = ("--system", "leonardo", "--layout", "gbs=8", "--generate")
PLAN = ("--system", "leonardo", "--gpus", "4", "--stage", "generate", "--generate")
RL = ("--system", "leonardo", "--layout", "dp=4,mbs=1,gbs=8,zero=1", "--rl")


@pytest.mark.parametrize(
    ("command", "stage", "needed"),
    [
        ("predict", (*GENERATE, "prompt=5000,response=64"), 5064),
        ("predict", (*GENERATE, "prompt=uniform:8-1000,response=64"), 1064),
        ("predict", (*GENERATE, "prompt=900,response=64,longest=500"), 1400),
        ("predict", (*RL, "prompts=4,samples=2,prompt=64,response=32,longest=100000"), 100064),
        ("plan", (*PLAN, "prompt=5000,response=64"), 5064),
        ("plan", (*PLAN, "prompt=900,response=64", "--what-if", "response=500"), 1400),
    ],
)
def test_learned_positions_refuse_a_longer_request(
    here: Here, command: str, stage: tuple[str, ...], needed: int
) -> None:
    done = here(command, "--model", "gpt2", *stage)
    assert done.returncode == 2, done.stdout
    words = f"gpt2 has 1024 learned positions, and the longest request needs {needed}: give shorter lengths"
    assert words in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("stage", "needed"),
    [
        ((*GENERATE, "prompt=20000,response=512"), "20,512"),
        ((*RL, "prompts=4,samples=2,prompt=64,response=32,longest=20000"), "20,064"),
    ],
)
def test_rotary_positions_are_noted_beyond_the_trained_length(here: Here, stage: tuple[str, ...], needed: str) -> None:
    done = here("predict", "--model", "llama3-8b", *stage)
    assert done.returncode in (0, 1)
    text = " ".join(done.stdout.split())
    assert f"note the longest sequence has {needed} tokens, and llama3-8b was trained with 8,192" in text


def test_a_request_within_the_trained_length_has_no_note(here: Here) -> None:
    for model, prompt in (("llama3-8b", 7680), ("llama3.2-1b", 100_000)):
        done = here("predict", "--model", model, *GENERATE, f"prompt={prompt},response=512")
        assert "all answers" in done.stdout
        assert "was trained with" not in done.stdout
