"""Fit the constants of generation to published rates, and score it with each source, model and device left out.

    .venv/bin/python benchmarks/fit_generation.py [--write] [--rows]

A handful of constants of a serving engine; every other input is the row's or the catalogue's. Each source weighs the
same from twenty rows on, rates and first tokens apart. A constant is pulled to its start by a prior, because what is
left out may be the only thing that says anything about it. Errors are in the logarithm of the time, and beyond 20 %
they pull as strongly as one of 20 %. The interval is made of quantiles of the rates of left-out sources, a row counting
with the fourth root of its source's rows, inverted, to the power with which they hold 90 % of the rows of left-out
sources; that of first tokens is made of the same quantiles and a power of its own, and so is that of engines of which
there are few rows. Beside the published rows, layers that this project timed on an H200
(benchmarks/results/h200_decode_power.jsonl) weigh as one more source.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from constants_file import write_constants

from scalewright.catalog.generation_runs import PublishedGeneration, generation_habits, generation_runs
from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs.generation import Serving, unseen_engine, unseen_generation, weight_product_time_s
from scalewright.costs.machine import machine_from_hardware
from scalewright.planner.answer import answer
from scalewright.planner.question import Question
from scalewright.planner.validation.generation_rows import compared, generation_question
from scalewright.planner.validation.generation_table import DIMENSIONS, LEFT_OUT_KIND, left_out_path
from scalewright.planner.validation.scores import weighted_quantile
from scalewright.records.documents import document, write_document
from scalewright.workload.model import from_catalog
from scalewright.workload.precision import RECIPES

START = {
    "engine_step_time": 2e-3, "sequence_step_time": 3e-6, "prompt_layer_time": 60e-6,
    "serving_matmul_share": 0.9, "narrow_serving_share": 0.75, "serving_expert_share": 0.75,
    "cache_bandwidth_share": 0.9, "host_sum_share": 0.8,
}  # fmt: skip
"""Where the fit starts, and what it is pulled to."""
FITTED = tuple(START)
PRIOR_WIDTH = 0.5
PRIOR_WEIGHT = 0.01
OUTLIER = 0.2
FULL_WEIGHT_ROWS = 20
NUM_STEPS, TRIAL = 8, 0.03
TAIL, COVERAGE = 0.05, 0.9
LAYERS = Path(__file__).resolve().parent / "results" / "h200_decode_power.jsonl"
Array = np.ndarray[Any, np.dtype[np.float64]]
Values = dict[str, float]


@dataclass(frozen=True)
class Rows:
    """Published rows as questions."""

    runs: list[PublishedGeneration]
    questions: list[Question]
    assumed: list[tuple[str, ...]]

    def logs(self, values: Values, places: Sequence[int]) -> Array:
        """Logarithm of predicted over measured time."""
        logs = []
        for place in places:
            question = self.questions[place]
            base = question.machine.constants
            changed = {n: getattr(base, n).model_copy(update={"value": v}) for n, v in values.items()}
            machine = replace(question.machine, constants=base.model_copy(update=changed))
            row = compared(self.runs[place], answer(replace(question, machine=machine)), ())
            logs.append(-np.log(row.time_ratio))
        return np.array(logs)

    def weights(self) -> Array:
        """Each source and metric weighs the same, from some rows on."""
        keys = [(run.document, run.measured.ttft_ms is not None) for run in self.runs]
        return np.array([min(keys.count(k), FULL_WEIGHT_ROWS) / FULL_WEIGHT_ROWS / keys.count(k) for k in keys])


@dataclass(frozen=True)
class Layers:
    """Layers of decode steps that were timed here."""

    servings: list[Serving]
    batches: list[float]
    measured_s: list[float]

    def logs(self, values: Values) -> Array:
        logs = []
        for serving, batch, measured in zip(self.servings, self.batches, self.measured_s, strict=True):
            base = serving.machine.constants
            changed = {n: getattr(base, n).model_copy(update={"value": v}) for n, v in values.items()}
            own = replace(serving, machine=replace(serving.machine, constants=base.model_copy(update=changed)))
            products = float(weight_product_time_s(serving=own, num_tokens=batch)) / own.shape.layers
            logs.append(np.log((products + own.rates.layer_s) / measured))
        return np.array(logs)


def timed_layers(catalog: Catalog) -> Layers:
    lines = (json.loads(line) for line in LAYERS.read_text(encoding="utf-8").splitlines())
    rows = [row for row in lines if row["kind"] == "decode_layer"]
    machine = machine_from_hardware(
        catalog, gpu="h200-sxm", gpus_per_node=8, scale_up_bytes_per_s=None, network_bytes_per_s_per_gpu=None
    )
    servings = []
    for row in rows:
        name, _, split = str(row["shape"]).partition(" tp=")
        servings.append(
            Serving(
                shape=from_catalog(catalog.model(name)).transformer, machine=machine,
                stack=catalog.stack("megatron-core"), recipe=RECIPES["bf16"], tp=int(split or 1),
                weight_bytes=2.0, cache_bytes=2.0,
            )
        )  # fmt: skip
    return Layers(servings, [float(row["batch"]) for row in rows], [float(row["time_s"]) for row in rows])


def prepare(catalog: Catalog) -> Rows:
    habits, runs = generation_habits(), generation_runs()
    asked = [generation_question(catalog, habits, run) for run in runs]
    fits = [bool(answer(question).fits) for question, _ in asked]
    kept = [i for i, fit in enumerate(fits) if fit]
    for i in set(range(len(runs))) - set(kept):
        print(f"does not fit, left aside: {runs[i].id}")
    return Rows(
        runs=[runs[i] for i in kept], questions=[asked[i][0] for i in kept], assumed=[asked[i][1] for i in kept]
    )


def step(slopes: Array, errors: Array, weights: Array, x: Array) -> Array:
    """One step of the weighted fit towards smaller errors and the prior."""
    start = np.log([START[name] for name in FITTED])
    robust = weights * np.minimum(1.0, OUTLIER / np.maximum(np.abs(errors), 1e-9))
    prior = PRIOR_WEIGHT / PRIOR_WIDTH**2
    left = slopes.T @ (robust[:, None] * slopes) + prior * np.eye(len(x))
    return np.clip(np.linalg.solve(left, slopes.T @ (robust * errors) + prior * (x - start)), -0.3, 0.3)


def fit(rows: Rows, layers: Layers) -> tuple[Array, Array, Array]:
    """Logarithms of the constants; errors and slopes there, those of the layers last."""
    everything, weights = range(len(rows.runs)), all_weights(rows, layers)

    def errors(x: Array) -> Array:
        values = dict(zip(FITTED, np.exp(x), strict=True))
        return np.concatenate([rows.logs(values, everything), layers.logs(values)])

    x = np.log([START[name] for name in FITTED])
    for _ in range(NUM_STEPS):
        now = errors(x)
        slopes = np.column_stack([(errors(x + TRIAL * np.eye(len(x))[i]) - now) / TRIAL for i in range(len(x))])
        change = step(slopes, now, weights, x)
        x = x - change
        print(f"mean error {np.mean(np.abs(np.expm1(now))):.1%}, largest change {np.abs(change).max():.3f}", flush=True)
        if np.abs(change).max() < 0.01:
            break
    return x, errors(x), slopes


def all_weights(rows: Rows, layers: Layers) -> Array:
    num = len(layers.batches)
    return np.concatenate([rows.weights(), np.full(num, 1.0 / num)])


def left_out_logs(
    rows: Rows, layers: Layers, x: Array, errors: Array, slopes: Array, name_of: Callable[[PublishedGeneration], str]
) -> Array:
    """Errors of each group under constants fitted to the others; the slopes at the whole fit serve for the steps."""
    names, weights = np.array([name_of(run) for run in rows.runs]), all_weights(rows, layers)
    left = np.empty(len(names))
    for name in dict.fromkeys(names):
        mine = names == name
        kept = np.concatenate([~mine, np.ones(len(layers.batches), dtype=bool)])
        moved = x.copy()
        for _ in range(NUM_STEPS):
            now = errors + slopes @ (moved - x)
            change = step(slopes[kept], now[kept], weights[kept], moved)
            moved = moved - change
            if np.abs(change).max() < 1e-3:
                break
        values = dict(zip(FITTED, np.exp(moved), strict=True))
        left[mine] = rows.logs(values, np.flatnonzero(mine).tolist())
    return left


def scores(logs: Array, inside: Array) -> dict[str, float | int]:
    frac = np.expm1(logs)
    return {
        "num_rows": len(frac),
        "mape_frac": round(float(np.abs(frac).mean()), 4),
        "median_ape_frac": round(float(np.median(np.abs(frac))), 4),
        "bias_frac": round(float(frac.mean()), 4),
        "coverage_frac": round(float(inside.mean()), 4),
    }


@dataclass(frozen=True)
class Residuals:
    """Logarithms of measured over predicted time, each source left out, over the power that the row's interval has."""

    logs: Array
    sources: Array
    is_first: Array

    def ends(self, kept: Array) -> tuple[float, float]:
        """5 and 95 % of some rows; a row counts with the fourth root of its source's rows, inverted."""
        sources = self.sources[kept]
        weights = np.array([float(np.sum(sources == s)) ** -0.25 for s in sources])
        low, high = (weighted_quantile(self.logs[kept], weights, tail) for tail in (TAIL, 1.0 - TAIL))
        return min(low, 0.0), max(high, 0.0)

    def are_inside(self, rows: Array, power: float) -> Array:
        """Which of some rows lie between the widened quantiles of the rates of other sources."""
        inside = np.zeros(len(self.logs), dtype=bool)
        for source in dict.fromkeys(self.sources):
            low, high = self.ends((self.sources != source) & ~self.is_first)
            mine = self.sources == source
            inside[mine] = (self.logs[mine] >= low * power) & (self.logs[mine] <= high * power)
        return inside[rows]

    def honest_power(self, rows: Array) -> float:
        """The least power of the quantiles with which 90 % of some rows of left-out sources are inside."""
        powers = np.arange(0.7, 3.0, 0.02)
        return float(next((p for p in powers if np.mean(self.are_inside(rows, p)) >= COVERAGE), powers[-1]))


