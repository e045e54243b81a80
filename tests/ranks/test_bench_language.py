"""`bench language` on two ranks of this machine: a whole run directory, the prediction beside the measurement."""

from __future__ import annotations

import gzip
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from scalewright.records import metric_names as names
from scalewright.records.events import read_events
from scalewright.records.run_directory import RunDirectory

Cli = Callable[..., subprocess.CompletedProcess[str]]
SMALL = [
    "bench", "language", "--model", "layers=2,hidden=32,heads=2,seq=32,vocab=64", "--ranks", "2", "--device", "cpu",
    "--budget", "60 min",
]  # fmt: skip


@pytest.mark.ranks
@pytest.mark.alone
def test_two_ranks_leave_a_whole_run_directory(tmp_path: Path, cli: Cli) -> None:
    command = [*SMALL, "--steps", "12", "--checkpoint-every", "6", "--profile", "--run-dir", "r", "--json"]
    done = cli(*command, cwd=tmp_path, timeout=170)
    assert done.returncode == 0, done.stderr
    directory = RunDirectory.open(tmp_path / "r")
    summary = json.loads(done.stdout)
    assert summary["schema"] == "scalewright.run-summary/1"
    assert (summary["num_steps"], summary["num_ranks"], summary["end"]) == (12, 2, "finished")
    compared = {row["name"]: row for row in summary["comparisons"]}
    for name in (names.STEP_TIME, names.TOKENS_PER_S, names.FLOP_PER_S, names.MFU):
        assert compared[name]["measured"] > 0, name
        assert compared[name]["predicted"] > 0, name
    allocated, process = compared[names.PEAK_MEMORY], compared["process_memory"]
    assert (allocated["measured"], process["predicted"]) == (None, None), "a process is not what training allocates"
    assert process["measured"] > allocated["predicted"] > 0
    assert set(summary["split_s"]) == set(names.SPLIT)
    assert all(part >= 0 for part in summary["split_s"].values())
    # a rank's ordinary step, not the profiled one: the mean of ranks lies near the slowest one's median
    assert sum(summary["split_s"].values()) == pytest.approx(compared[names.STEP_TIME]["measured"], rel=0.5)
    check_files(directory)
    again = cli(*command, cwd=tmp_path)
    assert again.returncode == 0
    assert "is finished: nothing to run" in again.stderr
    assert json.loads(again.stdout) == summary


def check_files(directory: RunDirectory) -> None:
    for path in (
        directory.run, directory.config, directory.prediction, directory.machine, directory.environment,
        directory.provenance, directory.exit_info,
    ):  # fmt: skip
        assert json.loads(path.read_text())["schema"].startswith("scalewright."), path.name
    assert "bench language --model" in directory.script.read_text()
    for rank in (0, 1):
        events = list(read_events(directory.rank_events(rank)))
        assert [e.step for e in events if e.name == names.STEP_TIME] == list(range(12))
        assert {e.unit for e in events if e.name == names.LOSS} == {"1"}
        assert directory.log(rank).exists()
    assert len(directory.all_node_events()) == 1
    assert directory.last_checkpoint() == directory.checkpoint(12)
    assert directory.rollup.read_text().count("\n") > 5
    traces = sorted(directory.traces.iterdir())
    assert len(traces) == 4
    with gzip.open(traces[0], "rt") as file:
        assert json.load(file)["traceEvents"]


@pytest.mark.ranks
def test_disk_that_takes_no_more_ends_the_run_with_one_sentence(tmp_path: Path, cli: Cli) -> None:
    # The largest size of a file stands in for a full disk: writes fail in the same places.
    command = [*SMALL, "--steps", "2000", "--checkpoint-every", "20", "--run-dir", "r", "--system", "discoverer"]
    done = cli(*command, cwd=tmp_path, timeout=170, prefix=("prlimit", "--fsize=60000"))
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert "File too large" in done.stderr.splitlines()[-1]
    steps = [e.step for e in read_events(tmp_path / "r" / "events" / "rank-0.jsonl") if e.name == names.STEP_TIME]
    assert steps == list(range(len(steps)))
