"""The best layout that a framework can be told: the plan's own, or the fastest of those it has words for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from scalewright import units
from scalewright.costs.energy import Facility
from scalewright.errors import NotExpressedError
from scalewright.planner.emit import Framework, emit
from scalewright.planner.emit.request import Emitted
from scalewright.planner.predict import Prediction
from scalewright.planner.search.search import SearchResult

SPLITS = ("tp", "pp", "vpp", "cp", "ep")
TRIES_PER_KIND = 4
"""Layouts of one kind (the same knobs in use) that are tried: most refusals depend on the kind alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expressed:
    """A framework's file, the layout it holds, and why that is not the plan's best."""

    emitted: Emitted
    prediction: Prediction
    refused: str
    """What of the best layout the framework cannot be told; empty where it can."""

    def as_dict(self, best: Prediction) -> dict[str, Any]:
        notes = list(self.emitted.notes)
        if self.refused:
            more = float(self.prediction.cost.time.total) / float(best.cost.time.total) - 1.0
            time = units.format(float(self.prediction.cost.time.total), units.SECONDS)
            notes.insert(0, f"{self.refused}; this is the fastest it can: {time} a step, {more:+.1%}")
        return {
            "framework": self.emitted.framework,
            "version": self.emitted.version,
            "filename": self.emitted.filename,
            "layout": self.prediction.layout.as_dict(),
            "layout_text": self.prediction.layout.brief,
            "step_time_s": float(self.prediction.cost.time.total),
            "text": self.emitted.text,
            "notes": notes,
        }


def express(
    result: SearchResult, best: Prediction, framework: Framework, *, facility: Facility | None = None
) -> Expressed:
    """The framework's file for the best layout, or for the fastest one that it can express."""
    try:
        return Expressed(emitted=_emit(best, framework), prediction=best, refused="")
    except NotExpressedError as error:
        first = error  # and the answer, where no layout does better: a model that the framework does not have
    for index in _by_kind(result):
        candidate = replace(best, layout=result.layout(index), recipe=result.choices[int(result.choice[index])].recipe)
        try:
            emitted = _emit(candidate, framework)
        except NotExpressedError:
            continue
        return Expressed(emitted=emitted, prediction=result.prediction(index, facility=facility), refused=str(first))
    raise first


def _emit(prediction: Prediction, framework: Framework) -> Emitted:
    return emit(
        framework=framework, spec=prediction.spec, layout=prediction.layout, recipe=prediction.recipe,
        seq_len=prediction.spec.transformer.seq, gpus_per_node=prediction.machine.gpus_per_node,
        num_gpus=int(prediction.layout.num_gpus), mode=prediction.mode,
    )  # fmt: skip


def _by_kind(result: SearchResult) -> Iterator[int]:
    """The fastest few layouts of each kind, fastest first."""
    kind = result.choice.copy()
    for name in SPLITS:
        kind = kind * 2 + (result.columns[name] > 1).take(result.split)
    fits = np.isfinite(result.step_time_s)
    near = {i for k in np.unique(kind[fits]) for i in result.fastest(TRIES_PER_KIND, kind == k)}
    yield from sorted(near, key=lambda i: result.step_time_s[i])
