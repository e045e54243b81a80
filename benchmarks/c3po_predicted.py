"""Rollout time of our engine, waiting for all and under token budgets, measured and simulated. One JSON line a row.

    OMP_NUM_THREADS=1 python benchmarks/c3po_predicted.py --seeds 0,1,2 --lengths lognormal:mean=64,cv=1,max=640
    python benchmarks/c3po_predicted.py --device cuda --clock wall --model gpt3-350m --prompt-len 32

Answers have lengths from a distribution: a request may write so many tokens and no token ends it. The rollout pool is
the one that trains. Decode steps and prompts of the same engine are timed first and fitted as a calibration fits them;
none of them is part of a measured rollout. The simulation then gets the same lengths. Time is that of the engine's
steps, in seconds of the processor (`--clock cpu`: one thread; other programs disturb it less), or of the wall with all
that the pool does. Free places are filled as in a stage. Weights are random, so that a model may have any size.

The exit code is 1 if a gain is predicted more than 15 % off. A gain is rollout time per trained token of waiting for
all over that with the budget.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from scalewright.catalog.library import open_catalog
from scalewright.costs.generation import Serving
from scalewright.costs.machine import Machine, machine_from_system
from scalewright.costs.machine.calibrated import generation_rates_of
from scalewright.costs.rollout_simulation import NUM_LENGTHS, SimulatedPool, rollout_time, simulate
from scalewright.observe.calibrate import BenchmarkRun
from scalewright.observe.generation_fit import fit_generation
from scalewright.records.measurements import Measurements
from scalewright.run.generate.engine import Engine
from scalewright.run.generate.open import open_engine
from scalewright.run.generate.options import EngineOptions
from scalewright.run.generate.requests import GREEDY, Request
from scalewright.run.reasoning.pooled_rollout import READ_STEPS
from scalewright.workload.language_run import shape_document
from scalewright.workload.lengths import parse_lengths
from scalewright.workload.named import resolve_model
from scalewright.workload.precision import recipe
from scalewright.workload.reasoning.rollout_pool import OpenRollout, PoolSettings, RolloutPool

CATALOG = open_catalog()
ALLOWED_FRAC = 0.15
NUM_WARM, NUM_TIMED = 4, 24
CLOCKS: dict[str, Callable[[], float]] = {"cpu": time.process_time, "wall": time.perf_counter}


class TimedEngine:
    """An engine whose steps are timed, and nothing else."""

    def __init__(self, engine: Engine, clock: Callable[[], float]) -> None:
        self.engine, self._clock, self.total_s = engine, clock, 0.0

    def now_s(self) -> float:
        """Seconds of steps so far, or of the wall."""
        return self.total_s if self._clock is time.process_time else time.perf_counter()

    def step(self) -> tuple[Any, float]:
        begun_s = self._clock()
        events = self.engine.step()
        took_s = self._clock() - begun_s
        self.total_s += took_s
        return events, took_s


def prompt_of(number: int, length: int, vocab: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(number).integers(0, vocab, length).tolist())


def calibration_rows(timed: TimedEngine, *, batches: list[int], contexts: list[int]) -> list[dict[str, Any]]:
    """Median decode steps and prompts."""
    engine, rows = timed.engine, []
    for batch in batches:
        for context in contexts:
            num_new = NUM_WARM + NUM_TIMED + 2 + -(-batch * context // engine.options.prefill_chunk)
            for number in range(batch):
                prompt = prompt_of(number, max(context - NUM_TIMED // 2, 1), engine.vocab)
                engine.add(Request(id=f"{number}", prompt=prompt, max_new_tokens=num_new, sampling=GREEDY))
            times_s, seen = [], []
            while engine.has_work:
                events, took_s = timed.step()
                if not events.num_prefill_tokens and events.num_decoded == batch:
                    times_s.append(took_s)
                    seen.append(events.num_context_tokens / batch)
            kept = slice(NUM_WARM, -1)
            rows.append({"phase": "decode", "batch": batch, "context": statistics.fmean(seen[kept]),
                         "time_s": statistics.median(times_s[kept])})  # fmt: skip
    for length in contexts:
        times_s = []
        for number in range(5):
            prompt = prompt_of(number, length, engine.vocab)
            engine.add(Request(id=f"{number}", prompt=prompt, max_new_tokens=1, sampling=GREEDY))
            before_s = timed.total_s
            while engine.has_work:
                timed.step()
            times_s.append(timed.total_s - before_s)
        rows.append({"phase": "prefill", "batch": 1, "num_tokens": length, "chunk": engine.options.prefill_chunk,
                     "time_s": statistics.median(times_s[1:])})  # fmt: skip
    return rows


def calibrated(machine: Machine, rows: list[dict[str, Any]], shape: Any, *, precision: str, device: str) -> Machine:
    """The machine with the rates that the rows show."""
    common = {"precision": precision, "layers": shape.layers, "hidden": shape.hidden}
    measured = Measurements(
        kind="decode", device={"type": device}, versions={}, rows=[row | common for row in rows],
        summary={"shape": shape_document(shape)},
    )  # fmt: skip
    fit = fit_generation(lambda _: machine, CATALOG.stack("eager"), [BenchmarkRun(run="here", measurements=measured)])
    values = {(value.name, value.of): value.value for value in fit.values}
    errors = [abs(step.left_out_s / step.measured_s - 1.0) for step in fit.steps]
    print(f"{len(rows)} steps fitted, {statistics.fmean(errors):.1%} off when left out", file=sys.stderr)
    return replace(machine, generation=generation_rates_of(lambda name, of: values[name, of], list(values)))


def measured_rollouts(timed: TimedEngine, pool: SimulatedPool, *, seed: int, num_measured: int) -> dict[str, float]:
    """Iterations of the pool on the engine: seconds, trained and wasted tokens of one, after the warm-up."""
    rng, rollouts = np.random.default_rng(seed), RolloutPool(pool.settings)
    lengths: list[int] = []
    rows = []

    def add(one: OpenRollout) -> None:
        place = one.prompt_place * pool.settings.num_answers + one.index
        while place >= len(lengths):
            lengths.extend(pool.answers.sample(rng, NUM_LENGTHS).tolist())
        prompt = prompt_of(one.prompt_place, pool.prompt_len, timed.engine.vocab)
        timed.engine.add(Request(
            id=one.id, prompt=prompt, max_new_tokens=lengths[place], written=tuple(one.tokens), sampling=GREEDY,
        ))  # fmt: skip

    for version in range(pool.num_warm_up + num_measured):
        begun_s = timed.now_s()
        rollouts.begin(version)
        free, idle_steps = list(rollouts.open), math.inf
        while not rollouts.is_over:
            idle_steps += len(free) / pool.settings.max_open
            if idle_steps >= READ_STEPS[timed.engine.device.type] or not timed.engine.has_work:
                for one in free:
                    add(one)
                free, idle_steps = [], 0.0
            events, _ = timed.step()
            for event in events.tokens:
                rollouts.wrote(event.request_id, [event.token], [event.log_prob], version)
            for completion in events.finished:
                free += rollouts.finished(completion.request_id, completion.reason)
        timed.engine.fetch()
        timed.engine.take_open()
        result = rollouts.end()
        if version >= pool.num_warm_up:
            rows.append((timed.now_s() - begun_s, result.num_trained, result.num_wasted, result.num_tokens))
    names = ("rollout_s", "num_trained", "num_wasted", "num_decoded")
    return dict(zip(names, (statistics.fmean(column) for column in zip(*rows, strict=True)), strict=True))


def compared(timed: TimedEngine, serving: Serving, given: argparse.Namespace, *, seed: int) -> list[dict[str, Any]]:
    answers = parse_lengths(given.lengths)
    num_open, whole = given.num_prompts * given.answers, given.num_prompts * given.answers * answers.mean
    rows: list[dict[str, Any]] = []
    for share in (0.0, *(float(part) for part in given.budgets.split(","))):
        settings = PoolSettings(
            token_budget=round(share * whole), retention=given.retention, num_prompts=given.num_prompts,
            num_answers=given.answers, max_open=num_open,
        )  # fmt: skip
        pool = SimulatedPool(settings=settings, answers=answers, prompt_len=given.prompt_len)
        measured = measured_rollouts(timed, pool, seed=seed, num_measured=given.iterations)
        simulated = simulate(pool, seed=seed, num_measured=given.iterations)
        predicted_s = float(rollout_time(serving, simulated, num_copies=1.0).total)
        rows.append(measured | {
            "seed": seed, "token_budget": settings.token_budget, "predicted_s": predicted_s,
            "predicted_trained": simulated.num_trained, "ratio": predicted_s / measured["rollout_s"],
        })  # fmt: skip
        waits = rows[0]
        rows[-1] |= {
            "gain": waits["rollout_s"] / waits["num_trained"] / (measured["rollout_s"] / measured["num_trained"]),
            "predicted_gain": waits["predicted_s"] / waits["predicted_trained"]
            / (predicted_s / simulated.num_trained),
        }  # fmt: skip
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="layers=3,hidden=96,heads=4,vocab=112")
    parser.add_argument("--lengths", default="lognormal:mean=64,cv=1,max=640")
    parser.add_argument("--num-prompts", type=int, default=8)
    parser.add_argument("--answers", type=int, default=8)
    parser.add_argument("--prompt-len", type=int, default=8)
    parser.add_argument("--retention", type=int, default=6)
    parser.add_argument("--budgets", default="0.5,1,2", help="over the mean tokens of a step that waits for all")
    parser.add_argument("--iterations", type=int, default=4, help="of the steady state, for each budget and seed")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--clock", choices=CLOCKS, default="cpu")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    given = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(given.device)
    is_gpu = device.type == "cuda"
    precision: Any = "bf16" if is_gpu else "fp32"
    width = 2.0 if is_gpu else 4.0
    longest = int(parse_lengths(given.lengths).longest) + given.prompt_len + 8
    shape = resolve_model(CATALOG, given.model).transformer.model_copy(
        update={"seq": longest, "num_positions": longest}
    )
    num_open = given.num_prompts * given.answers
    options = EngineOptions(max_context=longest, max_running=num_open, precision=precision)
    timed = TimedEngine(open_engine(shape, options, device=device, weights=0), CLOCKS[given.clock])
    timed.engine.prepare(GREEDY, lambda *_: None)
    batches = sorted({1, 2, max(num_open // 16, 1), max(num_open // 4, 1), num_open})
    rows = calibration_rows(timed, batches=batches, contexts=sorted({32, longest // 4, longest // 2}))
    machine = machine_from_system(CATALOG, "generic-h200" if is_gpu else "laptop")
    serving = Serving(
        shape=shape, machine=calibrated(machine, rows, shape, precision=precision, device=device.type),
        stack=CATALOG.stack("eager"), recipe=recipe(precision), tp=1, weight_bytes=width, cache_bytes=width,
    )  # fmt: skip
    print("seed   budget  measured  simulated  ratio  trained as  gain  simulated  off", file=sys.stderr)
    worst = 0.0
    for seed in (int(part) for part in given.seeds.split(",")):
        for row in compared(timed, serving, given, seed=seed):
            off = row["predicted_gain"] / row["gain"] - 1.0
            worst = max(worst, abs(off))
            print(json.dumps(row), flush=True)
            print(f"{seed:4}  {row['token_budget']:7}  {row['rollout_s']:7.3f}s  {row['predicted_s']:8.3f}s  "
                  f"{row['ratio']:5.2f}  {row['predicted_trained'] / row['num_trained']:10.3f}  {row['gain']:4.2f}  "
                  f"{row['predicted_gain']:9.2f}  {off:+.1%}", file=sys.stderr)  # fmt: skip
    print(f"gain: {worst:.1%} off at worst (allowed {ALLOWED_FRAC:.0%})", file=sys.stderr)
    return int(worst > ALLOWED_FRAC)


if __name__ == "__main__":
    sys.exit(main())
