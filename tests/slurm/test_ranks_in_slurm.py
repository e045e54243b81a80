"""Ranks under a real srun find themselves; a batch script is told apart from its tasks."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

import pytest
from waiting import PATIENCE_S

from scalewright.lab.cluster import Lab
from scalewright.records.run_directory import RunDirectory

pytestmark = pytest.mark.slurm

ASK = """
import json, os, sys
from dataclasses import asdict
from pathlib import Path
from scalewright.launch.ranks.allocation import default_num_ranks, is_inside
from scalewright.run.world import World
found = {"inside": is_inside(os.environ), "num_ranks": default_num_ranks(os.environ)}
try:
    found["world"] = asdict(World.from_environment(os.environ))
except Exception as error:
    found["error"] = str(error)
name = "batch" if found["inside"] else f"rank{os.environ['SLURM_PROCID']}"
Path(sys.argv[1], name + ".json").write_text(json.dumps(found))
"""


def test_world_of_a_batch_script_and_of_its_tasks(slurm: Lab, tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o777)  # noqa: PTH101  jobs may run as another user
    ask = shlex.join([sys.executable, "-c", ASK, str(tmp_path)])
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/sh\n{ask}\nsrun {ask}\n")
    done = slurm.run("sbatch", "--wait", "-N2", "-n3", "-o", str(tmp_path / "out"), str(script), timeout_s=PATIENCE_S)
    assert done.returncode == 0, done.stderr + (tmp_path / "out").read_text()
    job = done.stdout.split()[-1]
    batch = json.loads((tmp_path / "batch.json").read_text())
    assert (batch["inside"], batch["num_ranks"]) == (True, 3)
    assert "srun" in batch["error"]
    worlds = [json.loads((tmp_path / f"rank{rank}.json").read_text())["world"] for rank in range(3)]
    assert [world["rank"] for world in worlds] == [0, 1, 2]
    assert {(w["world_size"], w["num_nodes"], w["job_id"], w["launcher"]) for w in worlds} == {(3, 2, job, "slurm")}
    assert {world["host"] for world in worlds} == set(slurm.nodes[:2])
    assert {world["master_addr"] for world in worlds} == {slurm.nodes[0]}
    assert len({world["master_port"] for world in worlds}) == 1
    by_host = {host: [w for w in worlds if w["host"] == host] for host in slurm.nodes[:2]}
    for ranks in by_host.values():
        assert {world["local_world_size"] for world in ranks} == {len(ranks)}
        assert sorted(world["local_rank"] for world in ranks) == list(range(len(ranks)))


def test_bench_inside_an_allocation_starts_its_ranks_on_both_nodes(slurm: Lab, tmp_path: Path) -> None:
    bench = shlex.join(
        [sys.executable, "-m", "scalewright", "bench", "language", "--device", "cpu", "--ranks", "2", "--steps", "4",
         "--model", "layers=1,hidden=16,heads=1,seq=16,vocab=32", "--run-dir", str(tmp_path / "run"), "--json"]
    )  # fmt: skip
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/sh\n{bench} >{shlex.quote(str(tmp_path / 'answer'))}\n")
    done = slurm.run("sbatch", "--wait", "-N2", "-n2", "-o", str(tmp_path / "out"), str(script), timeout_s=PATIENCE_S)
    assert done.returncode == 0, done.stderr + (tmp_path / "out").read_text()
    job = done.stdout.split()[-1]
    assert "name this machine with --system" in (tmp_path / "out").read_text()
    summary = json.loads((tmp_path / "answer").read_text())
    assert (summary["num_steps"], summary["num_ranks"], summary["end"]) == (4, 2, "finished")
    directory = RunDirectory.open(tmp_path / "run")
    assert [path.name for path in directory.all_node_events()] == [f"node-{n}.jsonl" for n in slurm.nodes[:2]]
    (attempt,) = json.loads(directory.provenance.read_text())["attempts"]
    assert (attempt["job"], attempt["launcher"], attempt["num_nodes"]) == (job, "slurm", 2)
    assert json.loads(directory.environment.read_text())["variables"]["SLURM_JOB_ID"] == job
