"""Rates of generation come back from steps that were made with them, and a machine made of them predicts others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from scalewright.catalog.library import open_catalog
from scalewright.costs.generation import STORED_BYTES, Serving, iteration
from scalewright.costs.machine import Machine, machine_from_system
from scalewright.costs.machine.calibrated import generation_rates_of
from scalewright.costs.machine.generation_rates import GenerationRates
from scalewright.observe.calibrate import BenchmarkRun
from scalewright.observe.generation_fit import FittedGeneration, fit_generation, unfitted_words
from scalewright.records.measurements import Measurements
from scalewright.workload.language_run import shape_document
from scalewright.workload.model import from_shape
from scalewright.workload.precision import recipe

CATALOG = open_catalog()
STACK = CATALOG.stack("eager")
SHAPES = ("layers=24,hidden=2048,heads=16,vocab=50304", "layers=12,hidden=4096,heads=32,kv_heads=8,vocab=32000")
TRUE = GenerationRates(
    matmul_flop_per_s={"bf16": 5e14}, weight_bytes_per_s=4.1e12, cache_bytes_per_s=3.3e12, layer_s=12e-6,
    prompt_layer_s=90e-6, step_s=150e-6, sequence_s=2e-6, blend=3.0,
)  # fmt: skip


def machine(num_ranks: int = 1) -> Machine:
    del num_ranks
    return machine_from_system(CATALOG, "generic-h200")


def serving(shape: str, rates: GenerationRates | None) -> Serving:
    return Serving(
        shape=from_shape(shape).transformer, machine=replace(machine(), generation=rates), stack=STACK,
        recipe=recipe("bf16"), tp=1, weight_bytes=STORED_BYTES["bf16"], cache_bytes=2.0,
    )  # fmt: skip


def decode_s(shape: str, rates: GenerationRates, batch: int, context: float) -> float:
    return float(iteration(serving(shape, rates), num_sequences=batch, num_context=context).total)


def run_of(shape: str, *, noise: float, seed: int) -> BenchmarkRun:
    """A benchmark of a device that has exactly these rates, read with some noise."""
    rng, size = np.random.default_rng(seed), from_shape(shape).transformer
    common = {"precision": "bf16", "layers": size.layers, "hidden": size.hidden}
    rows: list[dict[str, Any]] = [
        common | {"phase": "decode", "batch": b, "context": c,
                  "time_s": decode_s(shape, TRUE, b, c) * float(np.exp(noise * rng.normal()))}
        for b in (1, 8, 64) for c in (256, 1024, 2048)
    ]  # fmt: skip
    for tokens in (128, 512, 2048):
        once = iteration(
            serving(shape, TRUE), num_sequences=0.0, num_context=0.0, num_prompt_tokens=tokens, prompt_len=tokens
        )
        time_s = float(once.total) * float(np.exp(noise * rng.normal()))
        rows.append(common | {"phase": "prefill", "batch": 1, "num_tokens": tokens, "chunk": 4096, "time_s": time_s})
    measurements = Measurements(
        kind="decode", device={"type": "cuda"}, versions={}, rows=rows, summary={"shape": shape_document(size)}
    )
    return BenchmarkRun(run=f"decode-{size.layers}", measurements=measurements)


def fitted(*, noise: float = 0.0) -> FittedGeneration:
    return fit_generation(machine, STACK, [run_of(s, noise=noise, seed=n) for n, s in enumerate(SHAPES)])


def rates_of(fit: FittedGeneration) -> GenerationRates:
    values = {(value.name, value.of): value.value for value in fit.values}
    return generation_rates_of(lambda name, of: values[name, of], list(values))


@pytest.mark.parametrize(("batch", "context"), [(1, 4000), (4, 600), (24, 700), (128, 1500)])
def test_fitted_rates_predict_steps_of_another_model(batch: int, context: float) -> None:
    other, rates = "layers=32,hidden=3072,heads=24,vocab=32000", rates_of(fitted())
    assert rates.cache_bytes_per_s == pytest.approx(TRUE.cache_bytes_per_s, rel=0.05)
    assert decode_s(other, rates, batch, context) == pytest.approx(decode_s(other, TRUE, batch, context), rel=0.05)


def test_noisy_steps_are_given_back_within_their_noise_and_the_interval_says_so() -> None:
    fit = fitted(noise=0.03)
    errors = [abs(step.left_out_s / step.measured_s - 1.0) for step in fit.steps]
    assert float(np.mean(errors)) < 0.06
    assert fit.generation_interval is not None
    assert 0.7 < fit.generation_interval.low_frac < 0.975
    assert 1.025 < fit.generation_interval.high_frac < 1.4
    assert {step.phase for step in fit.steps} == {"decode", "prefill"}


def test_ranks_that_share_a_cpu_have_rates_of_their_own() -> None:
    """Two ranks measured at once, each at 0.7 of what one has alone: more than the half that dividing would give."""
    alone = [run_of(shape, noise=0.0, seed=n) for n, shape in enumerate(SHAPES)]
    together = [
        replace(
            run,
            run=f"{run.run}-2",
            measurements=replace(
                run.measurements, device={"type": "cuda", "num_ranks": 2},
                rows=[row | {"time_s": row["time_s"] / 0.7} for row in run.measurements.rows],
            ),
        )
        for run in alone
    ]  # fmt: skip
    fit = fit_generation(machine, STACK, [*alone, *together])
    by_ranks = {
        num_ranks: rates_of(replace(fit, values=tuple(value for value in fit.values if value.num_ranks == num_ranks)))
        for num_ranks in (1, 2)
    }
    other = "layers=32,hidden=3072,heads=24,vocab=32000"
    for batch, context in ((4, 600), (24, 700)):
        one_s, two_s = (decode_s(other, by_ranks[num_ranks], batch, context) for num_ranks in (1, 2))
        assert two_s == pytest.approx(one_s / 0.7, rel=0.05)
    assert len({step.label for step in fit.steps}) == len(fit.steps)
    assert sum(", 2 ranks" in step.label for step in fit.steps) * 2 == len(fit.steps)


H200_STEPS_S = {
    (1, 516): 1.268e-3, (1, 1028): 1.295e-3, (1, 2052): 1.355e-3, (1, 4100): 1.459e-3, (8, 516): 1.945e-3,
    (8, 1028): 2.124e-3, (8, 2052): 2.480e-3, (8, 4099): 3.178e-3, (32, 516): 2.599e-3, (32, 1027): 3.302e-3,
    (32, 2050): 4.675e-3, (32, 4096): 7.427e-3, (64, 515): 3.517e-3, (64, 1026): 4.874e-3, (64, 2048): 7.564e-3,
}  # fmt: skip
"""Measured with our engine on one H200 (torch 2.11.0, CUDA 13.0): GPT-3 1.3B in bf16, by batch and context."""


def test_steps_of_an_h200_are_predicted_from_the_steps_of_other_batches() -> None:
    shape = CATALOG.model("gpt3-1.3b").transformer
    assert shape is not None
    common = {"phase": "decode", "precision": "bf16", "layers": shape.layers, "hidden": shape.hidden}
    rows = [
        common | {"batch": batch, "context": context, "time_s": time_s}
        for (batch, context), time_s in H200_STEPS_S.items()
        if batch != 32
    ]
    measurements = Measurements(
        kind="decode", device={"type": "cuda"}, versions={}, rows=rows, summary={"shape": shape_document(shape)}
    )
    fit = fit_generation(machine, STACK, [BenchmarkRun(run="h200", measurements=measurements)])
    own = replace(serving(SHAPES[0], rates_of(fit)), shape=shape)
    for (batch, context), time_s in H200_STEPS_S.items():
        predicted_s = float(iteration(own, num_sequences=batch, num_context=context).total)
        assert predicted_s == pytest.approx(time_s, rel=0.1), (batch, context)


H200_FP8_STEPS_S = {
    (1, 516): 1.065e-3, (1, 2052): 1.152e-3, (8, 516): 2.066e-3, (8, 2052): 2.579e-3, (64, 515): 4.308e-3,
    (64, 2048): 8.358e-3,
}  # fmt: skip
"""The same with fp8 weights, which this engine's first kernels converted slowly."""


