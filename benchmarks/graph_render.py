"""How long it takes to plan a graph of 10,000 items: read, order, render every script, reckon and draw.

    python benchmarks/graph_render.py [--items 10000]

Three shapes: one long sweep, a hundred jobs of a hundred items, and, for the slope, as many jobs of one job each,
whose file alone is two megabytes. Nothing is submitted. Exit 1: one of the first two takes 2 s or more.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from scalewright.launch.graph.budget import estimate
from scalewright.launch.graph.driver import MAX_ARRAY_TASKS
from scalewright.launch.graph.graph import dot, outline
from scalewright.launch.graph.job_scripts import graph_job_scripts
from scalewright.launch.graph.launches import read_graph
from scalewright.launch.graph.manifest import LaunchFolder, Manifest
from scalewright.launch.graph.progress import decide
from scalewright.records.documents import to_json

LIMIT_S = 2.0
HEAD = 'schema = "scalewright.graph/1"\nname = "bench"\nsite = "generic"\n'
JOB = 'command = ["python", "train.py", "--config", "{item}"]\nnodes = 1\ngpus_per_node = 4\ntime = "01:00:00"\n'


def sweep(num_items: int, after: str = "") -> str:
    items = ", ".join(f'"lr={i}"' for i in range(num_items))
    return f"{JOB}items = [{items}]\nwidth = 50\n{after}"


def shapes(num_items: int) -> dict[str, str]:
    per_job = max(num_items // 100, 1)
    jobs = [f"[jobs.s{i}]\n" + sweep(per_job, f'after = {{s{i - 1} = "corr"}}\n' if i else "") for i in range(100)]
    single = [
        f"[jobs.s{i}]\n{JOB.replace('{item}', 'x')}" + (f'after = {{s{i - 1} = "ok"}}\n' if i else "")
        for i in range(num_items)
    ]
    return {
        "one sweep": "[jobs.all]\n" + sweep(num_items),
        "100 jobs, item by item": "".join(jobs),
        f"chain of {len(single)} single jobs": "".join(single),
    }


def seconds_to_plan(folder: Path, body: str) -> dict[str, float]:
    path = folder / "graph.toml"
    path.write_text(HEAD + body)
    start = time.perf_counter()
    graph, site = read_graph(path, site="", catalog=None)
    read_s = time.perf_counter() - start
    scripts = [
        script
        for job in graph.jobs.values()
        for script in graph_job_scripts(graph, job, LaunchFolder(folder / "launch"), site, MAX_ARRAY_TASKS)
    ]
    rendered_s = time.perf_counter() - start
    manifest = Manifest(name=graph.name, created="", max_array_tasks=MAX_ARRAY_TASKS, token="bench")
    submissions = decide(graph, manifest, now_s=0.0).wanted
    outline(graph), dot(graph), to_json(graph.as_document()), estimate(graph)
    all_s = time.perf_counter() - start
    assert len(submissions) == len(scripts)
    return {"num_items": graph.num_items, "num_scripts": len(scripts), "read_s": read_s,
            "render_s": rendered_s - read_s, "decide_and_draw_s": all_s - rendered_s, "all_s": all_s}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=10_000)
    num_items = parser.parse_args().items
    is_slow = False
    for name, body in shapes(num_items).items():
        with tempfile.TemporaryDirectory() as folder:
            timings = seconds_to_plan(Path(folder), body)
        print(json.dumps({"shape": name, **{k: round(v, 3) for k, v in timings.items()}}))
        is_slow |= timings["num_scripts"] < num_items and timings["all_s"] >= LIMIT_S
    return int(is_slow)


if __name__ == "__main__":
    sys.exit(main())
