"""Synchronous, one-step-off and asynchronous GRPO, with trainer and engines as roles: throughput and reward.

    python benchmarks/hybrid_modes.py --seeds 0,1,2 --steps 60 >> benchmarks/results/hybrid_modes.jsonl

For every seed, the same SFT weights are trained by `reason grpo --engines N --staleness K` with each K, one after the
other, with the same options otherwise. Throughput is trained tokens over the wall time of the steps, by the
controller's record, without the first steps. Reward is its mean over the last third of the steps; accuracy is greedy on
held-out problems. The last line compares each K with K = 0: the ratio of throughputs, and the difference of rewards and
accuracies, as means over seeds with 95 % intervals (Student's t; with one seed there is none).

Each rank of the trainer and of the engines needs a core of its own, or the roles only take turns: with fewer cores the
line says so. On a 16-core machine: --engines 4 --ranks 4.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from scalewright.records.hybrid import read_hybrid
from scalewright.records.reasoning import read_curve, read_stage
from scalewright.records.run_directory import RunDirectory

WARM_UP = 3
"""Steps without a place in the throughput: engines start, and queues fill."""
STUDENT_T = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
"""97.5 % quantile by the number of values."""


def scalewright(*words: str) -> None:
    done = subprocess.run([sys.executable, "-m", "scalewright", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words[:3])}: exit {done.returncode}: {done.stderr[-2000:]}")


def sft(folder: Path, args: argparse.Namespace, seed: int) -> Path:
    if args.start_from:
        return Path(args.start_from)
    path = folder / f"sft-{seed}"
    model = ("--model", args.model) if args.model else ()
    scalewright(
        "reason", "sft", *model, "--numbers", str(args.numbers), "--largest", str(args.largest), "--device",
        args.device, "--steps", str(args.sft_steps), "--seed", str(seed), "--eval-problems", "0", "--run-dir",
        str(path),
    )  # fmt: skip
    return path


def measured(folder: Path, args: argparse.Namespace, start: Path, *, seed: int, staleness: int) -> dict[str, Any]:
    path = folder / f"grpo-{seed}-{staleness}"
    scalewright(
        "reason", "grpo", "--start-from", str(start), "--device", args.device, "--steps", str(args.steps), "--seed",
        str(seed), "--num-prompts", str(args.prompts), "--answers", str(args.answers), "--epochs", str(args.epochs),
        "--engines", str(args.engines), "--ranks", str(args.ranks), "--staleness", str(staleness), "--sync", args.sync,
        "--eval-problems", str(args.eval_problems), "--checkpoint-every", str(args.steps), "--run-dir", str(path),
    )  # fmt: skip
    directory = RunDirectory(path)
    record, curve = read_hybrid(directory), read_curve(directory)
    assert record is not None
    steps = record.steps[WARM_UP:]
    wall_s = sum(step.wall_s for step in steps)
    late = [point.reward_mean or 0.0 for point in curve[-max(len(curve) // 3, 1) :]]
    accuracy = read_stage(directory).accuracy
    return {
        "seed": seed, "staleness": staleness, "mode": record.settings.mode,
        "tokens_per_s": sum(step.num_trained_tokens for step in steps) / wall_s,
        "steps_per_s": len(steps) / wall_s,
        "rollout_s": statistics.median(step.rollout_s for step in steps),
        "train_s": statistics.median(step.train_s for step in steps),
        "staleness_max": max(step.staleness_max for step in steps),
        "num_dropped": sum(step.num_dropped for step in steps),
        "reward": statistics.fmean(late), "accuracy_frac": None if accuracy is None else accuracy.greedy.value_frac,
    }  # fmt: skip


def interval(values: list[float]) -> list[float | None]:
    """Mean, low, high."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return [mean, None, None]
    half = STUDENT_T[min(len(values), max(STUDENT_T))] * statistics.stdev(values) / math.sqrt(len(values))
    return [mean, mean - half, mean + half]


def compared(rows: list[dict[str, Any]], staleness: int) -> dict[str, Any]:
    """This bound of staleness against none, seed by seed."""
    pairs = [
        (row, base)
        for row in rows
        for base in rows
        if row["seed"] == base["seed"] and row["staleness"] == staleness and base["staleness"] == 0
    ]
    result = {
        "ratio": interval([row["tokens_per_s"] / base["tokens_per_s"] for row, base in pairs]),
        "reward_difference": interval([row["reward"] - base["reward"] for row, base in pairs]),
    }
    if all(row["accuracy_frac"] is not None for pair in pairs for row in pair):
        result["accuracy_difference"] = interval([row["accuracy_frac"] - base["accuracy_frac"] for row, base in pairs])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--staleness", default="0,1,2", help="bounds to run; 0 is the base")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument(
        "--start-from", default="", help="weights of another SFT, for all seeds; default: one is trained"
    )
    parser.add_argument("--sft-steps", type=int, default=1000)
    parser.add_argument("--model", default="")
    parser.add_argument("--numbers", type=int, default=3)
    parser.add_argument("--largest", type=int, default=20)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--answers", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--engines", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=1, help="of the trainer")
    parser.add_argument("--sync", default="auto")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--eval-problems", type=int, default=256)
    args = parser.parse_args()
    bounds = [int(word) for word in args.staleness.split(",")]
    num_cores = len(os.sched_getaffinity(0))
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for seed in (int(word) for word in args.seeds.split(",")):
            start = sft(Path(name), args, seed)
            for staleness in bounds:
                rows.append(measured(Path(name), args, start, seed=seed, staleness=staleness))
                print(json.dumps(rows[-1]), flush=True)
    summary: dict[str, Any] = {str(bound): compared(rows, bound) for bound in bounds if bound}
    has_cores = args.device != "cpu" or num_cores >= args.engines + args.ranks
    load = os.getloadavg()[0]
    print(json.dumps({"against_sync": summary, "num_cores": num_cores, "has_cores": has_cores, "load": load}))


if __name__ == "__main__":
    main()
