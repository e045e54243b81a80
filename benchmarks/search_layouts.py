"""Exhaustive layout search on one core: GPT-3 175B on 1,024 devices and a mixture of experts of 1T on 16,384.

    python benchmarks/search_layouts.py                  both problems, and a loop over single layouts as the baseline
    python benchmarks/search_layouts.py --passes 5       the fastest of five passes counts

The baseline asks the same cost model for one layout at a time, over a sample of the layouts that divide; what the whole
search would take that way is the sample's time scaled up. It is a lower bound: the loop gets its layouts for nothing.
"""

from __future__ import annotations

# ruff: noqa: E402
import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
    os.environ[_name] = "1"  # before NumPy is imported, which reads them once

import argparse
import platform
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scalewright import __version__
from scalewright.catalog.library import open_catalog
from scalewright.costs.machine import machine_from_system
from scalewright.costs.step import step_cost
from scalewright.planner.question import resolve_recipe
from scalewright.planner.search.search import SearchResult, search
from scalewright.planner.search.space import Space, stacks_by_zero
from scalewright.workload.model import from_catalog

NUM_SAMPLED = 1_000


@dataclass(frozen=True, slots=True)
class Problem:
    model: str
    system: str
    num_gpus: int
    global_batch: int


PROBLEMS = (
    Problem("gpt3-175b", "selene", 1024, 1536),
    Problem("ring-1t", "jupiter", 16384, 4096),
)


def space_of(problem: Problem) -> Space:
    catalog = open_catalog()
    machine = machine_from_system(catalog, problem.system)
    return Space(
        spec=from_catalog(catalog.model(problem.model)),
        machine=machine,
        num_gpus=problem.num_gpus,
        global_batch=problem.global_batch,
        recipes=(resolve_recipe("auto", machine),),
        stack_of=stacks_by_zero("auto", catalog, machine),
        is_auto_stack=True,
    )


def timed(space: Space, passes: int) -> tuple[SearchResult, float, float]:
    """The search, and wall and CPU seconds of its fastest pass."""
    best: tuple[float, float] | None = None
    result = None
    for _ in range(passes):
        wall, cpu = time.perf_counter(), time.process_time()
        result = search(space)
        spent = (time.perf_counter() - wall, time.process_time() - cpu)
        best = spent if best is None or spent[1] < best[1] else best
    assert result is not None
    assert best is not None
    return result, *best


def one_at_a_time(result: SearchResult, num_sampled: int) -> float:
    """CPU seconds per layout of a plain loop; each must agree with the column it was drawn from."""
    rows = np.linspace(0, len(result.split) - 1, num=min(num_sampled, len(result.split)), dtype=np.int64)
    layouts = [(result.choices[int(result.choice[i])], result.layout(int(i)), result.step_time_s[i]) for i in rows]
    start = time.process_time()
    costs = [
        step_cost(spec=result.space.spec, setting=result.space.setting(choice, layout)) for choice, layout, _ in layouts
    ]
    spent = time.process_time() - start
    for cost, (_, layout, searched) in zip(costs, layouts, strict=True):
        if np.isfinite(searched):
            assert abs(float(cost.time.total) / searched - 1.0) < 1e-12, layout.brief
        else:
            assert not cost.fits, layout.brief
    return spent / len(layouts)


def report(problem: Problem, passes: int, num_sampled: int) -> None:
    result, wall_s, cpu_s = timed(space_of(problem), passes)
    best = result.best(1, "time")[0]
    divide = len(result.split)
    print(f"{problem.model} on {problem.num_gpus} devices ({problem.system}), batch {problem.global_batch}")
    print(
        f"  considered {result.considered:,}, divide {divide:,}, feasible {result.feasible:,}, costed {result.costed:,}"
    )
    print(f"  seconds: {wall_s:.2f} ({cpu_s:.2f} of CPU)")
    print(f"  best {best.question.layout.brief}: {best.time_s:.2f} s a step")
    each = one_at_a_time(result, num_sampled)
    print(f"  one at a time: {each * 1e3:.2f} ms a layout, {each * divide:,.0f} s for those that divide")
    print(f"  ratio: {each * divide / cpu_s:,.0f}", flush=True)


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--passes", type=int, default=3, help="passes; the one with the least CPU time counts")
    parser.add_argument("--sample", type=int, default=NUM_SAMPLED, help="layouts that the plain loop costs")
    parser.add_argument("--first-only", action="store_true", help="the first problem alone")
    args = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    print(f"one core of {processor()}; Python {platform.python_version()}, NumPy {np.__version__}")
    print(f"scalewright {__version__}", flush=True)
    for problem in PROBLEMS[:1] if args.first_only else PROBLEMS:
        report(problem, args.passes, args.sample)


if __name__ == "__main__":
    sys.exit(main())
