"""A study on a real Slurm: its points become arrays of jobs, one shape after the other, and a second run takes up."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from waiting import PATIENCE_S, wait_for, wait_for_end

if TYPE_CHECKING:
    from tests.conftest import Cli

    from scalewright.lab.cluster import Lab

pytestmark = pytest.mark.slurm

STUDY = """
schema = "scalewright.study/1"
id = "mine"
title = "Mine"
question = "How far?"
kind = "language"

[matrix]
ranks = [1, 2]
data = ["synthetic", "tokens"]

[[exclude]]
ranks = 1
data = "tokens"

[[choose]]
values = { file = "synthetic" }

[[choose]]
where = { ranks = 2, data = "tokens" }
values = { file = "@TOKENS@" }

[derive]
steps = "8 if data == 'synthetic' else 9"
gbs = "ranks * 2"

[point]
model = "layers=1,hidden=16,heads=1,seq=16,vocab=32"
layout = "dp={ranks},mbs=2,gbs={gbs}"
device = "cpu"
data = "{file}"
steps = "{steps}"

[measure]
where = "site"

[measure.job]
gpus_per_node = 1
time = "00:15:00"
env = { OMP_NUM_THREADS = "1" }
"""


@pytest.fixture(scope="module")
def array(slurm: Lab, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two tasks, the second of which asks once to be queued again; it goes on while the study runs."""
    folder = tmp_path_factory.mktemp("array")
    (folder / "items").write_text("first\nlast\n")
    script = 'test -n "${SLURM_RESTART_COUNT-}" -o "$SCALEWRIGHT_ITEM" = first || exit 75'
    words = [
        *("launch", "--site", "here", "--nodes", "1", "--gpus-per-node", "1", "--time", "00:15:00", "--width", "1"),
        *("--array", str(folder / "items"), "--run-dir", str(folder / "run"), "--", "sh", "-c", script),
    ]
    done = slurm.run(sys.executable, "-m", "scalewright", *words, timeout_s=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.usefixtures("array")
def test_points_become_jobs_and_a_second_run_takes_up(slurm: Lab, cli: Cli, tmp_path: Path) -> None:
    tokens, results = tmp_path / "tokens.npy", tmp_path / "results" / "mine"
    (tmp_path / "mine.toml").write_text(STUDY.replace("@TOKENS@", str(tokens)))

    def study(*words: str) -> Any:
        return cli("study", *words, cwd=tmp_path, env=slurm.env, timeout=4 * PATIENCE_S)

    def submitted() -> list[list[tuple[str, str, str]]]:
        """Shape, items and dependency of every job, by the launch."""
        launches = json.loads(cli("jobs", "list", str(results / "jobs"), "--json", env=slurm.env).stdout)["launches"]
        return [[(job["job"], job["tasks"], job["dependency"]) for job in launch["slurm_jobs"]] for launch in launches]

    first = study("run", "mine.toml", "--json")
    assert first.returncode == 0, first.stderr
    submission = json.loads(first.stdout)
    assert submission["next"].startswith("scalewright study status mine.toml")
    assert submitted() == [[("1x1", "0", ""), ("2x1", "0-1", f"afterany:{submission['jobs'][0]}")]]

    def tries() -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(study("status", "mine.toml", "--json").stdout)["tries"]
        return rows

    def waiting() -> set[tuple[str, str]]:
        return {(one["state"], one["reason"]) for one in tries() if one["labels"]["ranks"] == "2"}

    assert len(tries()) == 3
    # Slurm gives no reason before it has looked at a job.
    wait_for("the second shape waits for the first", lambda: waiting() == {("queued", "Dependency")})

    # In the queue is not submitted twice; the file that one point reads is not there.
    waited = study("run", "mine.toml", "--wait", "--no-plots")
    assert waited.returncode == 1, waited.stderr
    assert len(submitted()) == 1
    states = {tuple(one["labels"].values()): one for one in tries()}
    failed = states.pop(("2", "tokens"))
    assert (failed["state"], {one["state"] for one in states.values()}) == ("failed", {"finished"}), failed
    assert "tokens.npy" in failed["reason"], failed
    report = json.loads((results / "report" / "report.json").read_text())
    measured = {tuple(p["labels"].values()): p["measured"] for p in report["points"]}
    assert measured["2", "synthetic"]["num_gpus"]["value"] == 2
    starts = slurm.run("sacct", "-n", "-P", "-X", "-j", ",".join(submission["jobs"]), "-o", "Start,End").stdout.split()
    spans = sorted(tuple(row.split("|")) for row in starts)
    assert len(spans) == 3
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans)), spans

    np.save(tokens, np.arange(20_000) % 32)
    again = study("run", "mine.toml", "--wait", "--no-plots")
    assert again.returncode == 0, again.stderr
    assert submitted()[1:] == [[("2x1", "0", "")]]
    nothing = study("run", "mine.toml")
    assert (nothing.returncode, nothing.stdout) == (0, "nothing is left to submit\n")
    assert len(submitted()) == 2


def test_the_last_task_of_an_array_queues_itself_again_alone(slurm: Lab, array: str) -> None:
    """It has the array's own number, by which Slurm would queue every task again."""
    wait_for_end(slurm, f"{array}_1")
    rows = slurm.run("sacct", "-n", "-P", "-X", "-D", "-j", array, "-o", "JobID,State").stdout.split()
    assert sorted(rows) == [f"{array}_0|COMPLETED", f"{array}_1|COMPLETED", f"{array}_1|REQUEUED"]
