"""`bench collectives` on ranks of this machine: every operation is right, and its table is whole."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scalewright.workload.collective import OPS, bus_share

Cli = Callable[..., subprocess.CompletedProcess[str]]
Refused = Callable[..., str]
SMALL = ["bench", "collectives", "--device", "cpu", "--run-dir", "r"]
BROADCAST = [
    "bench", "collectives", "--device", "cpu", "--ops", "broadcast", "--iters", "2", "--max-bytes", "4 KiB",
]  # fmt: skip


def measured(cli: Cli, tmp_path: Path, *options: str) -> dict[str, Any]:
    done = cli(*SMALL, *options, "--json", cwd=tmp_path, timeout=170)
    assert done.returncode == 0, done.stderr
    doc: dict[str, Any] = json.loads(done.stdout)
    return doc


@pytest.mark.ranks
def test_all_operations_on_two_ranks(tmp_path: Path, cli: Cli) -> None:
    options = ["--iters", "6", "--min-bytes", "1 KiB", "--max-bytes", "256 KiB", "--factor", "4"]
    doc = measured(cli, tmp_path, *options)
    assert doc["schema"] == "scalewright.measurements/1"
    assert doc["kind"] == "collectives"
    rows = doc["rows"]
    # size by size over all operations, so that what disturbs one disturbs all
    assert [(row["size_bytes"], row["op"]) for row in rows] == [(1024 * 4**i, op) for i in range(5) for op in OPS]
    for row in rows:
        assert row["num_wrong"] == 0
        assert (row["num_ranks"], row["num_nodes"], row["backend"], row["dtype"]) == (2, 1, "gloo", "fp32")
        assert row["count"] == row["size_bytes"] / 4 / (2 if row["op"] in OPS[1:4] else 1)
        assert row["time_low_s"] <= row["time_s"] <= row["time_high_s"]
        assert row["iterations"] >= 6
        assert row["alg_bytes_per_s"] == pytest.approx(row["size_bytes"] / row["time_s"])
        assert row["bus_bytes_per_s"] == pytest.approx(row["alg_bytes_per_s"] * bus_share(row["op"], 2))
    assert doc["summary"]["num_wrong"] == 0
    assert doc["versions"]["backend"].startswith("gloo")
    assert doc["versions"]["interface"]
    assert {fit["op"] for fit in doc["fits"]} <= set(OPS)
    assert all(fit["bytes_per_s"] > 0 and fit["num_ranks"] == 2 for fit in doc["fits"])
    again = cli(*SMALL, *options, cwd=tmp_path)
    assert "is finished: nothing to run" in again.stderr
    assert again.stdout.count("#wrong") == len(OPS)
    assert "Out of bounds values : 0 OK" in again.stdout
    assert max(map(len, again.stdout.splitlines())) <= 80


@pytest.mark.ranks
def test_three_ranks_in_place_in_16_bit_with_sizes_that_do_not_divide(tmp_path: Path, cli: Cli) -> None:
    options = ["--ranks", "3", "--dtype", "bf16", "--in-place", "--root", "2", "--iters", "2", "--min-bytes", "100 B"]
    doc = measured(cli, tmp_path, *options, "--max-bytes", "4100 B", "--step", "2000 B")
    assert {row["num_wrong"] for row in doc["rows"]} == {0}
    sizes = {op: [row["size_bytes"] for row in doc["rows"] if row["op"] == op] for op in OPS}
    assert sizes["all-reduce"] == [100, 2100, 4100]
    assert sizes["all-gather"] == sizes["reduce-scatter"] == sizes["all-to-all"] == [96, 2064, 4080]
    assert {row["root"] for row in doc["rows"] if row["op"] == "broadcast"} == {2}
    assert {row["op"] for row in doc["rows"] if row["is_in_place"]} == {
        "all-reduce", "broadcast", "all-gather", "reduce-scatter"
    }  # fmt: skip


@pytest.mark.ranks
def test_sizes_below_a_line_for_each_rank_are_left_to_the_operations_that_have_one(tmp_path: Path, cli: Cli) -> None:
    doc = measured(cli, tmp_path, "--iters", "1", "--min-bytes", "8 B", "--max-bytes", "32 B")
    sizes = {op: [row["size_bytes"] for row in doc["rows"] if row["op"] == op] for op in OPS}
    assert sizes["broadcast"] == sizes["all-reduce"] == sizes["send-recv"] == [8, 16, 32]
    assert sizes["all-gather"] == sizes["reduce-scatter"] == sizes["all-to-all"] == [32]
    assert {row["num_wrong"] for row in doc["rows"]} == {0}


@pytest.mark.ranks
def test_a_budget_leaves_out_the_largest_sizes_and_says_so(tmp_path: Path, cli: Cli) -> None:
    options = ["--budget", "2 s", "--ops", "all-reduce", "--min-bytes", "1 MiB", "--max-bytes", "512 MiB"]
    doc = measured(cli, tmp_path, *options)
    sizes = [row["size_bytes"] for row in doc["rows"]]
    assert sizes[0] == 2**20
    assert len(sizes) < 10
    assert [note for note in doc["notes"] if "left out: a budget of 2.00 s" in note]


@pytest.mark.ranks
def test_torchrun_starts_the_ranks_and_the_first_one_prints(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "scalewright",
         *BROADCAST, "--run-dir", "r", "--json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    doc = json.loads(done.stdout)
    assert [(row["op"], row["num_ranks"], row["num_wrong"]) for row in doc["rows"]] == [("broadcast", 2, 0)] * 3
    assert json.loads((tmp_path / "r" / "provenance.json").read_text())


def test_ranks_of_torchrun_without_a_run_directory_are_refused(tmp_path: Path, cli: Cli, refused: Refused) -> None:
    place = {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    message = refused(cli(*BROADCAST, cwd=tmp_path, env=place))
    assert "2 ranks were started, and each would choose its own folder: give --run-dir" in message
    assert list(tmp_path.iterdir()) == []


def test_refusals(tmp_path: Path, cli: Cli) -> None:
    for options, code, message in (
        (["--ranks", "1"], 2, "1 rank cannot exchange data: collectives need --ranks 2 or more"),
        (["--ranks", "0"], 2, "--ranks 0 starts nothing"),
        (["--root", "2"], 2, "root 2 is not among 2 ranks"),
        (["--ops", "all-reduce,allgather"], 2, "did you mean all-gather?"),
        (["--max-bytes", "64"], 2, "has no unit"),
        (["--dtype", "fp8"], 2, "'fp8' is not known"),
    ):
        done = cli(*SMALL, *options, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (code, ""), options
        assert message in done.stderr
        assert done.stderr.count("\n") == 1
        assert list(tmp_path.iterdir()) == []


def test_without_a_gpu_cuda_is_refused_as_the_environments_fault(tmp_path: Path, cli: Cli) -> None:
    done = cli("bench", "collectives", "--device", "cuda", "--ranks", "2", cwd=tmp_path)
    assert done.returncode == 3
    assert "no GPU is visible here" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.ranks
def test_buffers_that_do_not_fit_are_refused_before_they_are_made(tmp_path: Path, cli: Cli) -> None:
    done = cli(*SMALL, "--max-bytes", "100 TiB", "--factor", "1e6", cwd=tmp_path, timeout=120)
    assert done.returncode == 2
    assert "lower --max-bytes" in done.stderr
    assert not (tmp_path / "r" / "measurements.json").exists()
