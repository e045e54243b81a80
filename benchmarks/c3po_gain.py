"""What a token budget (C3PO++) gains over waiting for all answers, at equal trained tokens. One JSON line a figure.

    python benchmarks/c3po_gain.py --out DIR --prepare                 # once: the model to start from
    python benchmarks/c3po_gain.py --out DIR --decode                  # time of a decode step by open answers
    python benchmarks/c3po_gain.py --out DIR --seed 0 > seed-0.jsonl   # both ways, one after the other
    python benchmarks/c3po_gain.py --show seed-*.jsonl                 # the table over seeds

Each seed is a process with one thread; seeds may run side by side on cores of their own.

The task is countdown with 2 numbers up to 20, `+`, `-` and `*`, and up to 32 attempts. A random attempt hits with the
share p of valid expressions that reach the target (0.2 to 0.67). So the attempts of an answer follow a mixture of
geometric distributions over p, cut off at 32. An attempt has 6 tokens. 8,192 traces have a mean of 22 tokens, a
standard deviation of 0.76 times that, a 99th percentile of 89 and at most 179; the longest of 64 is 4.2 times the mean.
The lengths of the model that GRPO starts from are measured by --prepare. `--task long` has 3 numbers up to 9 and 64
attempts of 10 tokens: mean 144, 99th percentile 587; it needs more --sft-steps (2,000). `--task middle` has `+` and
`-` only: a model of 2 layers learns it well in 4,000 steps. Then its answers have 50 tokens in the mean, 204 at the
99th percentile, a standard deviation of 0.85 of the mean, and the longest of 32 answers is 3.8 times the mean.

The published figures are of `--task middle`:

    python benchmarks/c3po_gain.py --out DIR --task middle --num-prompts 3 --model layers=2,hidden=64,heads=4 \\
        --sft-steps 4000 --num-traces 32768 --prepare
    python benchmarks/c3po_gain.py --out DIR --task middle --num-prompts 3 --model layers=2,hidden=64,heads=4 \\
        --stale-keys --retention 10 --learning-rate 3e-5 --steps 80 --seed 0

The learning rate is small, so that lengths stay those of the start. A larger one shortens the tail (a weak start) or
spoils greedy answers of the budget (a strong one).

Gain depends on how the time of a decode step falls when few answers are left. On a GPU it hardly falls, because a step
reads all weights whatever the batch. On a CPU a step costs a + b n for n answers: 0.36 ms + 14 us x n with that model.
With many open answers b hides the gain, with few of them each new prompt weighs more.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from scalewright.records.hybrid import read_hybrid
from scalewright.records.reasoning import CurvePoint, read_curve, read_stage, read_stored_answers
from scalewright.records.run_directory import RunDirectory
from scalewright.workload.reasoning.accuracy import rise_of_marks, wilson_rate

TASKS = {
    "short": (("--numbers", "2", "--largest", "20", "--operators", "+-*", "--attempts", "32"), 127),
    "middle": (("--numbers", "3", "--largest", "9", "--operators", "+-", "--attempts", "64"), 111),
    "long": (("--numbers", "3", "--largest", "9", "--operators", "+-*", "--attempts", "64"), 378),
}
"""Options of each task, and its problems that tests use."""
NUM_ANSWERS = 8
COMPILING = 5.0
OUTSIDE = ("evaluation", "checkpoint")
"""Parts that are no part of a step."""
STUDENT_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571}
"""Two-sided 95 % of Student's t for so many values."""


def emit(**row: Any) -> None:
    print(json.dumps(row), flush=True)


