"""Results of a study: predicted, measured and published outcomes, point by point."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from scalewright.catalog.library import Catalog
from scalewright.errors import LayoutError, NotExpressedError, ScalewrightError
from scalewright.records.documents import parse_json, read_document, read_text
from scalewright.records.run_directory import RunDirectory
from scalewright.records.study_report import RATIO, Number
from scalewright.records.types import Point, Result
from scalewright.study.doubts import fewer_repeats, merged, outside_interval
from scalewright.study.expressions import shown as str_shown
from scalewright.study.file import Measure, Published
from scalewright.study.kinds.base import Outcome
from scalewright.study.metrics import METRICS
from scalewright.study.order import with_places
from scalewright.study.pipeline.progress import block_of
from scalewright.study.points import Study
from scalewright.study.scaling import efficiencies, losses_per_doubling
from scalewright.study.store import Store

EFFICIENCY, LOSS = "efficiency_frac", "loss_per_doubling_frac"
SHARED_CORES = (
    "All ranks share the cores of this machine. With n ranks, each has one nth of the cores, so that the best possible "
    "efficiency is 1/n."
)
NOT_YET = "not measured yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedPoint:
    """A published figure about one point."""

    point: int
    figure: Published

    @property
    def number(self) -> Number:
        ends = [end for end in (self.figure.low, self.figure.high) if end is not None]
        middle = sum(ends) / len(ends) if ends else 0.0
        value = middle if self.figure.value is None else self.figure.value
        return Number(value=value, low=self.figure.low, high=self.figure.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Outcomes in the order of the study's points."""

    study: Study
    predicted: tuple[Outcome, ...] = ()
    measured: tuple[Outcome, ...] = ()
    """With the spread over repeats. A point that was not measured has an outcome that says why."""
    published: tuple[PublishedPoint, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def rows(self) -> Iterator[Result]:
        """Long form, one number a row, for files that other programs read."""
        for origin, outcomes in (("predicted", self.predicted), ("measured", self.measured)):
            for point, outcome in zip(self.study.points, outcomes, strict=False):
                for name, number in outcome.numbers.items():
                    ends = None if number.low is None or number.high is None else (number.low, number.high)
                    yield Result(
                        point=point.id, metric=name, value=number.value, unit=METRICS[name].unit,
                        origin=origin, interval=ends,  # type: ignore[arg-type]
                    )  # fmt: skip
        for published in self.published:
            number, point = published.number, self.study.points[published.point]
            ends = None if number.low is None or number.high is None else (number.low, number.high)
            yield Result(
                point=point.id, metric=published.figure.metric, value=number.value, unit=published.figure.unit,
                origin="published", interval=ends, source=published.figure.source.text,
            )  # fmt: skip

    def published_of(self, point: int, metric: str) -> list[PublishedPoint]:
        return [one for one in self.published if one.point == point and one.figure.metric == metric]


def predict_study(catalog: Catalog, study: Study) -> Results:
    """Predict every point. A point that the models do not cover says why; the others are predicted."""
    outcomes = []
    for kind, combination in zip(study.kinds, study.combinations, strict=True):
        try:
            outcomes.append(kind.predict(catalog, combination.options, where=study.where))
        except (LayoutError, NotExpressedError) as error:
            outcomes.append(Outcome(problem=str(error)))
    return Results(study=study, predicted=completed(study, outcomes), published=tuple(published_of(study)))


def measured_study(catalog: Catalog, study: Study, store: Store) -> Results:
    """The measured points of a store, beside the predictions made before each run started."""
    limits = study.file.measure or Measure()
    measured, predicted, shares_cores = [], [], False
    for index, point in enumerate(study.points):
        runs = [store.run(point, repeat) for repeat in range(limits.repeats)]
        done = [run for run in runs if _is_finished(run)]
        outcomes = [study.kinds[index].measured(run.path) for run in done]
        shares_cores |= any(map(_shares_cores, done))
        prediction = _prediction(catalog, study, index, runs)
        predicted.append(prediction)
        if outcomes:
            measured.append(_compared(study, prediction, _over_repeats(outcomes, num_repeats=limits.repeats)))
        else:
            measured.append(Outcome(problem=_skipped(study, store, index) or _why_not(store, point, runs)))
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


def _skipped(study: Study, store: Store, index: int) -> str:
    """Why a stage of a pipeline was skipped; empty if it was not."""
    if study.pipeline is None:
        return ""
    block = block_of(study.pipeline, store, study.pipeline.runs[index], 0)
    return f"skipped: {block.reason}" if block is not None and block.is_final else ""


def _over_repeats(outcomes: Sequence[Outcome], *, num_repeats: int) -> Outcome:
    """Repeats of one point as one outcome: the median, from the least to the most; a single run keeps its spread."""
    doubts = (*merged([outcome.doubts for outcome in outcomes]), *fewer_repeats(len(outcomes), num_repeats))
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


def _compared(study: Study, predicted: Outcome, measured: Outcome) -> Outcome:
    """The measured outcome, with a doubt if the study's first metric lies outside its predicted interval."""
    both = [name for name in study.metrics if name in predicted.numbers and name in measured.numbers]
    with_interval = [name for name in both if predicted.numbers[name].low is not None]
    if not with_interval or predicted.problem:
        return measured
    name = with_interval[0]
    doubt = outside_interval(METRICS[name], predicted.numbers[name], measured.numbers[name])
    return measured if doubt is None else replace(measured, doubts=(*measured.doubts, doubt))


def _prediction(catalog: Catalog, study: Study, index: int, runs: Sequence[RunDirectory]) -> Outcome:
    """The prediction stored before the first run; if there is none, a prediction made now.

    An impossible layout is a problem of the point. An unknown machine only means that nothing is predicted.
    """
    for run in runs:
        if run.prediction.exists():
            return study.kinds[index].stored_prediction(read_document(run.prediction, "prediction"))
    try:
        return study.kinds[index].predict(catalog, study.combinations[index].options, where=study.where)
    except (LayoutError, NotExpressedError) as error:
        return Outcome(problem=str(error))
    except ScalewrightError as error:
        return Outcome(notes=(f"not predicted: {error}",))


def completed(study: Study, outcomes: Sequence[Outcome]) -> tuple[Outcome, ...]:
    """Outcomes with the numbers that follow from other points: efficiencies, ratios, places of a search."""
    return with_places(study, with_ratio(study, with_efficiency(study, outcomes)))


def with_ratio(study: Study, outcomes: Sequence[Outcome]) -> tuple[Outcome, ...]:
    relative = study.file.relative
    if relative is None:
        return tuple(outcomes)
    reference_labels = {name: str_shown(value) for name, value in relative.to.items()}
    index_of = {tuple(point.labels.items()): index for index, point in enumerate(study.points)}
    with_ratios = []
    for point, outcome in zip(study.points, outcomes, strict=True):
        labels = tuple((name, reference_labels.get(name, value)) for name, value in point.labels.items())
        reference = outcomes[index_of[labels]].numbers.get(relative.metric) if labels in index_of else None
        number = outcome.numbers.get(relative.metric)
        ratio = {}
        if number is not None and reference is not None and reference.value:
            ratio = {RATIO: Number(value=number.value / reference.value)}
        with_ratios.append(replace(outcome, numbers=outcome.numbers | ratio))
    return tuple(with_ratios)


def with_efficiency(study: Study, outcomes: Sequence[Outcome]) -> tuple[Outcome, ...]:
    """Outcomes with every efficiency that the study defines."""
    scaling = study.file.scaling
    if scaling is None:
        return tuple(outcomes)
    metrics = {EFFICIENCY: scaling.metric, **scaling.also}
    by_name = {name: efficiencies(study, outcomes, of=metric) for name, metric in metrics.items()}
    by_name[LOSS] = losses_per_doubling(study, by_name[EFFICIENCY])
    return tuple(
        replace(
            outcome,
            numbers=outcome.numbers | {name: numbers[index] for name, numbers in by_name.items() if index in numbers},
        )
        for index, outcome in enumerate(outcomes)
    )


def published_of(study: Study) -> Iterator[PublishedPoint]:
    for figure in study.file.published:
        for index in study.matching(figure.where):
            yield PublishedPoint(point=index, figure=figure)
