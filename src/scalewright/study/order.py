"""A search: points tried in the order that the planner foresees, and how well that order held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from scalewright.catalog.library import Catalog
from scalewright.errors import ScalewrightError
from scalewright.planner.validation.scores import regret_frac, spearman
from scalewright.records.study_report import PLACE, Number
from scalewright.study.file import Measure
from scalewright.study.kinds.base import Outcome
from scalewright.study.measure import Try, tries
from scalewright.study.metrics import METRICS
from scalewright.study.points import Study

MIN_COMPARED = 3
"""Two points agree or do not by chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """The predicted order beside the measured one."""

    points: tuple[int, ...]
    """Those that have both."""
    spearman: float | None
    regret_frac: float
    """How much slower the planner's first choice ran than the best."""


def is_search(study: Study) -> bool:
    return study.is_measured and (study.file.measure or Measure()).order == "predicted"


def in_order(catalog: Catalog, study: Study) -> list[Try]:
    """All tries as they are to be run. Points of which nothing is predicted, or that would not fit, come last."""
    found = list(tries(study))
    if not is_search(study):
        return found
    costs = {tried.index: _cost(study, _predicted(catalog, study, tried.index)) for tried in found if not tried.repeat}

    def place(tried: Try) -> tuple[int, bool, float]:
        cost = costs[tried.index]
        return tried.repeat, cost is None, cost or 0.0

    return sorted(found, key=place)


def _predicted(catalog: Catalog, study: Study, index: int) -> Outcome:
    try:
        return study.kinds[index].predict(catalog, study.cells[index].point, where=study.where)
    except ScalewrightError as error:
        return Outcome(problem=str(error))


def _cost(study: Study, outcome: Outcome) -> float | None:
    """What the study looks at first, so that less is better; None where there is no such figure."""
    number = outcome.numbers.get(study.metrics[0])
    if number is None or outcome.problem:
        return None
    return number.value if METRICS[study.metrics[0]].better == "lower" else -number.value


def with_places(study: Study, outcomes: Sequence[Outcome]) -> tuple[Outcome, ...]:
    """Outcomes of a search with the place of each among them, the best first."""
    if not is_search(study):
        return tuple(outcomes)
    costs = {index: cost for index, outcome in enumerate(outcomes) if (cost := _cost(study, outcome)) is not None}
    places = {index: place for place, index in enumerate(sorted(costs, key=costs.__getitem__), start=1)}
    return tuple(
        replace(outcome, numbers={**outcome.numbers, PLACE: Number(value=float(places[index]))})
        if index in places
        else outcome
        for index, outcome in enumerate(outcomes)
    )


def agreement(study: Study, predicted: Sequence[Outcome], measured: Sequence[Outcome]) -> Agreement | None:
    """How the two orders of a search agree; None where too few points have both."""
    if not is_search(study) or not predicted or not measured:
        return None
    pairs = [
        (index, a, b) for index, (told, seen) in enumerate(zip(predicted, measured, strict=True))
        if (a := _time(study, told)) is not None and (b := _time(study, seen)) is not None
    ]  # fmt: skip
    if len(pairs) < MIN_COMPARED:
        return None
    ours, theirs = np.array([a for _, a, _ in pairs]), np.array([b for _, _, b in pairs])
    return Agreement(
        points=tuple(index for index, _, _ in pairs),
        spearman=spearman(ours, theirs),
        regret_frac=regret_frac(ours, theirs),
    )


def _time(study: Study, outcome: Outcome) -> float | None:
    """As a time, up to a factor: one over what is better when it is higher."""
    cost = _cost(study, outcome)
    return None if cost is None or cost == 0.0 else (cost if cost > 0 else -1.0 / cost)
