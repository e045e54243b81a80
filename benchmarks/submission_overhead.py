"""Time per job to hand jobs to a real Slurm: ours beside submitit's, in the same run, on the same cluster.

    python benchmarks/submission_overhead.py [--jobs 20] [--items 500] [--rounds 3]

Needs root and Slurm: a practice cluster is started for it. submitit is installed into a temporary folder for this run
only. Two cases: jobs one by one (a graph of single jobs; executor.submit), and one array (a sweep; executor.batch).
Held jobs, so that nothing but submitting is timed; rounds alternate and the best of each counts. What ours does besides
sbatch: scripts rendered, intents and ids on disk. Exit 1: ours is slower.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scalewright.lab.cluster import Lab
from scalewright.lab.spec import LabSpec
from scalewright.launch.graph.launches import read_graph, start_launch

JOB = 'command = ["true"]\nnodes = 1\ngpus_per_node = 1\ntime = "00:01:00"\ndirectives = { hold = "" }\n'
HEAD = 'schema = "scalewright.graph/1"\nname = "bench"\nsite = "generic"\n'


def ours(folder: Path, body: str) -> float:
    (folder / "graph.toml").write_text(HEAD + body)
    start = time.perf_counter()
    graph, site = read_graph(folder / "graph.toml", site="", catalog=None)
    driver, _ = start_launch(graph, site, folder / "launch", say=str)
    with driver.folder.held():
        driver.begin_and_act()
    return time.perf_counter() - start


def submitit_executor(folder: Path) -> Any:
    import submitit

    executor = submitit.AutoExecutor(folder=folder / "logs", cluster="slurm")
    executor.update_parameters(
        name="bench", timeout_min=1, nodes=1, gpus_per_node=1, slurm_array_parallelism=20,
        slurm_additional_parameters={"hold": True},
    )  # fmt: skip
    return executor


def submitit_one_by_one(folder: Path, num_jobs: int) -> float:
    start = time.perf_counter()
    executor = submitit_executor(folder)
    for _ in range(num_jobs):
        executor.submit(os.getpid)
    return time.perf_counter() - start


def submitit_array(folder: Path, num_jobs: int) -> float:
    start = time.perf_counter()
    executor = submitit_executor(folder)
    with executor.batch():
        for _ in range(num_jobs):
            executor.submit(os.getpid)
    return time.perf_counter() - start


def best_s(cases: dict[str, Callable[[Path], float]], num_rounds: int, lab: Lab) -> dict[str, float]:
    times_s: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(num_rounds):
        for name, case in cases.items():
            with tempfile.TemporaryDirectory() as folder:
                times_s[name].append(case(Path(folder)))
            lab.run("scancel", "--user=root")
    return {name: min(seconds) for name, seconds in times_s.items()}


def measure(num_jobs: int, num_items: int, num_rounds: int, lab: Lab) -> bool:
    single = "".join(f"[jobs.s{i}]\n{JOB}" for i in range(num_jobs))
    items = ", ".join(f'"{i}"' for i in range(num_items))
    sweep = f"[jobs.all]\n{JOB}items = [{items}]\nwidth = 20\n"
    is_slower = False
    for case, count, body, theirs in (
        ("one by one", num_jobs, single, submitit_one_by_one),
        ("one array", num_items, sweep, submitit_array),
    ):
        both = {
            "scalewright": lambda folder, body=body: ours(folder, body),
            "submitit": lambda folder, theirs=theirs, count=count: theirs(folder, count),
        }
        seconds = best_s(both, num_rounds, lab)
        ratio = seconds["scalewright"] / seconds["submitit"]
        is_slower |= ratio > 1.0
        per_job = {f"{name}_s_per_job": round(value / count, 5) for name, value in seconds.items()}
        print(json.dumps({"case": case, "num_jobs": count, **per_job, "ratio": round(ratio, 3)}))
    return is_slower


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--items", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as packages:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", packages, "submitit==1.5.*"]
        subprocess.run(pip, check=True)
        sys.path.insert(0, packages)
        lab = Lab.up(LabSpec(num_nodes=2, accounting=False))
        try:
            os.environ.update(lab.env)
            return int(measure(args.jobs, args.items, args.rounds, lab))
        finally:
            lab.down()


if __name__ == "__main__":
    sys.exit(main())
