"""The best layout that a framework can be told: the plan's own, or the fastest of those it has words for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from scalewright import units
from scalewright.catalog.library import Catalog
from scalewright.costs.energy import Facility
from scalewright.engines.emit import Framework, emit, engine_reading, framework_named
from scalewright.engines.types import Emitted
from scalewright.errors import NotExpressedError
from scalewright.planner.answer import Answer
from scalewright.planner.plan_report import PlanReport, plan_systems
from scalewright.planner.question import Question
from scalewright.planner.request import PlanOptions
from scalewright.planner.search.search import SearchResult

SPLITS = ("tp", "pp", "vpp", "cp", "ep")
TRIES_PER_KIND = 4
"""Layouts of one kind (the same knobs in use) that are tried: most refusals depend on the kind alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expressed:
    """A framework's file, the layout it holds, and why that is not the plan's best."""

    emitted: Emitted
    prediction: Answer
    refused: str
    """What of the best layout the framework cannot be told; empty where it can."""

    def as_dict(self, best: Answer) -> dict[str, Any]:
        notes = list(self.emitted.notes)
        if self.refused:
            more = self.prediction.time_s / best.time_s - 1.0
            time = units.format(self.prediction.time_s, units.SECONDS)
            notes.insert(0, f"{self.refused}; this is the fastest it can: {time} a step, {more:+.1%}")
        return {
            "framework": self.emitted.framework,
            "version": self.emitted.version,
            "filename": self.emitted.filename,
            "layout": self.prediction.question.layout.as_dict(),
            "layout_text": self.prediction.question.layout.brief,
            "stack": self.prediction.question.stack.id,
            "step_time_s": self.prediction.time_s,
            "reserved_bytes": self.prediction.reserved_bytes,
            "device_memory_bytes": self.prediction.question.machine.memory_bytes,
            "text": self.emitted.text,
            "notes": notes,
        }


def plan_for_framework(
    catalog: Catalog, systems: Sequence[str], options: PlanOptions, *, what_if_text: str | None = None,
    framework: str | None = None,
) -> PlanReport:  # fmt: skip
    """A plan with its extras; with a framework it is planned with that framework's stack and has its file."""
    name = None if framework is None else framework_named(framework)
    engine = "" if name is None else engine_reading(name)
    report = plan_systems(catalog, systems, options, what_if_text=what_if_text, framework=name, engine=engine)
    plan = report.plan
    if name is None or plan.best is None:
        return report
    expressed = express(plan.result, plan.best, name, facility=plan.request.facility)
    return replace(report, emitted=expressed.as_dict(plan.best))


def express(result: SearchResult, best: Answer, framework: Framework, *, facility: Facility | None = None) -> Expressed:
    """The framework's file for the best layout, or for the fastest one that it can express."""
    try:
        return Expressed(emitted=_emit(best.question, framework), prediction=best, refused="")
    except NotExpressedError as error:
        first = error  # and the answer, where no layout does better: a model that the framework does not have
    for index in _by_kind(result):
        try:
            emitted = _emit(result.question(index), framework)
        except NotExpressedError:
            continue
        return Expressed(emitted=emitted, prediction=result.prediction(index, facility=facility), refused=str(first))
    raise first


def _emit(question: Question, framework: Framework) -> Emitted:
    return emit(
        framework=framework, spec=question.spec, layout=question.layout, recipe=question.recipe,
        seq_len=question.spec.transformer.seq, gpus_per_node=question.machine.gpus_per_node,
        num_gpus=question.num_gpus, mode=question.mode,
    )  # fmt: skip


def _by_kind(result: SearchResult) -> Iterator[int]:
    """The fastest few layouts of each kind, fastest first."""
    kind = result.choice.copy()
    for name in SPLITS:
        kind = kind * 2 + (result.columns[name] > 1).take(result.split)
    fits = np.isfinite(result.step_time_s)
    near = {i for k in np.unique(kind[fits]) for i in result.fastest(TRIES_PER_KIND, kind == k)}
    yield from sorted(near, key=lambda i: result.step_time_s[i])
