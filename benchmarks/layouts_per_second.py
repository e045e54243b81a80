"""How many layouts of GPT-3 175B on 1,024 A100 one core costs in a second, beside a calculator of one layout at a time.

    python benchmarks/layouts_per_second.py                    ours alone
    python benchmarks/layouts_per_second.py --baseline         and llm-analysis from PyPI, in a temporary environment

Each layout gets what `scalewright predict` gets: the whole breakdown of time and memory, by the same `step_cost`.
"""

from __future__ import annotations

# ruff: noqa: E402
import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
    os.environ[_name] = "1"  # before NumPy is imported, which reads them once

import argparse
import itertools
import json
import platform
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scalewright import __version__
from scalewright.catalog.library import open_catalog
from scalewright.costs.machine import machine_from_system
from scalewright.costs.setting import Setting
from scalewright.costs.step import StepCost, step_cost
from scalewright.planner.answer import answer
from scalewright.planner.question import Question
from scalewright.workload.layout import COLUMNS, Layout, Recompute, divisibility_problems
from scalewright.workload.model import ModelSpec, from_catalog
from scalewright.workload.precision import recipe

NUM_GPUS = 1024
CHUNK = 16_384
"""Layouts per call: enough to hide the cost of calling NumPy, few enough that the columns stay in the L2 cache."""
NUM_CHECKED = 5
NUM_BATCHES = 96
"""Global batches tried of each split: so many whole pipelines of micro-batches."""
BASELINE = "llm-analysis==0.2.2"
BASELINE_NEEDS = "fire>=0.5,<0.6"
"""All it imports to read its own shipped model; it declares transformers, which only fetches models from the hub."""
BASELINE_LAYOUTS = 3_000
BASELINE_CODE = """
import json, sys, time
from llm_analysis.analysis import train
layouts = json.load(sys.stdin)
def cost(l):
    return train(model_name="megatron-lm-175b", gpu_name="a100-sxm-80gb", log_level="ERROR", flops_efficiency=0.5,
                 batch_size_per_gpu=l["mbs"], global_batch_size=l["gbs"], tp_size=l["tp"], pp_size=l["pp"],
                 dp_size=l["dp"], ds_zero=l["zero"], activation_recomputation=0, total_num_tokens=300e9)
best = None
for _ in range(int(sys.argv[1])):
    answers, refused, start = 0, 0, time.process_time()
    for l in layouts:
        try:
            answers += cost(l)["latency_per_iter"] > 0
        except AssertionError:
            refused += 1
    spent = time.process_time() - start
    best = spent if best is None else min(best, spent)
print(json.dumps({"answers": answers, "refused": refused, "cpu_s": best}))
"""


@dataclass(frozen=True, slots=True)
class Block:
    """Layouts that share the knobs which are not numbers."""

    layout: Layout
    num_layouts: int


@dataclass(frozen=True, slots=True)
class Timing:
    num_layouts: int
    wall_s: float
    cpu_s: float


def columns(shape_layers: int, heads: int, seq: int) -> dict[str, NDArray[np.int64]]:
    """Every whole-number layout of the grid that divides the model and 1,024 devices."""
    powers = [2**i for i in range(11)]
    rows = []
    for tp, pp, cp, mbs in itertools.product(powers[:4], powers[:6], powers[:4], powers[:4]):
        if NUM_GPUS % (tp * pp * cp) or heads % tp or seq % (2 * cp):
            continue
        dp = NUM_GPUS // (tp * pp * cp)
        for vpp in (1, 2, 3, 4, 6, 8) if pp > 1 else (1,):
            if shape_layers % (pp * vpp):
                continue
            rows += [(tp, pp, vpp, cp, 1, dp, mbs, dp * mbs * pp * count) for count in range(1, NUM_BATCHES + 1)]
    table = np.array(rows, dtype=np.int64)
    return {name: np.ascontiguousarray(table[:, i]) for i, name in enumerate(COLUMNS)}


def blocks(spec: ModelSpec, num_layouts: int) -> Iterator[Block]:
    """The grid in pieces, until `num_layouts` are given; it starts again from its beginning when it is used up."""
    shape = spec.transformer
    grid = columns(shape.layers, shape.heads, shape.seq)
    modes: tuple[Recompute, ...] = ("none", "selective", "operators", "full")
    left = num_layouts
    for recompute, zero, sp in itertools.cycle(itertools.product(modes, range(4), (False, True))):
        kept = {name: column[grid["tp"] > 1] for name, column in grid.items()} if sp else grid
        for start in range(0, len(kept["tp"]), CHUNK):
            part = {name: column[start : start + min(CHUNK, left)] for name, column in kept.items()}
            count = len(part["tp"])
            yield Block(Layout(**part, zero=zero, sp=sp, recompute=recompute), count)  # type: ignore[arg-type]
            left -= count
            if left == 0:
                return


