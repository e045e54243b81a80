"""Collectives over two nodes of a real Slurm: started from the batch script, and by srun itself."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
from waiting import PATIENCE_S

from scalewright.lab.cluster import Lab

pytestmark = pytest.mark.slurm


def test_an_allocation_and_srun_both_start_the_ranks(slurm: Lab, tmp_path: Path) -> None:
    def bench(name: str) -> str:
        return shlex.join(
            [sys.executable, "-m", "scalewright", "bench", "collectives", "--device", "cpu", "--ops", "all-reduce",
             "--iters", "2", "--min-bytes", "4 KiB", "--max-bytes", "16 KiB", "--run-dir", str(tmp_path / name),
             "--json"]
        )  # fmt: skip

    script = tmp_path / "job.sh"
    answers = {name: shlex.quote(str(tmp_path / f"{name}.json")) for name in ("inside", "tasks")}
    script.write_text(
        f"#!/bin/sh -e\n{bench('inside')} >{answers['inside']}\nsrun {bench('tasks')} >{answers['tasks']}\n"
    )
    done = slurm.run("sbatch", "--wait", "-N2", "-n2", "-o", str(tmp_path / "out"), str(script), timeout_s=PATIENCE_S)
    assert done.returncode == 0, done.stderr + (tmp_path / "out").read_text()
    for name in answers:
        document = json.loads((tmp_path / f"{name}.json").read_text())
        assert [(row["size_bytes"], row["num_wrong"]) for row in document["rows"]] == [(4096, 0), (8192, 0), (16384, 0)]
        assert {(row["num_ranks"], row["num_nodes"]) for row in document["rows"]} == {(2, 2)}
        assert {fit["num_nodes"] for fit in document["fits"]} <= {2}
