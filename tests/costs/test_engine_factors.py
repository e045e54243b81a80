"""Factors of a training program: each moves its own terms of the step, and only the steps of that program."""

from __future__ import annotations

import re
from typing import Any

import pytest

from calibration_cases import GPU_VALUES, calibration
from calibration_cases import engine_fit as fit
from scalewright.catalog.calibration import Calibration, EngineFit
from scalewright.catalog.library import Catalog, packaged_data
from scalewright.costs.machine.calibrated import machine_from_calibration
from scalewright.errors import UnknownNameError
from scalewright.planner.answer import Answer, answer
from scalewright.planner.question import ask

CATALOG = Catalog((packaged_data(),))
SMALL = "layers=12,hidden=768,heads=12,vocab=8192,seq=512"
LARGE = "layers=8,hidden=2048,heads=16,vocab=32000,seq=4096"


def with_fit(*fits: EngineFit) -> Calibration:
    return calibration(*GPU_VALUES, device="cuda", engines=[one.model_dump(mode="json") for one in fits])


def predicted(model: str, stack: str, *fits: EngineFit) -> Answer:
    machine = machine_from_calibration(CATALOG, with_fit(*fits))
    return answer(ask(CATALOG, model=model, system=machine, layout="mbs=4", precision="bf16", stack=stack))


def term_s(prediction: Answer, *names: str) -> float:
    part: Any = prediction.time
    for name in names:
        part = part.part(name)
    return float(part.total)


def test_a_program_without_factors_costs_what_its_stack_costs() -> None:
    assert predicted(LARGE, "deepspeed", fit()).time_s == predicted(LARGE, "eager").time_s


def test_factors_apply_to_that_program_only() -> None:
    slow = fit(elementwise=2.0)
    assert predicted(LARGE, "eager", slow).time_s == predicted(LARGE, "eager").time_s
    assert predicted(LARGE, "deepspeed", slow).time_s > predicted(LARGE, "eager").time_s


@pytest.mark.parametrize(
    ("name", "model"), [("elementwise", LARGE), ("attention", LARGE), ("update", LARGE), ("host", SMALL)]
)
def test_a_larger_factor_makes_the_step_slower(name: str, model: str) -> None:
    factors: list[dict[str, Any]] = [{name: factor} for factor in (0.5, 1.0, 2.0)]
    times_s = [predicted(model, "deepspeed", fit(**one)).time_s for one in factors]
    assert times_s == sorted(times_s)
    assert times_s[0] < times_s[2]


def test_the_optimizers_term_is_multiplied_by_its_factor() -> None:
    plain, doubled = (predicted(LARGE, "deepspeed", fit(update=factor)) for factor in (1.0, 2.0))
    names = ("update", "optimizer")
    assert term_s(doubled, *names) == pytest.approx(2.0 * term_s(plain, *names))


def test_the_fit_says_which_stack_it_multiplies() -> None:
    eager = predicted(LARGE, "torchtitan", fit("torchtitan", "eager"))
    compiled = predicted(LARGE, "torchtitan", fit("torchtitan", "compiled"))
    assert eager.time_s == predicted(LARGE, "eager").time_s
    assert compiled.time_s == predicted(LARGE, "compiled").time_s


def test_a_prediction_with_factors_has_another_id() -> None:
    assert predicted(LARGE, "deepspeed", fit()).id != predicted(LARGE, "deepspeed", fit(host=2.0)).id


def test_an_unknown_program_is_refused_with_or_without_factors() -> None:
    with pytest.raises(UnknownNameError, match="no-such-engine"):
        predicted(LARGE, "no-such-engine", fit())


@pytest.mark.parametrize("engine", ["deepspeed", "trl"])
def test_factors_of_the_catalogue_count_on_gpus_until_a_fit_replaces_them(engine: str) -> None:
    shipped, eager = predicted(LARGE, engine), predicted(LARGE, "eager")
    assert shipped.time_s > eager.time_s
    assert predicted(LARGE, engine, fit(engine)).time_s == eager.time_s
    on_cpu = [
        answer(ask(CATALOG, model=SMALL, system="laptop", layout="mbs=1", precision="fp32", stack=stack)).time_s
        for stack in (engine, "eager")
    ]
    assert on_cpu[0] == on_cpu[1]


def test_factors_of_the_catalogue_say_which_release_they_were_fitted_on() -> None:
    for name in CATALOG.ids("stacks"):
        for factors in CATALOG.stack(name).engine_factors.values():
            assert re.search(r"\d+\.\d+", factors.fitted_on)