def engine_power(residuals: Residuals, rows: Array, power: float) -> float:
    """The power with which 90 % of the rows of little known engines are inside, beside that of the others."""
    low, high = residuals.ends(~rows & ~residuals.is_first)
    logs = residuals.logs[rows]
    return float(np.quantile(np.where(logs < 0.0, logs / low, logs / high), COVERAGE)) / power


def main() -> None:
    parser = argparse.ArgumentParser(description="Fit generation.")
    parser.add_argument("--write", action="store_true", help="put the constants into the catalogue")
    parser.add_argument("--rows", action="store_true", help="print every row")
    args = parser.parse_args()
    catalog = Catalog((packaged_data(),))
    rows, layers = prepare(catalog), timed_layers(catalog)
    x, errors, slopes = fit(rows, layers)
    values = dict(zip(FITTED, (float(v) for v in np.exp(x)), strict=True))
    print({name: float(f"{value:.4g}") for name, value in values.items()})
    sources = np.array([run.document for run in rows.runs])
    first = np.array([run.measured.ttft_ms is not None for run in rows.runs])
    shown = {name: f"{value:.4g}" for name, value in values.items()}
    shown |= {n: f'"{values[n] * 1e6:.4g} us"' for n in values if n.endswith("_time")}
    inside = np.zeros(len(rows.runs))
    servings = [answer(question).generation.serving for question in rows.questions]
    few = np.array([unseen_engine(serving) is not None for serving in servings])
    powers = np.array([1.0 + s.machine.constants.unseen_widening.value * len(unseen_generation(s)) for s in servings])
    print(f"H200 layers: {np.mean(np.abs(np.expm1(errors[len(rows.runs) :]))):.1%}")
    body: dict[str, dict[str, dict[str, float | int]]] = {}
    for title, name_of in DIMENSIONS.items():
        left = left_out_logs(rows, layers, x, errors, slopes, name_of)
        if title == "source":
            known = Residuals(logs=(-left / powers)[~few], sources=sources[~few], is_first=first[~few])
            wider = engine_power(Residuals(logs=-left / powers, sources=sources, is_first=first), few,
                                 known.honest_power(~known.is_first))  # fmt: skip
            shown["generation_engine_power"], powers = f"{wider:.2g}", np.where(few, powers * wider, powers)
            residuals = Residuals(logs=-left / powers, sources=sources, is_first=first)
            for metric, mine in (("generation", ~first), ("first_token", first)):
                power = residuals.honest_power(mine)
                low, high = (float(np.exp(end * power)) for end in residuals.ends(~first))
                inside[mine] = residuals.are_inside(mine, power)
                print(f"{metric}: {low:.3f} to {high:.3f}, power {power:.2f}, {inside[mine].mean():.0%} inside")
                shown |= {f"{metric}_interval_low": f"{low:.3g}", f"{metric}_interval_high": f"{high:.3g}"}
            by_source = left
        names = np.array([name_of(run) for run in rows.runs])
        ends = {
            m: (float(shown[f"{m}_interval_low"]), float(shown[f"{m}_interval_high"]))
            for m in ("generation", "first_token")
        }
        low_of, high_of = (np.where(first, ends["first_token"][i], ends["generation"][i]) for i in (0, 1))
        held = inside if title == "source" else (np.exp(-left) >= low_of**powers) & (np.exp(-left) <= high_of**powers)
        body[title] = {name: scores(left[names == name], held[names == name]) for name in dict.fromkeys(names)}
        print(f"{title} left out: {np.mean(np.abs(np.expm1(left))):.1%} of {len(left)} rows")
        for name, result in body[title].items():
            print(f"  {name[:44]:44} {result['num_rows']:4}  {100 * result['mape_frac']:5.1f} %  bias "
                  f"{100 * result['bias_frac']:+5.1f} %  inside {100 * result['coverage_frac']:4.0f} %")  # fmt: skip
    if args.rows:
        for run, own, left_log in zip(rows.runs, errors, by_source, strict=False):
            print(f"{np.exp(own):5.2f} {np.exp(left_log):5.2f}  {run.id}")
    if args.write:
        write_constants(shown)
        write_document(left_out_path(), document(LEFT_OUT_KIND, body))


if __name__ == "__main__":
    main()
