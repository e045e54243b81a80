"""The fit of a training program's factors: known factors are found again, and runs left out are predicted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration_cases import GPU_VALUES, calibration
from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs.machine.calibrated import machine_from_calibration
from scalewright.costs.machine.stack_costs import EngineStack, StackFactors
from scalewright.observe.engine_fit import SPREADS, FittedEngine, engine_step_s, fit_engine
from scalewright.observe.residuals import RealStep
from scalewright.study.calibration.engine_points import GPU_POINTS, EnginePoint
from scalewright.workload.engine_run import EngineRun, from_document
from scalewright.workload.layout import parse_layout
from scalewright.workload.named import resolve_model

CATALOG = Catalog((packaged_data(),))
BASE = machine_from_calibration(CATALOG, calibration(*GPU_VALUES, device="cuda"))
LLAMA = resolve_model(CATALOG, "llama-tiny").transformer


def run_of(point: EnginePoint) -> EngineRun:
    sizes = {"layers": point.layers, "hidden": point.hidden, "heads": point.heads, "kv_heads": point.heads,
             "head_dim": point.hidden // point.heads, "ffn_hidden": point.ffn, "vocab": point.vocab,
             "seq": point.seq}  # fmt: skip
    return EngineRun(
        engine="deepspeed", model_id=point.name, shape=LLAMA.model_copy(update=sizes), precision="bf16",
        layout=parse_layout(point.layout(1, 1)),
    )  # fmt: skip


def true_s(run: EngineRun, factors: Mapping[str, float]) -> float:
    named = {f"{name}_factor": factor for name, factor in factors.items()}
    stack = EngineStack(stack="eager", release="", factors=StackFactors(**named))
    return engine_step_s(CATALOG, run, replace(BASE, engine_stacks={"deepspeed": stack}))


def fitted(factors: Mapping[str, float], *, noise: tuple[float, ...] = (1.0,) * 5) -> FittedEngine:
    """The fit to runs whose times follow from known factors."""
    steps = []
    for point, error in zip(GPU_POINTS, noise, strict=True):
        run = run_of(point)
        time_s = error * true_s(run, factors)
        steps.append(RealStep(
            run=point.name, workload="language", label=point.name, num_ranks=1, num_steps=9, precision="bf16",
            size=float(point.hidden), measured_s=time_s, low_s=time_s, high_s=time_s,
            predicted_s=partial(engine_step_s, CATALOG, run),
        ))  # fmt: skip
    return fit_engine(steps, engine="deepspeed", stack="eager", machine_of=lambda _: BASE)


USUAL = {name: st.floats(math.exp(-spread), math.exp(spread)) for name, spread in SPREADS.items()}
FACTORS = st.sampled_from(["update", "attention"]).flatmap(
    lambda third: st.fixed_dictionaries({}, optional={name: USUAL[name] for name in ("host", "elementwise", third)})
)
"""As many as a fit can tell apart, within what is usual: it holds factors to that."""


@settings(max_examples=4, deadline=None, derandomize=True)
@given(FACTORS)
def test_times_of_known_factors_are_given_back(factors: dict[str, float]) -> None:
    steps = fitted(factors).steps
    worst = max(abs(math.log(step.after_s / step.measured_s)) for step in steps)
    assert worst < 0.1
    assert worst <= max(abs(math.log(step.before_s / step.measured_s)) for step in steps) + 1e-9


def test_other_shapes_are_predicted_with_factors_that_noisy_runs_gave() -> None:
    factors = {"host": 1.8, "elementwise": 1.4, "update": 2.0}
    fit = fitted(factors, noise=(1.02, 0.98, 1.01, 0.99, 1.01))
    other = run_of(EnginePoint(layers=24, hidden=1024, heads=16, ffn=2816, vocab=32000, seq=2048, batch=8))
    found: dict[str, float] = {factor.name: factor.factor for factor in fit.factors}
    assert true_s(other, found) == pytest.approx(true_s(other, factors), rel=0.06)
    assert abs(true_s(other, {}) / true_s(other, factors) - 1.0) > 0.1


def test_runs_that_stack_and_machine_explain_get_no_factor() -> None:
    fit = fitted({})
    assert fit.factors == ()
    assert all(step.before_s == pytest.approx(step.after_s) for step in fit.steps)


def test_at_most_three_factors_each_between_its_bounds() -> None:
    fit = fitted({"host": 2.5, "elementwise": 2.0, "attention": 1.7, "update": 3.0})
    assert len(fit.factors) <= 3
    assert all(factor.low <= factor.factor <= factor.high for factor in fit.factors)


def test_a_run_left_out_is_predicted_by_the_others_alone() -> None:
    """One run is three times as slow as its factors say: it cannot help to predict itself."""
    fit = fitted({"elementwise": 1.5}, noise=(1.0, 1.0, 1.0, 1.0, 3.0))
    odd = fit.steps[-1]
    assert odd.left_out_s < 0.6 * odd.measured_s
    assert abs(math.log(odd.after_s / odd.measured_s)) < abs(math.log(odd.left_out_s / odd.measured_s))


def test_a_run_comes_back_from_its_document() -> None:
    run = replace(run_of(GPU_POINTS[0]), settings={"a": "b"}, extra_args=("--x",))
    again = from_document(run.document(), where="config.json")
    assert again.document() == run.document()
