"""What the micro benchmarks refuse: one sentence with the next step, and nothing is made."""

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
        (["gemm", "--shapes", "4096,4096"], "is not M,N,K"),
        (["gemm", "--precision", "fp4", "--device", "cpu"], "precision 'fp4' is not known: choose from fp32"),
        (["gemm", "--precision", "fp8", "--device", "cpu"], "precision fp8 needs a GPU"),
        (["gemm", "--sweep", "llama9", "--device", "cpu"], "no model is called 'llama9'"),
        (["gemm", "--sweep", "resnet-50", "--device", "cpu"], "is not a transformer"),
        (["gemm", "--tokens", "64", "--device", "cpu"], "belongs to the products of a model"),
        (["gemm", "--budget", "ten", "--device", "cpu"], "'ten' is not a time"),
        (["gemm", "--budget", "10 ms", "--device", "cpu"], "too short to repeat"),
        (["gemm", "--device", "abacus"], "--device 'abacus' is not known"),
        (["memory", "--sizes", "1 B", "--device", "cpu"], "at least 4 KiB"),
        (["memory", "--sizes", "1 MiB,64 KiB", "--device", "cpu"], "smallest first"),
        (["memory", "--sizes", "many", "--device", "cpu"], "'many' is not a size"),
        (["attention", "--seq", "none", "--device", "cpu"], "--seq 'none' is not a list"),
        (["attention", "--head-dim", "0", "--device", "cpu"], "--head-dim '0' is not a list"),
        (["attention", "--heads", "8", "--kv-heads", "3", "--device", "cpu"], "do not divide"),
        (["attention", "--precision", "fp8", "--device", "cpu"], "precision 'fp8' is not known"),
        (["attention", "--model", "gpt5", "--device", "cpu"], "no model is called 'gpt5'"),
        (
            ["dispatch", "--budget", "5", "--device", "cpu"],
            "write the time with its unit, such as 5 s, 5 min, 5 h or 5 us",
        ),
        (["collectives", "--factor", "3", "--step", "1 MiB"], "both say how sizes grow: give one of them"),
        (["collectives", "--ranks", "100000", "--device", "cpu"], "would only wait for each other"),
        (["checkpoint", "--ranks", "100000", "--device", "cpu"], "would only wait for each other"),
        (["collectives", "--step", "0 B"], "--step 0 B: sizes must grow"),
        (["collectives", "--factor", "1"], "a factor of 1 does not make sizes grow"),
        (["sync", "--ways", "pigeon"], "ways 'pigeon': name one or more of peers, broadcast, file, each once"),
        (["sync", "--engines", "0"], "engines is 0: give 1 or more"),
        (["sync", "--engine-tp", "5"], "engine tp=5 does not divide heads of 12: choose a divisor"),
        (["sync", "--layout", "pp=2"], "layout has pp=2: trainers of stages have dp, tp and zero only"),
        (["sync", "--precision", "fp8"], "precision 'fp8' is not known: choose fp32, bf16"),
        (["sync", "--model", "mixtral-8x7b"], "is not dense"),
        (["sync", "--engines", "5000"], "would only wait for each other"),
        (["collectives", "--min-bytes", "1 GiB"], "the largest size, 64.0 MiB, is below the smallest, 1.00 GiB"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_bad_input_is_one_sentence(tmp_path: Path, cli: Cli, refused: Refused, args: list[str], words: str) -> None:
    assert words in refused(cli("bench", *args, cwd=tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["gemm", "memory", "attention", "dispatch"])
def test_gpu_where_there_is_none_is_the_environments_fault(
    tmp_path: Path, cli: Cli, refused: Refused, name: str
) -> None:
    message = refused(cli("bench", name, "--device", "cuda", cwd=tmp_path, env={"PATH": "/nonexistent"}), 3)
    assert "no GPU is visible here: use --device cpu" in message
    assert list(tmp_path.iterdir()) == []


def test_place_that_cannot_be_written(tmp_path: Path, cli: Cli) -> None:
    done = cli("bench", "dispatch", "--device", "cpu", "--run-dir", "/proc/nowhere", cwd=tmp_path)
    assert done.returncode in (2, 3)
    assert done.stderr.startswith("error: /proc/nowhere")


def test_buffers_that_fill_no_table_are_refused(tmp_path: Path, cli: Cli, refused: Refused) -> None:
    message = refused(cli("bench", "memory", "--sizes", "100 TiB", "--device", "cpu", cwd=tmp_path))
    assert "buffers of 100 TiB or more: three of them do not fit" in message
    assert not list(tmp_path.rglob("measurements.json"))


def test_list_of_benchmarks_says_of_each_what_it_measures(tmp_path: Path, cli: Cli) -> None:
    done = cli("bench", "--help", cwd=tmp_path)
    assert "..." not in done.stdout.split("Commands:")[1]
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
