"""A search: points run in the predicted order, and how well that order agrees with the measured one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
"""The order of two points agrees by chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """The predicted order beside the measured one."""

    points: tuple[int, ...]
    """Points that have both figures."""
    spearman: float | None
    regret_frac: float
    """How much slower the point predicted to be fastest ran than the fastest."""


def is_search(study: Study) -> bool:
    return study.is_measured and (study.file.measure or Measure()).order == "predicted"


def is_success(study: Study, finished: Iterable[bool]) -> bool:
    """Whether a study was measured: all its points, or at least one of a search, where some points cannot run."""
    return any(finished) if is_search(study) else all(finished)


def in_order(catalog: Catalog, study: Study) -> list[Try]:
    """All tries in the order in which they run. Points without a prediction, or that do not fit, come last."""
    listed = list(tries(study))
    if not is_search(study):
        return listed
    costs = {tried.index: _cost(study, _predicted(catalog, study, tried.index)) for tried in listed if not tried.repeat}

    def place(tried: Try) -> tuple[int, bool, float]:
        cost = costs[tried.index]
        return tried.repeat, cost is None, cost or 0.0

    return sorted(listed, key=place)


def _predicted(catalog: Catalog, study: Study, index: int) -> Outcome:
    try:
        return study.kinds[index].predict(catalog, study.combinations[index].options, where=study.where)
    except ScalewrightError as error:
        return Outcome(problem=str(error))


def _cost(study: Study, outcome: Outcome) -> float | None:
    """The study's first metric, negated if higher is better; None without a figure."""
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
        (index, a, b) for index, (prediction, measurement) in enumerate(zip(predicted, measured, strict=True))
        if (a := _time(study, prediction)) is not None and (b := _time(study, measurement)) is not None
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
    """The first metric as a time, up to a factor: a rate is inverted."""
    cost = _cost(study, outcome)
    return None if cost is None or cost == 0.0 else (cost if cost > 0 else -1.0 / cost)
