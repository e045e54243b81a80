"""What measuring costs: CPU seconds of sampling, event writes and the watchdog over the wall time of the steps.

    python benchmarks/sampler_cost.py [--steps 100] [--step-s 0.1]

Steps here only sleep, so that all CPU time of the process is the cost of measuring; a real step would hide in it what
we want to see. Every step writes the twelve metrics of a language run. Exit 1: more than half a percent.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from contextlib import closing
from pathlib import Path

from scalewright.records import metric_names as names
from scalewright.records.documents import document
from scalewright.records.run_directory import RunDirectory
from scalewright.run.metrics import MetricWriter
from scalewright.run.sampler import INTERVAL_S, NodeSampler
from scalewright.run.watchdog import Watchdog
from scalewright.run.world import World

LIMIT_FRAC = 0.005
METRICS = (
    names.STEP_TIME, names.LOSS, names.TOKENS_PER_S, names.FLOP_PER_S, names.MFU, names.COMPUTE_TIME,
    names.COMMUNICATION_TIME, names.DATA_WAIT, names.IDLE_TIME, names.PEAK_MEMORY, names.GRAD_NORM,
    names.CHECKPOINT_BLOCK,
)  # fmt: skip


def measure(folder: Path, *, num_steps: int, step_s: float) -> dict[str, float]:
    directory = RunDirectory.create_or_resume(folder / "run", document("language-run", {}))
    world = World.from_environment({})
    sampler = NodeSampler(directory, world)
    with (
        closing(MetricWriter(directory, world)) as metrics,
        sampler,
        Watchdog(directory, world, metrics, factor=10.0, minimum_s=120.0) as watchdog,
    ):
        time.sleep(2 * INTERVAL_S)  # opening the sensors happens once, before the first step
        sampled_s, wall_s, cpu_s, written_s = (
            sampler.cpu_time_s, time.perf_counter(), time.process_time(), metrics.cpu_time_s
        )  # fmt: skip
        for step in range(num_steps):
            time.sleep(step_s)
            for name in METRICS:
                metrics.write(step=step, name=name, value=1.0 / (step + 1), unit=names.UNITS[name])
            watchdog.step_done(step=step, seconds_s=step_s, loss=1.0 / (step + 1), flop_per_s=1.0)
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
        return {
            "num_steps": num_steps,
            "step_s": wall_s / num_steps,
            "sampler_frac": (sampler.cpu_time_s - sampled_s) / wall_s,
            "event_writes_frac": (metrics.cpu_time_s - written_s) / wall_s,
            "all_measuring_frac": cpu_s / wall_s,
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--step-s", type=float, default=0.1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cost_fracs = measure(Path(folder), num_steps=args.steps, step_s=args.step_s)
    print(json.dumps(cost_fracs))
    cost = cost_fracs["sampler_frac"] + cost_fracs["event_writes_frac"]
    print(f"sampler and event writes: {cost:.3%} of a step of {cost_fracs['step_s']:.3f} s (limit {LIMIT_FRAC:.1%})")
    return int(cost >= LIMIT_FRAC)


if __name__ == "__main__":
    raise SystemExit(main())