def reason(*arguments: str, options: argparse.Namespace) -> None:
    env = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
    command = [sys.executable, "-m", "scalewright", "reason", *arguments, "--device", options.device, "--ranks", "1"]
    result = subprocess.run(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if result.returncode:
        raise SystemExit(f"{' '.join(command)}: {result.stderr.strip().splitlines()[-1]}")


def prepare(out: Path, options: argparse.Namespace) -> None:
    """Train the model that both ways start from, and measure the lengths of its answers."""
    reason(
        "sft", *TASKS[options.task][0], "--steps", str(options.sft_steps), "--batch", "64",
        "--num-traces", str(options.num_traces),
        "--eval-problems", str(TASKS[options.task][1]), "--learning-rate", str(options.sft_learning_rate),
        "--run-dir", str(out / "start"),
        *(("--model", options.model) if options.model else ()), options=options,
    )  # fmt: skip
    lengths_of(out / "start", out / "start-answers", options, name="start")


def lengths_of(start: Path, path: Path, options: argparse.Namespace, *, name: str) -> None:
    reason(
        "generate", "--start-from", str(start), "--num-problems", "512", "--answers", "4", "--keeps", "all",
        "--run-dir", str(path), options=options,
    )  # fmt: skip
    lengths = np.array([len(one.response) for one in read_stored_answers(path)])
    drawn = np.random.default_rng(0).choice(lengths, (2000, options.num_prompts * NUM_ANSWERS))
    median, high, highest = (float(x) for x in np.percentile(lengths, [50, 90, 99]))
    emit(
        figure="lengths", of=name, num=len(lengths), mean=float(lengths.mean()), p50=median, p90=high, p99=highest,
        longest=int(lengths.max()), cv=float(lengths.std() / lengths.mean()),
        num_open=drawn.shape[1], longest_open_over_mean=float(drawn.max(axis=1).mean() / lengths.mean()),
    )  # fmt: skip


def decode_steps(start: Path) -> None:
    """Time of a decode step with n answers open, at the context of a usual answer."""
    import torch

    from scalewright.run.generate.open import open_engine
    from scalewright.run.generate.options import EngineOptions
    from scalewright.run.generate.requests import Request, Sampling
    from scalewright.workload.reasoning.stage_run import from_document

    torch.set_num_threads(1)
    config = RunDirectory(start).config
    shape = from_document(json.loads(config.read_text()), where=str(config)).shape
    for num in (1, 2, 4, 8, 16, 32, 64):
        options = EngineOptions(max_context=shape.seq, max_running=num, precision="fp32")
        engine = open_engine(shape, options, device=torch.device("cpu"), weights=0)
        for name in range(num):
            engine.add(Request(id=str(name), prompt=(9, 10, 11), max_new_tokens=96, sampling=Sampling(seed=1)))
        times_s = []
        while engine.has_work:
            started_s = time.perf_counter()
            engine.step()
            times_s.append(time.perf_counter() - started_s)
        emit(figure="decode_step", num_open=num, step_s=statistics.median(times_s[8:-2]), least_s=min(times_s[8:-2]))


def grpo(out: Path, options: argparse.Namespace, *, name: str, steps: int, extra: tuple[str, ...] = ()) -> Path:
    path = out / f"seed-{options.seed}-{name}"
    reason(
        "grpo", "--start-from", str(out / "start"), "--num-prompts", str(options.num_prompts),
        "--answers", str(NUM_ANSWERS), "--batch", str(options.num_prompts * NUM_ANSWERS),
        "--steps", str(steps), "--seed", str(options.seed),
        "--learning-rate", str(options.learning_rate), "--eval-problems", str(TASKS[options.task][1]),
        "--eval-answers", "4", "--checkpoint-every", str(steps), *extra, "--run-dir", str(path),
        options=options,
    )  # fmt: skip
    return path


def step_s(point: CurvePoint) -> float:
    return sum(seconds for part, seconds in point.seconds_by_part.items() if part not in OUTSIDE)


def cumulative(path: Path, *, num_warm_up: int) -> dict[str, np.ndarray]:
    """Trained tokens and seconds after each step, from 0 on.

    Left out are the first steps and, where there are such, those that took over COMPILING times the median: on a GPU
    they compile kernels for shapes that are met for the first time.
    """
    curve = read_curve(RunDirectory(path))[num_warm_up:]
    if num_warm_up:
        limit_s = COMPILING * statistics.median(step_s(point) for point in curve)
        curve = [point for point in curve if step_s(point) <= limit_s]
    whole = [step_s(point) for point in curve]
    columns = {
        "tokens": [point.num_tokens for point in curve],
        "rollout_s": [point.seconds_by_part.get("generation", 0.0) for point in curve],
        "whole_s": whole,
    }
    return {name: np.concatenate([[0.0], np.cumsum(values)]) for name, values in columns.items()}


def summary(path: Path) -> dict[str, Any]:
    stage, record = read_stage(RunDirectory(path)), read_hybrid(RunDirectory(path))
    assert stage.accuracy is not None
    assert record is not None
    steps, accuracy = record.steps, stage.accuracy
    return {
        "num_steps": len(steps),
        "num_trained_tokens": sum(one.num_trained_tokens for one in steps),
        "num_decoded_tokens": sum(one.num_decoded_tokens for one in steps),
        "wasted_frac": sum(one.num_wasted_tokens for one in steps) / sum(one.num_decoded_tokens for one in steps),
        "staleness_mean": statistics.fmean(one.staleness_mean for one in steps),
        "staleness_max": max(one.staleness_max for one in steps),
        "rollout_s": stage.seconds_by_part["generation"],
        "seconds_by_part": stage.seconds_by_part,
        "accuracy_frac": accuracy.greedy.value_frac,
        "accuracy_interval": [accuracy.greedy.low_frac, accuracy.greedy.high_frac],
        "sampled_frac": accuracy.pass_at_k[1].value_frac,
        "sampled_interval": [accuracy.pass_at_k[1].low_frac, accuracy.pass_at_k[1].high_frac],
        "marks": accuracy.marks,
    }


def compare(out: Path, options: argparse.Namespace) -> None:
    """Both ways from the same start. The budget is what a step of waiting for all writes on average."""
    all_done = grpo(out, options, name="all-done", steps=options.steps)
    first = summary(all_done)
    budget = options.token_budget or round(first["num_trained_tokens"] / options.steps)
    flags = ("--token-budget", str(budget), "--retention", str(options.retention), "--groups", options.groups)
    flags += ("--stale-keys",) if options.stale_keys else ()
    steps = math.ceil(options.steps * (1.0 + options.more_steps_frac))
    pooled = grpo(out, options, name="budget", steps=steps, extra=(*flags, "--old-tokens", options.old_tokens))
    second = summary(pooled)
    before, after = (cumulative(path, num_warm_up=options.warm_up) for path in (all_done, pooled))
    num_tokens = float(min(before["tokens"][-1], after["tokens"][-1]))
    at = {
        (way, name): float(np.interp(num_tokens, columns["tokens"], columns[name]))
        for way, columns in (("all_done", before), ("budget", after))
        for name in ("rollout_s", "whole_s")
    }
    rise = rise_of_marks(second["marks"], first["marks"])
    emit(
        figure="gain", seed=options.seed, token_budget=budget, retention=options.retention, groups=options.groups,
        old_tokens=options.old_tokens, num_equal_tokens=num_tokens, device=options.device, model=options.model,
        num_counted_steps=[len(before["tokens"]) - 1, len(after["tokens"]) - 1], task=options.task,
        num_open=options.num_prompts * NUM_ANSWERS,
        rollout_gain=at["all_done", "rollout_s"] / at["budget", "rollout_s"],
        whole_gain=at["all_done", "whole_s"] / at["budget", "whole_s"],
        seconds={f"{way}_{name}": value for (way, name), value in at.items()},
        accuracy_rise=[rise.value_frac, rise.low_frac, rise.high_frac], load=os.getloadavg()[0],
        all_done=first, budget=second,
    )  # fmt: skip


def with_interval(values: list[float]) -> str:
    mean = statistics.fmean(values)
    if len(values) < min(STUDENT_95):
        return f"{mean:.2f}"
    reach = STUDENT_95[len(values)] * statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean:.2f} ({mean - reach:.2f} to {mean + reach:.2f})"