def question() -> tuple[ModelSpec, Setting]:
    catalog = open_catalog()
    spec = from_catalog(catalog.model("gpt3-175b"))
    machine = machine_from_system(catalog, "selene")
    stack = catalog.stack("megatron-core")
    setting = Setting(shape=spec.transformer, machine=machine, layout=Layout(), recipe=recipe("bf16"), stack=stack)
    return spec, setting


def cost_all(spec: ModelSpec, setting: Setting, todo: list[Block]) -> Timing:
    """Cost every layout; the clock runs over `step_cost` and the reading of its totals, not over making the grid."""
    counted, wall, cpu = 0, time.perf_counter(), time.process_time()
    for block in todo:
        cost = step_cost(spec=spec, setting=replace(setting, layout=block.layout))
        counted += int(np.count_nonzero(np.isfinite(cost.time.total) & np.isfinite(cost.reserved_bytes)))
    return Timing(counted, time.perf_counter() - wall, time.process_time() - cpu)


def print_checked(spec: ModelSpec, setting: Setting, todo: list[Block]) -> None:
    """Some layouts with the step time out of their column; `predict` must say the same of each, or this stops."""
    shape = spec.transformer
    for block in todo[:: max(1, len(todo) // NUM_CHECKED)][:NUM_CHECKED]:
        at = block.num_layouts // 2
        one = block.layout.at(at)
        assert not divisibility_problems(
            one, layers=shape.layers, heads=shape.heads, kv_heads=shape.kv_heads, seq=shape.seq
        )
        cost: StepCost = step_cost(spec=spec, setting=replace(setting, layout=block.layout)).at(at)
        alone = answer(
            Question(spec=spec, machine=setting.machine, layout=one, recipe=setting.recipe, stack=setting.stack)
        )
        for mine, theirs in ((cost.time, alone.time), (cost.memory, alone.memory)):
            assert abs(float(mine.total) / float(theirs.total) - 1.0) < 1e-12, one.brief
        print(f"checked {one.brief}: {float(cost.time.total)!r} s, {float(cost.memory.total)!r} bytes")


def baseline(todo: list[Block], passes: int) -> Timing:
    """llm-analysis over layouts of the same grid, in a process and an environment of its own."""
    plain = (
        block.layout.at(int(i)).as_dict()
        for block in todo
        for i in np.flatnonzero((block.layout.cp == 1) & (block.layout.vpp == 1))[::7]
    )
    layouts = list(itertools.islice(plain, BASELINE_LAYOUTS))
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder) / "bin" / "python")
        for options in (["--no-deps", BASELINE], [BASELINE_NEEDS]):
            subprocess.run([python, "-m", "pip", "install", "--quiet", *options], check=True, stderr=subprocess.DEVNULL)
        done = subprocess.run(
            [python, "-c", BASELINE_CODE, str(passes)],
            input=json.dumps(layouts),
            check=True,
            capture_output=True,
            text=True,
        )
    answer = json.loads(done.stdout.splitlines()[-1])
    print(f"{BASELINE}: {answer['answers']} layouts answered, {answer['refused']} refused, {answer['cpu_s']:.2f} s")
    return Timing(answer["answers"] + answer["refused"], answer["cpu_s"], answer["cpu_s"])


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--layouts", type=int, default=4_000_000, help="layouts to cost in one pass")
    parser.add_argument("--passes", type=int, default=3, help="passes; the one with the least CPU time counts")
    parser.add_argument("--baseline", action="store_true", help="also install and time llm-analysis")
    args = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    print(f"one core of {processor()}; Python {platform.python_version()}, NumPy {np.__version__}")
    print(f"scalewright {__version__}, gpt3-175b on {NUM_GPUS} A100 (selene), {CHUNK} layouts a call", flush=True)
    spec, setting = question()
    todo = list(blocks(spec, args.layouts))
    best: Timing | None = None
    for _ in range(args.passes):
        timing = cost_all(spec, setting, todo)
        rate = timing.num_layouts / timing.wall_s
        print(
            f"costed {timing.num_layouts} layouts in {timing.wall_s:.3f} s ({timing.cpu_s:.3f} s of CPU): {rate:,.0f}/s"
        )
        best = timing if best is None or timing.cpu_s < best.cpu_s else best
    print_checked(spec, setting, todo)
    assert best is not None
    ours = best.num_layouts / best.cpu_s
    print(f"layouts per second: {ours:,.0f}", flush=True)
    if args.baseline:
        other = baseline(todo, args.passes)
        theirs = other.num_layouts / other.cpu_s
        print(f"{BASELINE} layouts per second: {theirs:,.0f}")
        print(f"ratio: {ours / theirs:,.0f}")


if __name__ == "__main__":
    sys.exit(main())
