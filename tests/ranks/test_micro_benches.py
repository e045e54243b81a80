"""`bench gemm`, `memory`, `attention` and `dispatch` on this machine's CPU: whole documents, budgets, refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from pool import free_port

from scalewright.launch.ranks.local import rank_environment
from scalewright.records.measurements import read_measurements
from scalewright.records.run_directory import RunDirectory
from scalewright.workload.micro_run import DispatchRun, GemmRun, square_products

Cli = Callable[..., subprocess.CompletedProcess[str]]
Refused = Callable[..., str]
TIMED = {"time_s", "time_low_s", "time_high_s", "repeats"}


def measured(cli: Cli, folder: Path, *args: str) -> dict[str, Any]:
    done = cli("bench", *args, "--device", "cpu", "--run-dir", "r", "--json", cwd=folder, timeout=170)
    assert done.returncode == 0, done.stderr
    doc: dict[str, Any] = json.loads(done.stdout)
    assert doc["schema"] == "scalewright.measurements/1"
    assert doc["kind"] == args[0]
    assert (doc["device"]["type"], doc["device"]["num_ranks"]) == ("cpu", 1)
    assert {"torch", "python"} <= set(doc["versions"])
    assert isinstance(doc["conditions"]["throttled"], list)
    for row in doc["rows"]:
        assert set(row) >= TIMED
        assert 0 < row["time_low_s"] <= row["time_s"] <= row["time_high_s"]
    assert read_measurements(RunDirectory.open(folder / "r")).document() == doc
    return doc


@pytest.mark.ranks
def test_products_by_shape_and_the_best_of_them(tmp_path: Path, cli: Cli) -> None:
    args = ["gemm", "--shapes", "128,256,64;64,64,64", "--best", "--precision", "fp32", "--budget", "4 s"]
    doc = measured(cli, tmp_path, *args)
    given = [row for row in doc["rows"] if row["series"] == "shapes"]
    assert [(row["m"], row["n"], row["k"]) for row in given] == [(64, 64, 64), (128, 256, 64)]
    for row in doc["rows"]:
        assert row["flop_per_s"] == pytest.approx(2.0 * row["m"] * row["n"] * row["k"] / row["time_s"])
    best = doc["summary"]["best"]["fp32"]
    finalists = [row["flop_per_s"] for row in doc["rows"] if row["series"] == "best"]
    assert best["flop_per_s"] == max(row["flop_per_s"] for row in doc["rows"] if row["series"] != "sustained")
    assert best["num_tried"] >= len(finalists)
    assert [row["series"] for row in doc["rows"]].count("sustained") == 1
    again = cli("bench", *args, "--device", "cpu", "--run-dir", "r", cwd=tmp_path)
    assert "is finished: nothing to run" in again.stderr
    assert "best achievable" in again.stdout
    assert max(len(line) for line in again.stdout.splitlines()) <= 80


@pytest.mark.ranks
def test_products_of_a_model_are_named(tmp_path: Path, cli: Cli) -> None:
    doc = measured(
        cli, tmp_path, "gemm", "--sweep", "gpt2-tiny", "--tokens", "64", "--precision", "fp32", "--budget", "3 s"
    )
    assert {"qkv", "ffn_up", "qkv_grad_weight"} <= {row["name"] for row in doc["rows"]}
    assert doc["summary"] == {}


@pytest.mark.ranks
def test_memory_counts_what_stream_counts(tmp_path: Path, cli: Cli) -> None:
    doc = measured(cli, tmp_path, "memory", "--sizes", "64 KiB,1 MiB", "--budget", "2 s")
    moved = {(row["op"], row["size_bytes"]): row["bytes"] // row["size_bytes"] for row in doc["rows"]}
    assert moved == {
        (op, size): passes
        for size in (2**16, 2**20)
        for op, passes in (("copy", 2), ("add", 3), ("read", 1), ("write", 1))
    }
    assert {row["place"] for row in doc["rows"]} == {"host"}
    assert any("cache of the host" in note for note in doc["notes"])
    assert doc["conditions"]["load_before"] >= 0.0
    largest = next(row for row in doc["rows"] if (row["op"], row["size_bytes"]) == ("add", 2**20))
    assert doc["summary"]["host_add_bytes_per_s"] == largest["bytes_per_s"] == largest["bytes"] / largest["time_s"]


@pytest.mark.ranks
def test_sizes_that_are_asked_for_are_measured_and_usual_ones_that_tell_nothing_are_named(
    tmp_path: Path, cli: Cli
) -> None:
    for name in ("asked", "usual"):
        (tmp_path / name).mkdir()
    chosen = measured(cli, tmp_path / "asked", "memory", "--sizes", "256 MiB,512 MiB", "--budget", "2 s")
    assert {row["size_bytes"] for row in chosen["rows"]} == {2**28, 2**29}
    usual = measured(cli, tmp_path / "usual", "memory", "--budget", "2 s")
    most = max(row["size_bytes"] for row in usual["rows"])
    assert most == 2**30 or any("not measured, " in note and "--sizes" in note for note in usual["notes"])


@pytest.mark.ranks
def test_attention_has_both_passes_of_every_kernel(tmp_path: Path, cli: Cli) -> None:
    doc = measured(
        cli, tmp_path, "attention", "--seq", "64", "--heads", "4", "--kv-heads", "2", "--head-dim", "32", "--batch",
        "1", "--budget", "4 s",
    )  # fmt: skip
    rows = {(row["kernel"], row["direction"]): row for row in doc["rows"]}
    assert set(rows) == {(kernel, way) for kernel in ("flash", "math") for way in ("forward", "backward")}
    for (_, way), row in rows.items():
        flop = 2.0 * 4 * 64**2 * 32 * (2.5 if way == "backward" else 1.0)
        assert row["flop_per_s"] == pytest.approx(flop / row["time_s"])
        assert (row["heads"], row["kv_heads"], row["causal"]) == (4, 2, True)


@pytest.mark.ranks
def test_launches_cost_microseconds(tmp_path: Path, cli: Cli) -> None:
    doc = measured(cli, tmp_path, "dispatch", "--no-compile", "--budget", "1 s")
    assert [(row["op"], row["mode"]) for row in doc["rows"]] == [
        ("add", "eager"),
        ("mm", "eager"),
        ("layer_norm", "eager"),
    ]
    assert doc["summary"]["eager_launch_s"] == min(row["time_s"] for row in doc["rows"])


@pytest.mark.ranks
def test_compiling_that_would_take_longer_than_the_budget_is_left_out(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "nothing-compiled-yet"))
    doc = measured(cli, tmp_path, "dispatch", "--budget", "1 s")
    assert {row["mode"] for row in doc["rows"]} == {"eager"}
    assert "compile_s" not in doc["summary"]
    assert any("torch.compile did not finish within the budget" in note for note in doc["notes"])


@pytest.mark.ranks
def test_two_ranks_measure_at_once_and_the_first_is_written(tmp_path: Path) -> None:
    config = GemmRun(precisions=("fp32",), products=square_products()[:2], finds_best=False, device="cpu", budget_s=2.0)
    directory = RunDirectory.create_or_resume(tmp_path / "r", config.document())
    port = free_port()
    ranks = [start(directory, "gemm", rank, num_ranks=2, port=port) for rank in range(2)]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    assert read_measurements(directory).device["num_ranks"] == 2


@pytest.mark.ranks
def test_benchmark_that_is_asked_to_stop_writes_nothing_and_can_be_run_again(tmp_path: Path) -> None:
    config = DispatchRun(compiles=False, device="cpu", budget_s=60.0)
    directory = RunDirectory.create_or_resume(tmp_path / "r", config.document())
    rank = start(directory, "dispatch", 0, num_ranks=1, port=free_port())
    waited_s = time.monotonic() + 60.0
    while not directory.rank_events(0).exists() or not directory.rank_events(0).read_text():
        assert time.monotonic() < waited_s
        assert rank.poll() is None
        time.sleep(0.05)
    rank.send_signal(signal.SIGTERM)
    assert rank.wait(timeout=60) == 75
    assert not directory.measurements.exists()


def start(directory: RunDirectory, kind: str, rank: int, *, num_ranks: int, port: int) -> subprocess.Popen[bytes]:
    env = rank_environment(dict(os.environ), rank=rank, num_ranks=num_ranks, num_cores=2, port=port, job="j")
    command = [sys.executable, "-m", "scalewright.run", kind, "--run-dir", str(directory.path)]
    return subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