def test_weights_of_each_width_have_rates_of_their_own() -> None:
    shape = CATALOG.model("gpt3-1.3b").transformer
    assert shape is not None
    common = {"phase": "decode", "layers": shape.layers, "hidden": shape.hidden}
    rows = [
        common | {"precision": precision, "batch": batch, "context": context, "time_s": time_s}
        for precision, steps in (("bf16", H200_STEPS_S), ("fp8", H200_FP8_STEPS_S))
        for (batch, context), time_s in steps.items()
    ]
    measurements = Measurements(
        kind="decode", device={"type": "cuda"}, versions={}, rows=rows, summary={"shape": shape_document(shape)}
    )
    fit = fit_generation(machine, STACK, [BenchmarkRun(run="h200", measurements=measurements)])
    assert len(fit.steps) == 21
    for step in fit.steps:
        assert step.left_out_s == pytest.approx(step.measured_s, rel=0.1), step.label
    rates = rates_of(fit)
    narrow, wide = (rates.weight_rate_bytes_per_s(64.0, width_bytes=width) for width in (1.0, 2.0))
    assert narrow < wide
    assert rates.weight_rate_bytes_per_s(64.0, width_bytes=4.0) == wide  # the nearest that was measured


def test_too_few_steps_are_no_basis() -> None:
    run = run_of(SHAPES[0], noise=0.0, seed=0)
    short = replace(run, measurements=replace(run.measurements, rows=run.measurements.rows[:4]))
    assert fit_generation(machine, STACK, [short]) == FittedGeneration()


def test_too_few_decode_steps_are_said() -> None:
    whole = run_of(SHAPES[0], noise=0.0, seed=0)
    few = replace(whole, measurements=replace(whole.measurements, rows=whole.measurements.rows[:3]))
    fit = fit_generation(machine, STACK, [few])
    assert not fit.steps
    (words,) = unfitted_words(fit, [few])
    assert words.startswith("3 decode steps are too few to fit generation")
    assert unfitted_words(fitted(), [whole]) == []
    assert unfitted_words(fit, []) == []
