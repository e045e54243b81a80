"""`bench sync` on ranks of this machine: every way brings the trainer's weights, and the table is whole."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.ranks
Cli = Callable[..., subprocess.CompletedProcess[str]]
SMALL = ("bench", "sync", "--model", "layers=2,hidden=64,heads=4", "--repeats", "2", "--budget", "20 s")


def test_all_ways_bring_the_weights(cli: Cli, tmp_path: Path) -> None:
    done = cli(*SMALL, "--layout", "dp=2,zero=3", "--engine-tp", "2", "--run-dir", "r", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    doc = json.loads(done.stdout)
    assert doc["kind"] == "sync"
    rows = {row["way"]: row for row in doc["rows"]}
    assert list(rows) == ["peers", "broadcast", "file"]
    for row in rows.values():
        assert (row["num_wrong"], row["repeats"], row["num_trainers"], row["num_engine_ranks"]) == (0, 2, 2, 2)
        assert row["time_low_s"] <= row["time_s"] <= row["time_high_s"]
        assert row["bytes_per_s"] == pytest.approx(row["bytes"] / row["time_s"])
        assert row["link_frac"] == pytest.approx(row["bytes_per_s"] / row["link_bytes_per_s"])
        assert row["predicted_s"] > 0
    assert rows["broadcast"]["bytes"] == rows["broadcast"]["weights_bytes"]
    assert rows["peers"]["bytes"] < rows["broadcast"]["bytes"], "a rank of two pulls its part"
    assert doc["summary"]["chosen"] == min(rows.values(), key=lambda row: row["time_s"])["way"]
    assert not list(tmp_path.rglob("*.safetensors")), "the files of weights are removed"
    table = cli("report", "r", cwd=tmp_path)
    assert table.returncode == 0
    for word in ("peers", "broadcast", "file", "plain TCP stream", "fastest here"):
        assert word in table.stdout
