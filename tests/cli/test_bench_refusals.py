"""What `bench language` refuses: one sentence with the next step, before anything starts, and nothing is touched."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scalewright.records.run_directory import RunDirectory
from scalewright.workload.language_run import resolve
from scalewright.workload.layout import parse_layout
from scalewright.workload.model import from_shape

Cli = Callable[..., subprocess.CompletedProcess[str]]
Refused = Callable[..., str]
TINY = ["bench", "language", "--model", "gpt2-tiny", "--device", "cpu"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--ranks", "4", "--layout", "dp=2"], "--ranks 4 does not match layout"),
        (["--ranks", "0"], "--ranks 0 must be 1 or more"),
        (["--layout", "tp=3,gbs=1"], "tp=3 does not divide 4 attention heads"),
        (["--layout", "dp=2,mbs=3,gbs=4"], "gbs=4 is not a multiple"),
        (["--steps", "0"], "steps is 0"),
        (["--precision", "fp12"], "precision 'fp12' is not known: choose"),
        (["--scaling", "both"], "scaling 'both' is not known: choose"),
        (["--checkpoint-every", "often"], "checkpoint_every is 'often'"),
        (["--checkpoint", "maybe"], "--checkpoint 'maybe' is not known: choose sync or async"),
        (["--keep", "0"], "checkpoint_keep is 0"),
        (["--compile", "fast"], "compile 'fast' is not known: choose"),
        (["--compile", "graphs"], "compile=graphs replays a step of one GPU"),
        (["--protocol", "mine"], "protocol 'mine' is not known: choose steady, epicure"),
        (["--seed", "-1"], "seed -1 must be from 0"),
        (["--start-from", "nowhere"], "holds no whole checkpoint and no safetensors: name a run directory"),
        (["--plan", "nowhere.json"], "--model and --plan both say it"),
        (["--budget", "ten"], "'ten' is not a time"),
        (["--budget", "10"], "has no unit"),
        (["--data", "nowhere.npy"], "no such data set"),
        (["--device", "abacus"], "--device 'abacus' is not known"),
        (["--system", "atlantis"], "no system is called 'atlantis'"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_bad_input_is_one_sentence(tmp_path: Path, cli: Cli, refused: Refused, args: list[str], words: str) -> None:
    assert words in refused(cli(*TINY, *args, cwd=tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("model", ["gpt5", "deepseek-v3", "bert-base", "resnet-50"])
def test_model_that_it_cannot_run_is_refused(tmp_path: Path, cli: Cli, refused: Refused, model: str) -> None:
    refused(cli("bench", "language", "--model", model, "--device", "cpu", cwd=tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_gpu_where_there_is_none_is_the_environments_fault(tmp_path: Path, cli: Cli, refused: Refused) -> None:
    no_tools = {"PATH": "/nonexistent"}
    message = refused(cli(*TINY[:-1], "cuda", cwd=tmp_path, env=no_tools), 3)
    assert "no GPU is visible here: use --device cpu" in message


@pytest.mark.parametrize("place", ["/proc/nowhere", "/dev/full/run"])
def test_place_that_cannot_be_written(tmp_path: Path, cli: Cli, place: str) -> None:
    result = cli(*TINY, "--system", "laptop", "--run-dir", place, cwd=tmp_path)  # named: nothing is probed
    assert result.returncode in (2, 3)
    assert result.stderr.splitlines()[-1].startswith("error: /")
    assert "--run-dir" in result.stderr


def test_run_directory_of_another_configuration_stays_as_it_was(tmp_path: Path, cli: Cli, refused: Refused) -> None:
    other = resolve(from_shape("layers=1,hidden=8,heads=1,seq=8,vocab=16"), parse_layout("dp=1"), precision="fp32")
    directory = RunDirectory.create_or_resume(tmp_path / "r", other.document())
    before = {p: p.read_bytes() for p in directory.path.rglob("*") if p.is_file()}
    assert "another configuration" in refused(cli(*TINY, "--run-dir", str(directory.path), cwd=tmp_path))
    assert {p: p.read_bytes() for p in directory.path.rglob("*") if p.is_file()} == before


def test_port_in_use(tmp_path: Path, cli: Cli, refused: Refused) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        message = refused(cli(*TINY, cwd=tmp_path, env={"MASTER_PORT": port}), 3)
    assert f"port {port} cannot be used" in message
    assert list(tmp_path.iterdir()) == []


def test_over_the_budget_names_the_largest_preset_that_fits_and_starts_nothing(tmp_path: Path, cli: Cli) -> None:
    large = ("bench", "language", "--model", "gpt3-1.3b", "--device", "cpu")
    result = cli(*large, "--steps", "100000", "--system", "laptop", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    assert "over the budget of 10.0 min" in result.stderr or "does not fit in memory" in result.stderr
    assert list(tmp_path.iterdir()) == []
    fits = cli(*large, "--steps", "2", "--system", "laptop", cwd=tmp_path)
    assert fits.returncode == 1
    assert "the largest preset that fits is " in fits.stderr


def test_ranks_without_a_run_directory_are_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "scalewright.run", "language", "--run-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "is not a run directory" in done.stderr


def test_probe_is_one_document() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scalewright.run", "probe"], capture_output=True, text=True, check=True
    )
    doc = json.loads(done.stdout)
    assert doc["schema"] == "scalewright.probe/1"
    assert doc["matmul_flop_per_s"] > 1e8
    assert doc["memory_bytes_per_s"] > 1e7
