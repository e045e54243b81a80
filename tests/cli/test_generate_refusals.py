"""`bench generate` refuses bad input in one sentence, before anything is started and without leaving a folder."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Refused = Callable[..., str]
Here = Callable[..., subprocess.CompletedProcess[str]]
MODEL = "layers=1,hidden=16,heads=2,vocab=64,seq=32"
SMALL = ("--model", MODEL, "--device", "cpu", "--prompt-lengths", "8", "--answer-lengths", "4", "--num", "2")

REFUSED = [
    ((), "no model: give --model, or the address of a server with --url"),
    ((*SMALL, "--temperature", "-0.5"), "--temperature -0.5: give 0 (greedy) or more"),
    ((*SMALL, "--top-p", "0"), "--top-p 0: give a share above 0, up to 1"),
    ((*SMALL, "--top-k", "-1"), "--top-k -1: give 1 or more"),
    ((*SMALL, "--rate", "fast"), "--rate 'fast' is no rate of arrivals"),
    ((*SMALL, "--rate", "0"), "--rate 0: a rate of arrivals is above 0"),
    ((*SMALL, "--rate", "file"), "give one with --requests"),
    ((*SMALL, "--prompt-lengths", "normal:3"), "names no distribution of lengths"),
    ((*SMALL, "--answer-lengths", "pareto:mean=8,alpha=0.9"), "add max="),
    ((*SMALL, "--requests", "absent.jsonl"), "no such file"),
    ((*SMALL, "--requests", "empty.jsonl"), "empty.jsonl: holds no requests"),
    ((*SMALL, "--requests", "broken.jsonl"), "broken.jsonl, line 1"),
    ((*SMALL, "--num", "-3"), "--num -3: give 1 to 1,000,000"),
    ((*SMALL, "--answers", "0"), "--answers 0: give 1 to"),
    ((*SMALL, "--concurrency", "-1"), "--concurrency -1"),
    ((*SMALL, "--context", "10"), "request 1 has 8 tokens of prompt and 4 of answer, more than the context of 10"),
    ((*SMALL, "--prompt-lengths", "40"), "has 32 learned positions, and the longest request needs 44"),
    ((*SMALL, "--layout", "pp=2"), "pp=2: the engine is split by tp and dp only"),
    ((*SMALL, "--layout", "tp=2", "--ranks", "3"), "--ranks 3 does not match layout"),
    ((*SMALL, "--layout", "tp=4"), "tp=4 does not divide"),
    ((*SMALL, "--precision", "int3"), "precision 'int3' is not known: choose fp32, bf16, fp8"),
    ((*SMALL, "--execution", "fast"), "execution 'fast' is not known"),
    ((*SMALL, "--weights", "absent"), "--weights 'absent': no such folder"),
    ((*SMALL, "--requests", "texts.jsonl"), "prompts of text need a tokenizer: give --weights of a folder"),
    ((*SMALL, "--cache", "8 apples"), "8 apples"),
    (("--url", "localhost:8000"), "is no address: write http://HOST:PORT"),
    (("--url", "http://me:secret@host"), "--url holds a user name or password"),
    (("--url", "http://host", "--api", "soap"), "--api 'soap': choose auto, completions, chat"),
    (("--url", "http://host", "--timeout", "0 s"), "give a time above 0 s"),
    (("--model", "resnet-50"), "resnet-50"),
    (("--model", "mixtral-8x7b", "--device", "cpu"), "a mixture of experts"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED, ids=[words[:40] for _, words in REFUSED])
def test_bad_input_is_refused_in_one_sentence(
    options: tuple[str, ...], words: str, here: Here, refused: Refused, tmp_path: Path
) -> None:
    (tmp_path / "empty.jsonl").write_text("\n\n")
    (tmp_path / "texts.jsonl").write_text('{"prompt": "Why?", "answer_len": 2}\n')
    (tmp_path / "broken.jsonl").write_text('{"prompt_len": 4\n')
    message = refused(here("bench", "generate", *options))
    assert words in message
    assert "secret" not in message
    assert not (tmp_path / "runs").exists()


def test_a_server_that_is_not_there_is_the_environments_fault(here: Here, refused: Refused, tmp_path: Path) -> None:
    result = here("bench", "generate", "--url", "http://127.0.0.1:9", "--run-dir", str(tmp_path / "r"))
    assert result.returncode == 3
    last = result.stderr.splitlines()[-1]
    assert "http://127.0.0.1:9: does not accept connections (Connection refused): start the server" in last


def test_a_run_over_its_budget_says_what_would_help(here: Here) -> None:
    result = here(
        "bench", "generate", *SMALL, "--system", "discoverer", "--answer-lengths", "16", "--num", "100000",
        "--budget", "20 s",
    )  # fmt: skip
    assert result.returncode == 1
    assert "over the budget of 20.0 s" in result.stderr
    assert "--num" in result.stderr
