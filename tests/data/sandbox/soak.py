"""Ten thousand hostile rewards, with benign ones between them: none escapes, and none delays others beyond its limit.

    .venv/bin/python tests/data/sandbox/soak.py [NUMBER] [--out FILE]

Prints the figures, and ends with exit code 1 where an attack reached something or a benign reward suffered.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from canary import Canary, open_canary
from hostile_code import KINDS, benign_job, job_of, problem_of

from scalewright import units
from scalewright.data.sandbox.pool import SandboxPool
from scalewright.data.sandbox.protections import as_texts, what_is_possible
from scalewright.data.sandbox.types import SandboxJob, SandboxLimits, SandboxOutcome

LIMITS = SandboxLimits(time_s=1.0, memory_bytes=256 * units.MIB, num_processes=12)
NUM_WORKERS = 10
ROUND = 5 * len(KINDS)
"""Attacks after which the canary is looked at."""
BENIGN_EVERY = 4
LATE_S = 1.0
"""A job that ends later than this after its limit delayed others."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("number", nargs="?", type=int, default=10_000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    problems: list[str] = []
    ends: Counter[str] = Counter()
    seconds: list[float] = []
    benign: list[SandboxOutcome] = []
    start_s = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        open_canary(Path(folder) / "canary") as canary,
        SandboxPool(limits=LIMITS, num_workers=NUM_WORKERS) as pool,
    ):
        for first in range(0, options.number, ROUND):
            numbers = range(first, min(first + ROUND, options.number))
            hostile, harmless = run_round(pool, canary, numbers)
            problems += [text for number, end in hostile.items() if (text := problem_of(kind_of(number), end))]
            problems += canary.damages(list(hostile.values()))
            problems += [f"benign {n}: {o.status}" for n, o in harmless.items() if o.value != n * n]
            ends.update(outcome.status for outcome in hostile.values())
            seconds += [outcome.seconds for outcome in hostile.values()]
            benign += harmless.values()
            sys.stdout.write(f"{numbers[-1] + 1:,} of {options.number:,}: {len(problems)} problems\n")
            sys.stdout.flush()
        num_replaced = pool.num_replaced
    figures = {
        "num_hostile": sum(ends.values()), "num_kinds": len(KINDS), "num_escaped_or_harmed": len(problems),
        "num_by_status": dict(ends.most_common()), "num_workers_replaced": num_replaced,
        "longest_hostile_s": round(max(seconds), 3), "time_limit_s": LIMITS.time_s, "num_workers": NUM_WORKERS,
        "num_late": sum(one > LIMITS.time_s + LATE_S for one in seconds), "num_benign": len(benign),
        "num_benign_right": sum(one.is_ok for one in benign),
        "benign_median_s": round(statistics.median(one.seconds for one in benign), 4),
        "benign_longest_s": round(max(one.seconds for one in benign), 3),
        "wall_s": round(time.monotonic() - start_s, 1),
        "load": os.getloadavg()[0], "cpus": os.cpu_count(), "kernel": platform.release(), "uid": os.getuid(),
        "protections": as_texts(what_is_possible()), "problems": problems[:20],
    }  # fmt: skip
    sys.stdout.write(json.dumps(figures, indent=1) + "\n")
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1) + "\n")
    return 1 if problems else 0


def kind_of(number: int):  # type: ignore[no-untyped-def]
    return KINDS[number % len(KINDS)]


def run_round(
    pool: SandboxPool, canary: Canary, numbers: range
) -> tuple[dict[int, SandboxOutcome], dict[int, SandboxOutcome]]:
    """Attacks by their number, and the benign rewards that ran between them."""
    jobs: list[tuple[str, int, SandboxJob]] = []
    for number in numbers:
        jobs.append(("hostile", number, job_of(kind_of(number), canary.arguments(), number=number)))
        if number % BENIGN_EVERY == 0:
            jobs.append(("benign", number, benign_job(number)))
    outcomes = pool.run_many([job for _, _, job in jobs])
    ends: dict[str, dict[int, SandboxOutcome]] = {"hostile": {}, "benign": {}}
    for (name, number, _), outcome in zip(jobs, outcomes, strict=True):
        ends[name][number] = outcome
    return ends["hostile"], ends["benign"]


if __name__ == "__main__":
    sys.exit(main())
