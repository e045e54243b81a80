"""Rates of generation from measured steps of our engine: decode over batch and context, prompts over their length.

The rates are those that the formula of an iteration takes (`costs.generation.iteration`). They are fitted to the
logarithms of all measured times at once, held near what the catalogue has where nothing measured says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from scalewright.catalog.calibration import GenerationStep, Interval, Value, ValueName
from scalewright.catalog.types import Precision, Stack
from scalewright.costs.generation import STORED_BYTES, Serving, iteration
from scalewright.costs.machine import Machine
from scalewright.costs.machine.calibrated import generation_rates_of
from scalewright.costs.machine.generation_rates import GenerationRates
from scalewright.observe.calibrate import BenchmarkRun, Row
from scalewright.observe.residuals import interval
from scalewright.workload.language_run import restored_shape
from scalewright.workload.precision import recipe

Floats = NDArray[np.float64]
MIN_ROWS = 6
"""Measured steps that a fit needs."""
NUM_NEWTON_STEPS, SMALL_STEP, LARGEST_MOVE, CLOSE_ENOUGH = 60, 1e-3, 0.7, 1e-4
FIRST_DAMPING, MOST_DAMPING = 1e-3, 1e6
NOISE = 0.03
"""Of a measured step, as a logarithm; the widths below are too."""
RATE_WIDTH, TIME_WIDTH, ROOF_WIDTH = 4.0, 1.0, 0.05
"""How far a rate may be from the catalogue's; how far a time of the host or of a layer, and the blend; and how far a
rate may be above what the machine reaches where it does nothing else."""
MOST_LEVERAGE = 0.95
MOST_DEVIATION = 2.3
"""A rate that no step shows may be ten times smaller or larger: more is said of none."""
SHARED: tuple[ValueName, ...] = (
    "decode_layer_s", "decode_step_s", "decode_sequence_s",
    "prompt_layer_s", "product_blend",
)  # fmt: skip
PROMPT_RATE: ValueName = "prompt_flop_per_s"
WEIGHT_RATE: ValueName = "decode_weight_bytes_per_s"
"""One for each batch and width of weights that was measured: few rows have other kernels than many."""
CACHE_RATE: ValueName = "decode_cache_bytes_per_s"
"""One for each width of cached elements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedGeneration:
    """Rates as values of a calibration, the steps they come from, and the intervals that follow."""

    values: tuple[Value, ...] = ()
    steps: tuple[GenerationStep, ...] = ()
    generation_interval: Interval | None = None
    first_token_interval: Interval | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _MeasuredStep:
    """One row, and how the same is predicted."""

    run: str
    row: Row
    serving: Serving
    num_ranks: int = 1
    """That measured at the same time."""

    @property
    def precision(self) -> str:
        return str(self.row["precision"])

    @property
    def label(self) -> str:
        row = self.row
        together = f", {self.num_ranks} ranks" if self.num_ranks > 1 else ""
        size = f"{row['layers']} x {row['hidden']}, {row['precision']}{together}"
        if row["phase"] == "decode":
            return f"{size}, batch {row['batch']}, {row['context']:.0f} tokens"
        return f"{size}, prompt of {row['num_tokens']}"

    def predicted_s(self, rates: GenerationRates) -> float:
        serving = replace(self.serving, machine=replace(self.serving.machine, generation=rates))
        if self.row["phase"] == "decode":
            step = iteration(serving, num_sequences=float(self.row["batch"]), num_context=float(self.row["context"]))
            return float(step.total)
        tokens = float(self.row["num_tokens"])
        chunks = -(-tokens // float(self.row["chunk"]))
        read = iteration(
            serving, num_sequences=0.0, num_context=0.0, num_prompt_tokens=tokens / chunks, prompt_len=tokens
        )
        return chunks * float(read.total)


def unfitted_words(fitted: FittedGeneration, sources: Sequence[BenchmarkRun]) -> list[str]:
    """That decode steps were measured, but too few of them for a fit."""
    rows = [row for source in sources if source.measurements.kind == "decode" for row in source.measurements.rows]
    if fitted.steps or not any(source.measurements.kind == "decode" for source in sources):
        return []
    num = sum(row["phase"] == "decode" for row in rows)
    return [
        f"{num} decode steps are too few to fit generation, which is predicted without them: give a longer --budget"
    ]


def fit_generation(
    machine_of: Callable[[int], Machine], stack: Stack, sources: Sequence[BenchmarkRun]
) -> FittedGeneration:
    """The rates that these runs show; nothing where too few steps were measured.

    Ranks that share a CPU have rates of their own, fitted to the runs of as many ranks; `machine_of` gives a machine
    as one of so many ranks has it.
    """
    decode = [source for source in sources if source.measurements.kind == "decode"]
    fits = [
        _fit_ranks(machine_of(num_ranks), stack, [source for source in decode if source.num_ranks == num_ranks])
        for num_ranks in sorted({source.num_ranks for source in decode})
    ]
    values = tuple(value for fit in fits for value in fit.values)
    rows = tuple(row for fit in fits for row in fit.steps)
    steps, prompts = ([row for row in rows if row.phase == phase] for phase in ("decode", "prefill"))
    num_each = len(values) // max(sum(bool(fit.values) for fit in fits), 1)
    return FittedGeneration(
        values=values, steps=rows,
        generation_interval=interval(steps, num_factors=min(5, num_each)) if values else None,
        first_token_interval=interval(prompts, num_factors=min(2, num_each)) if values else None,
    )  # fmt: skip


def _fit_ranks(machine: Machine, stack: Stack, sources: Sequence[BenchmarkRun]) -> FittedGeneration:
    """Rates and steps of runs with the same number of ranks."""
    steps = [
        _MeasuredStep(run=source.run, row=row, num_ranks=source.num_ranks,
                      serving=_serving(machine, stack, source, str(row["precision"])))
        for source in sources
        for row in source.measurements.rows
    ]  # fmt: skip
    names = _names(steps)
    if len([step for step in steps if step.row["phase"] == "decode"]) < MIN_ROWS or len(steps) <= len(names):
        return FittedGeneration()
    fit = _fit(steps, _start(machine, steps, names), names, roofs=_roofs(machine, names))
    runs = tuple(dict.fromkeys(step.run for step in steps))
    values = tuple(
        Value(name=name, of=of, num_ranks=steps[0].num_ranks, value=float(value), low=float(value / spread),
              high=float(value * spread), num_rows=len(steps), runs=runs)
        for (name, of), value, spread in zip(names, np.exp(fit.logs), np.exp(fit.deviations), strict=True)
    )  # fmt: skip
    rows = tuple(
        GenerationStep(
            run=step.run, phase=step.row["phase"], label=step.label, precision=step.precision,
            measured_s=float(step.row["time_s"]), after_s=float(after), left_out_s=float(left_out),
        )
        for step, after, left_out in zip(steps, fit.after_s, fit.left_out_s, strict=True)
    )  # fmt: skip
    return FittedGeneration(values=values, steps=rows)


def _serving(machine: Machine, stack: Stack, source: BenchmarkRun, precision: str) -> Serving:
    shape = restored_shape(source.measurements.summary["shape"], where=source.run)
    chosen = recipe(precision)
    return Serving(
        shape=shape, machine=machine, stack=stack, recipe=chosen, tp=1, weight_bytes=STORED_BYTES[precision],
        cache_bytes=chosen.activation_bytes,
    )  # fmt: skip


def _names(steps: Sequence[_MeasuredStep]) -> list[tuple[ValueName, str]]:
    decode = [step for step in steps if step.row["phase"] == "decode"]
    weights = sorted({(step.serving.weight_bytes, int(step.row["batch"])) for step in decode})
    return [
        *((WEIGHT_RATE, f"{batch} {width:g}") for width, batch in weights),
        *((CACHE_RATE, f"{width:g}") for width in sorted({step.serving.cache_bytes for step in decode})),
        *((name, "") for name in SHARED),
        *((PROMPT_RATE, of) for of in dict.fromkeys(recipe(step.precision).matmul for step in steps)),
    ]


def _start(machine: Machine, steps: Sequence[_MeasuredStep], names: Sequence[tuple[ValueName, str]]) -> Floats:
    """What the catalogue's shares give before anything of generation is measured."""
    usual = replace(steps[0].serving, machine=replace(machine, generation=None)).rates
    known: dict[str, float] = {
        "decode_weight_bytes_per_s": usual.weight_bytes_per_s, "decode_cache_bytes_per_s": usual.cache_bytes_per_s,
        "decode_layer_s": usual.layer_s, "decode_step_s": usual.step_s, "decode_sequence_s": usual.sequence_s,
        "prompt_layer_s": usual.prompt_layer_s, "product_blend": usual.blend,
    }  # fmt: skip
    rates = [
        machine.sustained_flop_per_s(cast(Precision, of)) if name == PROMPT_RATE else known[name] for name, of in names
    ]
    logs: Floats = np.log(np.array(rates))
    return logs


def _roofs(machine: Machine, names: Sequence[tuple[ValueName, str]]) -> Floats:
    """The most that a rate can be, as logarithms. Small models of a CPU lie in its caches: no roof is known there."""
    if machine.accelerator.kind == "cpu":
        return np.full(len(names), np.inf)
    most = {WEIGHT_RATE: machine.hbm_bytes_per_s, CACHE_RATE: machine.hbm_bytes_per_s}
    rates = [
        machine.peak_flop_per_s(cast(Precision, of)) if name == PROMPT_RATE else most.get(name, np.inf)
        for name, of in names
    ]
    logs: Floats = np.log(np.array(rates))
    return logs


def _rates(table: dict[tuple[ValueName, str], float]) -> GenerationRates:
    return generation_rates_of(lambda name, of: table[name, of], list(table))


@dataclass(frozen=True, slots=True, kw_only=True)
class _GenerationFit:
    logs: Floats
    deviations: Floats
    after_s: Floats
    left_out_s: Floats


def _fit(
    steps: Sequence[_MeasuredStep], start: Floats, names: Sequence[tuple[ValueName, str]], *, roofs: Floats
) -> _GenerationFit:
    """Least squared log error, damped as Levenberg and Marquardt do; left-out errors follow from the leverage."""
    target = np.log([float(step.row["time_s"]) for step in steps])
    near = np.array([(NOISE / (TIME_WIDTH if name in SHARED else RATE_WIDTH)) ** 2 for name, _ in names])

    def predicted(logs: Floats) -> Floats:
        rates = _rates({name: float(value) for name, value in zip(names, np.exp(logs), strict=True)})
        return np.log([step.predicted_s(rates) for step in steps])

    def below(logs: Floats) -> Floats:
        """How much being above a roof weighs: nothing below it."""
        return np.where(logs > roofs, (NOISE / ROOF_WIDTH) ** 2, 0.0)

    def above(logs: Floats) -> Floats:
        return np.maximum(logs - roofs, 0.0)

    def cost(logs: Floats, now: Floats) -> float:
        prior = near * (logs - start) ** 2 + below(logs) * above(logs) ** 2
        return float(np.sum((target - now) ** 2) + np.sum(prior))

    logs, num, damping = start.copy(), len(start), FIRST_DAMPING
    now = predicted(logs)
    for _ in range(NUM_NEWTON_STEPS):
        moved = [predicted(logs + step) for step in np.eye(num) * SMALL_STEP]
        slopes = np.stack([(there - now) / SMALL_STEP for there in moved], axis=1)
        normal = slopes.T @ slopes + np.diag(near + below(logs))
        downhill = slopes.T @ (target - now) - near * (logs - start) - below(logs) * above(logs)
        while damping < MOST_DAMPING:
            move = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), downhill)
            there = predicted(logs + np.clip(move, -LARGEST_MOVE, LARGEST_MOVE))
            if cost(logs + np.clip(move, -LARGEST_MOVE, LARGEST_MOVE), there) < cost(logs, now):
                break
            damping *= 4.0
        else:
            break  # no direction leads further down
        logs, now, damping = logs + np.clip(move, -LARGEST_MOVE, LARGEST_MOVE), there, damping / 8.0
        if float(np.abs(move).max()) < CLOSE_ENOUGH:
            break
    error = target - now
    inverse = np.linalg.inv(normal)
    leverage = np.minimum(np.einsum("ij,jk,ik->i", slopes, inverse, slopes), MOST_LEVERAGE)
    variance = float(error @ error) / max(len(steps) - num, 1)
    return _GenerationFit(
        logs=logs, deviations=np.minimum(np.sqrt(np.diag(inverse) * variance), MOST_DEVIATION), after_s=np.exp(now),
        left_out_s=np.exp(target - error / (1.0 - leverage)),
    )  # fmt: skip
