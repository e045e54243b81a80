"""All that is known of a study: predicted, measured and published, point by point, in one table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from scalewright.catalog.library import Catalog
from scalewright.errors import LayoutError, NotExpressedError, ScalewrightError
from scalewright.records.documents import parse_json, read_document, read_text
from scalewright.records.run_directory import RunDirectory
from scalewright.records.study_report import Number
from scalewright.records.types import Point, Result
from scalewright.study.doubts import fewer_repeats, outside, together
from scalewright.study.expressions import shown as str_shown
from scalewright.study.file import Measure, Published
from scalewright.study.kinds.base import Outcome
from scalewright.study.metrics import METRICS
from scalewright.study.order import with_places
from scalewright.study.points import Study
from scalewright.study.scaling import efficiencies
from scalewright.study.store import Store

EFFICIENCY = "efficiency_frac"
SHARED_CORES = (
    "Ranks share the cores of this machine: each of n has one nth of them, so that an efficiency of 1/n is all that n "
    "ranks can reach here."
)
NOT_YET = "not reached yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A published figure about one point."""

    point: int
    figure: Published

    @property
    def number(self) -> Number:
        given = [end for end in (self.figure.low, self.figure.high) if end is not None]
        middle = sum(given) / len(given) if given else 0.0
        value = middle if self.figure.value is None else self.figure.value
        return Number(value=value, low=self.figure.low, high=self.figure.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Outcomes in the order of the study's points."""

    study: Study
    predicted: tuple[Outcome, ...] = ()
    measured: tuple[Outcome, ...] = ()
    """With spread over repeats; an outcome with a problem where a point was not or could not be measured."""
    published: tuple[Told, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def rows(self) -> Iterator[Result]:
        """Long form: one number a row, for files that other programs read."""
        for origin, outcomes in (("predicted", self.predicted), ("measured", self.measured)):
            for point, outcome in zip(self.study.points, outcomes, strict=False):
                for name, number in outcome.numbers.items():
                    ends = None if number.low is None or number.high is None else (number.low, number.high)
                    yield Result(
                        point=point.id, metric=name, value=number.value, unit=METRICS[name].unit,
                        origin=origin, interval=ends,  # type: ignore[arg-type]
                    )  # fmt: skip
        for told in self.published:
            number, point = told.number, self.study.points[told.point]
            ends = None if number.low is None or number.high is None else (number.low, number.high)
            yield Result(
                point=point.id, metric=told.figure.metric, value=number.value, unit=told.figure.unit,
                origin="published", interval=ends, source=told.figure.source.text,
            )  # fmt: skip

    def published_of(self, point: int, metric: str) -> list[Told]:
        return [told for told in self.published if told.point == point and told.figure.metric == metric]


def predict_study(catalog: Catalog, study: Study) -> Results:
    """Predict every point. One that cannot be expressed says why, and the others go on."""
    outcomes = []
    for kind, cell in zip(study.kinds, study.cells, strict=True):
        try:
            outcomes.append(kind.predict(catalog, cell.point, where=study.where))
        except (LayoutError, NotExpressedError) as error:
            outcomes.append(Outcome(problem=str(error)))
    return Results(study=study, predicted=completed(study, outcomes), published=tuple(published_of(study)))


def measured_study(catalog: Catalog, study: Study, store: Store) -> Results:
    """What the store holds, beside what was predicted before each run started."""
    limits = study.file.measure or Measure()
    measured, predicted, shares_cores = [], [], False
    for index, point in enumerate(study.points):
        runs = [store.run(point, repeat) for repeat in range(limits.repeats)]
        done = [run for run in runs if _is_finished(run)]
        outcomes = [study.kinds[index].measured(run.path) for run in done]
        shares_cores |= any(map(_shares_cores, done))
        foretold = _foretold(catalog, study, index, runs)
        predicted.append(foretold)
        if outcomes:
            seen = _together(outcomes, num_asked=limits.repeats)
            measured.append(_held_against(study, foretold, seen))
        else:
            measured.append(Outcome(problem=_why_not(store, point, runs)))
    return Results(
        study=study,
        predicted=completed(study, predicted),
        measured=completed(study, measured),
        published=tuple(published_of(study)),
        notes=(SHARED_CORES,) if shares_cores and study.file.scaling is not None else (),
    )


def _shares_cores(run: RunDirectory) -> bool:
    """Whether several ranks ran on the CPU of one machine."""
    config = parse_json(read_text(run.config), where=str(run.config))
    num_ranks = len(run.all_rank_events())
    return isinstance(config, dict) and config.get("device") == "cpu" and num_ranks > 1 and run.conditions.exists()


def _is_finished(run: RunDirectory) -> bool:
    info = run.read_exit_info() if run.config.exists() else None
    return info is not None and info.finished


def _why_not(store: Store, point: Point, runs: Sequence[RunDirectory]) -> str:
    reasons = [store.read_problem(point, repeat) for repeat in range(len(runs))]
    for run in runs:
        info = run.read_exit_info() if run.config.exists() else None
        reasons.append("" if info is None else info.reason)
    return next((reason for reason in reasons if reason), NOT_YET)


def _together(outcomes: Sequence[Outcome], *, num_asked: int) -> Outcome:
    """Repeats of one point: the median, and from the least to the most; of one run its own spread."""
    doubts = (*together([outcome.doubts for outcome in outcomes]), *fewer_repeats(len(outcomes), num_asked))
    if len(outcomes) == 1:
        return replace(outcomes[0], doubts=doubts)
    numbers = {}
    for name in outcomes[0].numbers:
        values = sorted(outcome.numbers[name].value for outcome in outcomes if name in outcome.numbers)
        numbers[name] = Number(value=median(values), low=values[0], high=values[-1], count=len(values))
    series = {
        name: tuple(sorted(value for outcome in outcomes for value in outcome.series.get(name, ())))
        for name in outcomes[0].series
    }
    return replace(outcomes[0], numbers=numbers, doubts=doubts, series=series)


def _held_against(study: Study, told: Outcome, seen: Outcome) -> Outcome:
    """What was measured, in doubt where the study's first figure lies outside the interval predicted for it."""
    both = [name for name in study.metrics if name in told.numbers and name in seen.numbers]
    with_ends = [name for name in both if told.numbers[name].low is not None]
    if not with_ends or told.problem:
        return seen
    name = with_ends[0]
    found = outside(METRICS[name], told.numbers[name], seen.numbers[name])
    return seen if found is None else replace(seen, doubts=(*seen.doubts, found))


def _foretold(catalog: Catalog, study: Study, index: int, runs: Sequence[RunDirectory]) -> Outcome:
    """What was said before the first run; where none was said, what is said now.

    A layout that cannot be is a problem of the point; a machine that nobody knows is only why nothing is predicted.
    """
    for run in runs:
        if run.prediction.exists():
            return study.kinds[index].stored_prediction(read_document(run.prediction, "prediction"))
    try:
        return study.kinds[index].predict(catalog, study.cells[index].point, where=study.where)
    except (LayoutError, NotExpressedError) as error:
        return Outcome(problem=str(error))
    except ScalewrightError as error:
        return Outcome(notes=(f"not predicted: {error}",))


def completed(study: Study, outcomes: Sequence[Outcome]) -> tuple[Outcome, ...]:
    """Outcomes with what follows from others of the study: efficiencies, ratios, places of a search."""
    return with_places(study, with_ratio(study, with_efficiency(study, outcomes)))


def with_ratio(study: Study, outcomes: Sequence[Outcome]) -> tuple[Outcome, ...]:
    asked = study.file.relative
    if asked is None:
        return tuple(outcomes)
    base = {name: str_shown(value) for name, value in asked.to.items()}
    places = {tuple(point.labels.items()): index for index, point in enumerate(study.points)}
    found = []
    for point, outcome in zip(study.points, outcomes, strict=True):
        other = places.get(tuple((name, base.get(name, value)) for name, value in point.labels.items()))
        mine = outcome.numbers.get(asked.metric)
        theirs = None if other is None else outcomes[other].numbers.get(asked.metric)
        if mine is None or theirs is None or not theirs.value:
            found.append(outcome)
        else:
            found.append(
                replace(outcome, numbers={**outcome.numbers, "ratio": Number(value=mine.value / theirs.value)})
            )
    return tuple(found)


def with_efficiency(study: Study, outcomes: Sequence[Outcome]) -> tuple[Outcome, ...]:
    """Outcomes with every efficiency that the study asks for."""
    asked = study.file.scaling
    if asked is None:
        return tuple(outcomes)
    found = {
        name: efficiencies(study, outcomes, of=of) for name, of in {EFFICIENCY: asked.metric, **asked.also}.items()
    }
    return tuple(
        replace(
            outcome,
            numbers=outcome.numbers | {name: numbers[index] for name, numbers in found.items() if index in numbers},
        )
        for index, outcome in enumerate(outcomes)
    )


def published_of(study: Study) -> Iterator[Told]:
    for figure in study.file.published:
        for index in study.matching(figure.where):
            yield Told(point=index, figure=figure)