def show(paths: list[Path]) -> None:
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines() if line.startswith("{")]
    rows = sorted((row for row in lines if row["figure"] == "gain"), key=lambda row: row["seed"])
    if not rows:
        raise SystemExit("no line with a gain: name the output of runs with --seed")
    for row in rows:
        ways = ", ".join(
            f"{name.replace('_', ' ')} {row[name]['accuracy_frac']:.3f} greedy {row[name]['sampled_frac']:.3f} sampled"
            for name in ("all_done", "budget")
        )
        print(
            f"seed {row['seed']}: rollout {row['rollout_gain']:.2f}x, whole {row['whole_gain']:.2f}x at "
            f"{row['num_equal_tokens']:.0f} tokens; {ways}; wasted {row['budget']['wasted_frac']:.1%}, staleness "
            f"{row['budget']['staleness_mean']:.1f} (max {row['budget']['staleness_max']})"
        )
    print(f"rollout gain, 95 % over {len(rows)} seeds: {with_interval([row['rollout_gain'] for row in rows])}")
    print(f"whole gain,   95 % over {len(rows)} seeds: {with_interval([row['whole_gain'] for row in rows])}")
    for name in ("all_done", "budget"):
        marks = "".join(row[name]["marks"] for row in rows)
        rate = wilson_rate(num_hits=marks.count("1"), num=len(marks))
        print(f"{name}: greedy {rate.value_frac:.3f} ({rate.low_frac:.3f} to {rate.high_frac:.3f})")
    rise = rise_of_marks(*("".join(row[name]["marks"] for row in rows) for name in ("budget", "all_done")))
    print(
        f"accuracy of the budget minus all-done: {rise.value_frac:+.3f} ({rise.low_frac:+.3f} to {rise.high_frac:+.3f})"
    )
    print(f"difference by seed, 95 %: {with_interval([row['accuracy_rise'][0] for row in rows])}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder of the runs")
    parser.add_argument("--prepare", action="store_true", help="train the model to start from")
    parser.add_argument("--decode", action="store_true", help="time decode steps by the number of open answers")
    parser.add_argument("--show", type=Path, nargs="+", metavar="FILE", help="print the table of finished runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=150, help="of waiting for all")
    parser.add_argument("--warm-up", type=int, default=0, help="steps that do not count; GPUs compile in them")
    parser.add_argument("--more-steps-frac", type=float, default=0.1, help="steps of the budget beyond that")
    parser.add_argument("--sft-steps", type=int, default=600)
    parser.add_argument("--sft-learning-rate", type=float, default=4e-3)
    parser.add_argument("--num-traces", type=int, default=8192, help="that SFT learns from")
    parser.add_argument("--model", default="", help="layers=..,hidden=..,heads=..; default: that of `reason sft`")
    parser.add_argument("--task", choices=TASKS, default="short")
    parser.add_argument("--num-prompts", type=int, default=8, help="of a step, with 8 answers each")
    parser.add_argument("--learning-rate", type=float, default=2e-4)
    parser.add_argument("--token-budget", type=int, default=0, help="0: the mean step of waiting for all")
    parser.add_argument("--retention", type=int, default=6)
    parser.add_argument("--groups", default="whole")
    parser.add_argument("--stale-keys", action="store_true", help="prefixes are not read again with new weights")
    parser.add_argument("--old-tokens", default="train")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args()
    if options.show:
        show(options.show)
        return
    if options.out is None:
        parser.error("give --out")
    if options.prepare:
        prepare(options.out, options)
    elif options.decode:
        decode_steps(options.out / "start")
    else:
        compare(options.out, options)


if __name__ == "__main__":
    main()
