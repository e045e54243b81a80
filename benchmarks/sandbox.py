"""What the sandbox costs: benign rewards with and without it, and a new interpreter for each as the usual way.

    .venv/bin/python benchmarks/sandbox.py [--jobs 2000] [--out benchmarks/results/sandbox.json]

Without: the function called in this process. Batches: one job of 256 answers, as a function reward gets them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from scalewright.data.sandbox.pool import SandboxPool
from scalewright.data.sandbox.types import SandboxJob, SandboxLimits

SOURCE = (
    "import re\n"
    "def reward(completions, answer):\n"
    "    numbers = [re.findall(r'-?[0-9]+', text) for text in completions]\n"
    "    return [float(bool(found) and found[-1] == right) for found, right in zip(numbers, answer)]\n"
)
BATCH = 256


def jobs_per_s(work: Callable[[], object], num: int) -> float:
    start_s = time.perf_counter()
    work()
    return num / (time.perf_counter() - start_s)


def measured(num_jobs: int, num_workers: int) -> dict[str, float]:
    names: dict[str, object] = {}
    exec(SOURCE, names)
    reward = names["reward"]
    text = "so the answer is " + "1 + " * 50 + "42"
    one = {"completions": [text], "answer": ["42"]}
    many = {"completions": [text] * BATCH, "answer": ["42"] * BATCH}
    jobs = [SandboxJob(id=str(n), source=SOURCE, function="reward", arguments=one) for n in range(num_jobs)]
    batches = [
        SandboxJob(id=str(n), source=SOURCE, function="reward", arguments=many) for n in range(-(-num_jobs // BATCH))
    ]
    tests = [
        SandboxJob(id=str(n), source="def add(a, b): return a + b", tests="assert add(1, 2) == 3")
        for n in range(num_jobs // 4)
    ]
    rates = {"without_per_s": jobs_per_s(lambda: [reward(**one) for _ in range(num_jobs)], num_jobs)}  # type: ignore[operator]
    for name, is_plain in (("sandbox", False), ("rlimits_only", True)):
        with SandboxPool(limits=SandboxLimits(), num_workers=num_workers, is_plain=is_plain) as pool:
            start_s = time.perf_counter()
            assert pool.run_many(jobs[:num_workers])[0].value == [1.0]
            rates[f"{name}_start_s"] = time.perf_counter() - start_s
            rates[f"{name}_per_s"] = jobs_per_s(lambda pool=pool: pool.run_many(jobs), num_jobs)  # type: ignore[misc]
            if not is_plain:
                rates["sandbox_batch_answers_per_s"] = jobs_per_s(lambda: pool.run_many(batches), len(batches) * BATCH)
                rates["run_tests_per_s"] = jobs_per_s(lambda: pool.run_many(tests), len(tests))
    few = max(num_jobs // 100, 10)
    call = f"{SOURCE}\nreward({[text]!r}, ['42'])"
    rates["new_interpreter_per_s"] = jobs_per_s(
        lambda: [subprocess.run([sys.executable, "-I", "-c", call], check=True) for _ in range(few)], few
    )
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rates = measured(options.jobs, options.workers)
    rates["ratio_without_over_sandbox"] = rates["without_per_s"] / rates["sandbox_per_s"]
    rates["ratio_sandbox_over_new_interpreter"] = rates["sandbox_per_s"] / rates["new_interpreter_per_s"]
    body = {name: float(f"{value:.4g}") for name, value in rates.items()}
    machine = {
        "num_jobs": options.jobs, "num_workers": options.workers, "cpus": os.cpu_count(), "load": os.getloadavg()[0],
        "kernel": platform.release(), "python": platform.python_version(),
    }  # fmt: skip
    print(json.dumps(machine | body, indent=1))
    if options.out:
        options.out.write_text(json.dumps(machine | body, indent=1) + "\n")


if __name__ == "__main__":
    main()
