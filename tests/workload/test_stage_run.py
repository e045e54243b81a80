"""A stage's configuration: it survives its document, and what cannot be trained is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scalewright.errors import ConfigError
from scalewright.workload.flop import training_flop_per_sample
from scalewright.workload.generate_run import SamplingSettings
from scalewright.workload.layout import Layout
from scalewright.workload.model import from_shape
from scalewright.workload.reasoning import stage_run
from scalewright.workload.reasoning.counted_work import ModelWork
from scalewright.workload.reasoning.policy_loss import policy_loss
from scalewright.workload.reasoning.stage_run import (
    DistillSettings,
    EngineSettings,
    GenerateSettings,
    GrpoSettings,
    NoSettings,
    ReasonRun,
    SftSettings,
)

SPEC = from_shape("layers=2,hidden=32,heads=4,vocab=112,seq=48")


def stage(name: str = "grpo", settings: Any = None, **others: Any) -> ReasonRun:
    chosen = settings or GrpoSettings(num_prompts=4, num_answers=4)
    given: dict[str, Any] = {"layout": Layout(gbs=16), **others}
    return ReasonRun(stage=name, model_id="tiny", shape=SPEC.transformer, settings=chosen, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "run",
    [
        stage("sft", SftSettings(num_traces=8)),
        stage("grpo", GrpoSettings(loss=policy_loss("dapo", clip_high=0.3)), layout=Layout(gbs=64)),
        stage("generate", GenerateSettings(num_problems=10), steps=1),
        stage(
            "distill",
            DistillSettings(mode="on-policy", teacher="runs/t", teacher_shape=SPEC.transformer, num_prompts=16),
        ),
        stage("evaluate", NoSettings(), steps=0),
    ],
    ids=lambda run: run.stage,
)
def test_a_document_gives_the_same_stage(run: ReasonRun) -> None:
    again = stage_run.from_document(run.document(), where="here")
    assert again.document() == run.document()
    assert again.settings == run.settings or run.stage == "distill"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: GrpoSettings(num_answers=1), "a group of 1"),
        (lambda: GrpoSettings(num_prompts=0), "num_prompts is 0"),
        (lambda: stage(layout=Layout(gbs=5)), "do not divide into updates of gbs=5"),
        (lambda: stage(layout=Layout(pp=2, gbs=16)), "split by dp, zero and tp only"),
        (lambda: stage(engine=EngineSettings(sampling=SamplingSettings(temperature=0.0))), "temperature above 0"),
        (lambda: stage(engine=EngineSettings(tp=2)), "does not divide 1 ranks"),
        (lambda: stage(checkpoint_every=0), "1 or more, or auto"),
        (lambda: stage(row_tokens=8), "must hold a sequence of 48"),
        (lambda: DistillSettings(mode="on-policy"), "give --teacher"),
    ],
)  # fmt: skip
def test_bad_values_are_refused(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


def test_teacher_and_student_need_one_vocabulary() -> None:
    other = SPEC.transformer.model_copy(update={"vocab": 120})
    settings = DistillSettings(mode="on-policy", teacher="t", teacher_id="big", teacher_shape=other, num_prompts=16)
    with pytest.raises(ConfigError, match="vocabulary of 120 and student tiny one of 112"):
        stage("distill", settings)


def test_counted_work_is_that_of_whole_sequences() -> None:
    work, n = ModelWork.of(SPEC.transformer, num_params=SPEC.num_params), 48
    counted = work.training_flop(num_tokens=n, num_scored=n, num_pairs=n * n)
    assert counted == pytest.approx(training_flop_per_sample(SPEC))
    assert replace(work, num_params=10).training_bytes(num_passes=2, num_updates=1, width_bytes=4) == 10 * (24 + 28)
