"""A study of 1,000 predicted points, from its file to its page, beside asking `scalewright predict` once for each.

python benchmarks/study_points.py [--points 1000]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STUDY = """
schema = "scalewright.study/1"
id = "many"
title = "Many points"
question = "How long does a study of many points take?"
kind = "language"

[matrix]
system = ["lumi", "leonardo", "marenostrum5", "jupiter"]
micro_batch = [1, 2, 4, 8, 16]
nodes = {nodes}

[derive]
dp = "nodes * gpus_per_node"
gbs = "dp * micro_batch"

[point]
model = "gpt3-1.3b"
system = "{{system}}"
layout = "dp={{dp}},mbs={{micro_batch}},gbs={{gbs}},zero=3,recompute=full"

[scaling]
over = "nodes"
groups = ["system", "micro_batch"]
metric = "tokens_per_s_per_gpu"
"""
NUM_ASKED = 3
ONE = ["predict", "--model", "gpt3-1.3b", "--system", "lumi", "--layout", "dp=8,mbs=1,gbs=8,zero=3", "--json"]


def timed(arguments: list[str], folder: Path) -> tuple[float, float]:
    """Wall time and CPU time of one command."""
    import resource

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun_s = time.perf_counter()
    command = [sys.executable, "-m", "scalewright", *arguments]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - begun_s, cpu_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=1000)
    num_points = parser.parse_args().points
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "many.toml").write_text(STUDY.format(nodes=list(range(1, -(-num_points // 20) + 1))))
        wall_s, cpu_s = timed(["study", "predict", "many.toml", "--out", "report", "--no-plots"], folder)
        size = (folder / "report" / "index.html").stat().st_size
        singles = [timed(ONE, folder) for _ in range(NUM_ASKED)]
    count = 20 * -(-num_points // 20)
    each_s = min(cpu for _, cpu in singles)
    print(f"{count} points, file to page: {wall_s:.2f} s ({cpu_s:.2f} s of CPU), page of {size / 1e6:.2f} MB")
    print(f"one `scalewright predict`: {each_s:.2f} s of CPU, so {count} of them {count * each_s:.0f} s")
    print(f"ratio: {count * each_s / cpu_s:.0f}")


if __name__ == "__main__":
    main()
