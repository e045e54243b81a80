"""`plan`, `predict` and what follows from them use the factors of a training program in the same way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from calibration_cases import CPU_VALUES, GPU_VALUES, calibration, engine_fit
from planner_cases import CATALOG
from scalewright.catalog import calibration as calibrations
from scalewright.engines.expressed import plan_for_framework
from scalewright.engines.imported import stack_of
from scalewright.planner.answer import Answer, answer, changed
from scalewright.planner.plan_report import PlanReport
from scalewright.planner.question import ask
from scalewright.planner.request import PlanOptions

MODEL = "layers=8,hidden=1024,heads=8,vocab=8192,seq=1024"
NAMED = "qwen3-0.6b"
"""A model that every framework has."""
FIXED = "tp=1,pp=1,cp=1,dp=1,mbs=1,recompute=none"
GPU, CPU = "fitted-gpu", "fitted-cpu"


@pytest.fixture(autouse=True)
def fitted_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A calibrated GPU and a calibrated CPU with factors of some programs."""
    monkeypatch.setenv("SCALEWRIGHT_HOME", str(tmp_path))
    fits: list[Any] = [
        engine_fit("deepspeed", "eager", host=2.0, elementwise=3.0),
        engine_fit("torchtitan", "compiled", host=1.5, elementwise=1.5),
        engine_fit("huggingface", "eager", elementwise=2.0),
    ]
    stored = [fit.model_dump(mode="json") for fit in fits]
    calibrations.write(calibration(*GPU_VALUES, device="cuda", name=GPU, engines=stored))
    on_cpu = [engine_fit("megatron", "eager", host=1.7).model_dump(mode="json")]
    calibrations.write(calibration(*CPU_VALUES, name=CPU, engines=on_cpu))


def planned(
    *, framework: str | None = None, system: str = GPU, what_if: str | None = None, precision: str = "bf16",
    stack: str = "auto", model: str = MODEL, zero: int = 0,
) -> PlanReport:  # fmt: skip
    options = PlanOptions(
        model=model, seq=1024, global_batch=1, gpus=1, fix=f"{FIXED},zero={zero}", steps=10, precision=precision,
        stack=stack,
    )  # fmt: skip
    return plan_for_framework(CATALOG, [system], options, framework=framework, what_if_text=what_if)


def best(report: PlanReport) -> Answer:
    assert report.plan.best is not None
    return report.plan.best


def predicted(stack: str, *, system: str = GPU, precision: str = "bf16") -> Answer:
    layout = f"{FIXED},gbs=1,zero=0"
    return answer(ask(CATALOG, model=MODEL, system=system, layout=layout, precision=precision, stack=stack,
                      checkpoint="async"))  # fmt: skip


@pytest.mark.parametrize("stack", ["deepspeed", "torchtitan", "huggingface", "trl", "eager", "compiled"])
def test_a_plan_takes_the_time_of_the_prediction(stack: str) -> None:
    plan, prediction = best(planned(stack=stack)), predicted(stack)
    assert plan.time_s == pytest.approx(prediction.time_s)
    assert plan.question.stack == prediction.question.stack


@pytest.mark.parametrize(
    ("framework", "stack", "entry", "zero"),
    [("deepspeed", "deepspeed", "eager", 1), ("torchtitan", "torchtitan", "compiled", 0),
     ("fsdp", "huggingface", "eager", 2)],
)  # fmt: skip
def test_a_plan_for_a_framework_has_the_factors_of_its_engine(
    framework: str, stack: str, entry: str, zero: int
) -> None:
    report = planned(framework=framework, model=NAMED, zero=zero)
    assert best(report).question.stack.id == stack
    assert report.emitted is not None
    assert report.emitted["stack"] == stack
    assert best(report).time_s > best(planned(stack=entry, model=NAMED, zero=zero)).time_s


def test_factors_fitted_with_another_stack_do_not_count_for_a_framework() -> None:
    stored = engine_fit("torchtitan", "eager", elementwise=1.5).model_dump(mode="json")
    calibrations.write(calibration(*GPU_VALUES, device="cuda", name=GPU, engines=[stored]))
    assert best(planned(framework="torchtitan", model=NAMED)).question.stack.id == "compiled"


def test_an_engine_fitted_on_a_cpu_has_its_factors_there() -> None:
    plain, fitted = (best(planned(system=CPU, precision="fp32", stack=stack)) for stack in ("eager", "megatron"))
    assert fitted.question.stack.id == "megatron"
    assert fitted.time_s > plain.time_s
    assert fitted.time_s == pytest.approx(predicted("megatron", system=CPU, precision="fp32").time_s)


def test_what_if_looks_the_engine_up_in_the_same_way() -> None:
    change = planned(stack="eager", what_if="stack=deepspeed").change
    assert change is not None
    assert change.after.question.stack.id == "deepspeed"
    assert changed(predicted("eager").question, "stack=deepspeed").stack == predicted("deepspeed").question.stack


@pytest.mark.parametrize(
    ("dialect", "stack"), [("deepspeed", "deepspeed"), ("torchtitan", "torchtitan"), ("nemo", "auto")]
)
def test_an_imported_log_has_the_stack_of_the_engine_that_wrote_it(dialect: str, stack: str) -> None:
    assert stack_of(dialect) == stack
