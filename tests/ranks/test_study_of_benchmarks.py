"""A study file names a benchmark as its kind, and its points run, report and resume like any other."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Cli = Callable[..., subprocess.CompletedProcess[str]]
STUDY = """schema = "scalewright.study/1"
id = "products"
title = "Two products"
question = "Which product is faster?"
kind = "gemm"

[matrix]
shape = ["64,64,64", "128,128,128"]

[point]
shapes = "{shape}"
precision = "fp32"
device = "cpu"
budget = "1 s"

[measure]
"""


@pytest.mark.ranks
def test_a_study_of_a_micro_benchmark(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "products.toml").write_text(STUDY)
    done = cli("study", "run", "products.toml", "--no-plots", "--json", cwd=tmp_path, timeout=170)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [row["labels"] for row in report["points"]] == [{"shape": "64,64,64"}, {"shape": "128,128,128"}]
    for row in report["points"]:
        assert row["measured"]["flop_per_s_per_gpu"]["value"] > 0
        (run,) = (tmp_path / "results/products/runs" / row["id"]).iterdir()
        assert json.loads((run / "run.json").read_text())["point"] == row["id"]
    again = cli("study", "run", "products.toml", "--no-plots", cwd=tmp_path, timeout=170)
    assert again.returncode == 0
    assert "begins" not in again.stderr  # finished points are not run again


def test_a_wrong_option_of_a_benchmark_is_named(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "products.toml").write_text(STUDY.replace('precision = "fp32"', 'precison = "fp32"'))
    refused = cli("study", "check", "products.toml", cwd=tmp_path)
    assert refused.returncode == 2
    assert "key 'point.precison'" in refused.stderr
    assert "did you mean precision?" in refused.stderr
