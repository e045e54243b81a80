"""What the sources of a study say in words, held against its predictions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from scalewright import units
from scalewright.records.study_report import StatementShown, StatementVerdict
from scalewright.study.expressions import Value
from scalewright.study.file import Statement
from scalewright.study.metrics import METRICS, Metric
from scalewright.study.point_values import as_tuple
from scalewright.study.results import Results


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two points that a statement compares, with their predicted values."""

    lower: float
    higher: float
    lower_point: int
    higher_point: int

    @property
    def difference(self) -> float:
        """How far the lower value is below the higher one, as a share of the larger; negative where it is above."""
        largest = max(abs(self.lower), abs(self.higher))
        return (self.higher - self.lower) / largest if largest else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One statement, held against all pairs of points that it compares."""

    statement: Statement
    pairs: tuple[Pair, ...]

    @property
    def deciding(self) -> Pair:
        """The pair that decides: the one that agrees least, or most where some pair is enough."""
        if self.statement.relation == "alike":
            return max(self.pairs, key=lambda pair: abs(pair.difference))
        choose = min if self.statement.pairs == "every" else max
        return choose(self.pairs, key=lambda pair: pair.difference)

    @property
    def verdict(self) -> StatementVerdict:
        statement, difference = self.statement, self.deciding.difference
        if statement.relation == "alike":
            difference = abs(difference)
            agrees, contradicts = difference <= statement.agrees, difference >= statement.contradicts
        else:
            agrees, contradicts = difference >= statement.agrees, difference <= statement.contradicts
        return "agrees" if agrees else "contradicts" if contradicts else "cannot say"

    def sentence(self, results: Results) -> str:
        """What is said, what is predicted, and the verdict."""
        shown = self.shown(results)
        verdict = {
            "agrees": "the prediction agrees", "contradicts": "the prediction contradicts it",
            "cannot say": "too little to agree with it, too much to contradict it"
            if self.statement.relation == "below" else "too much to agree with it, too little to contradict it",
        }[self.verdict]  # fmt: skip
        return f"The source says: {self.statement.text}. Predicted: {shown.predicted}, {shown.difference}: {verdict}."

    def shown(self, results: Results) -> StatementShown:
        statement, pair = self.statement, self.deciding
        first, second = METRICS[statement.metric], METRICS[statement.higher_metric or statement.metric]
        lower, higher = _words(pair.lower, first), _words(pair.higher, second)
        labels = [results.study.points[index].labels for index in (pair.lower_point, pair.higher_point)]
        shared = {name: value for name, value in labels[0].items() if value and labels[1].get(name) == value}
        own = [", ".join(f"{k} {v}" for k, v in one.items() if v and k not in shared) for one in labels]
        where = ", ".join(f"{name} {value}" for name, value in shared.items())
        titles = (first.title, "" if first is second else f"{second.title} ")
        ends = [f" with {words}" if words else "" for words in own]
        predicted = f"{titles[0]} is {lower}{ends[0]} against {titles[1]}{higher}{ends[1]}"
        return StatementShown(
            text=statement.text, quote=" ".join(statement.quote.split()), source=statement.source.text,
            predicted=f"{predicted} ({where})" if where else predicted,
            difference=_difference_words(pair.difference, statement), verdict=self.verdict,
            agrees=_threshold("at most" if statement.relation == "alike" else "at least", statement.agrees),
            contradicts=_threshold("at least" if statement.relation == "alike" else "at most", statement.contradicts),
            because=" ".join(statement.because.split()), evidence=self.points(results),
        )  # fmt: skip

    def points(self, results: Results) -> tuple[str, ...]:
        indices = dict.fromkeys(index for pair in self.pairs for index in (pair.lower_point, pair.higher_point))
        return tuple(dict.fromkeys(results.study.points[index].id for index in indices))


def checked_statements(results: Results) -> list[Checked]:
    """Every statement of which at least one pair of points is predicted."""
    checks = []
    for statement in results.study.file.statements if results.predicted else ():
        pairs = tuple(_pairs(results, statement))
        if pairs:
            checks.append(Checked(statement=statement, pairs=pairs))
    return checks


def disagreements(results: Results) -> Sequence[str]:
    """A note for every statement that the predictions contradict, or cannot decide."""
    return [check.sentence(results) for check in checked_statements(results) if check.verdict != "agrees"]


def _pairs(results: Results, statement: Statement) -> Iterator[Pair]:
    """Each point of `lower` with those of `higher` that share its values on every axis that both leave alike."""
    differing = {
        name for name in (*statement.lower, *statement.higher)
        if name not in statement.lower or name not in statement.higher
        or set(as_tuple(statement.lower[name])) != set(as_tuple(statement.higher[name]))
    }  # fmt: skip
    higher = list(_values(results, statement.higher_metric or statement.metric, statement.higher))
    for index, value in _values(results, statement.metric, statement.lower):
        for other, larger in higher:
            own, theirs = (_without(results.study.points[one].labels, differing) for one in (index, other))
            if own == theirs:
                yield Pair(lower=value, higher=larger, lower_point=index, higher_point=other)


def _without(labels: Mapping[str, str], names: set[str]) -> dict[str, str]:
    return {name: value for name, value in labels.items() if name not in names}


def _values(results: Results, metric: str, where: dict[str, Value | tuple[Value, ...]]) -> Iterator[tuple[int, float]]:
    for index in results.study.matching(where):
        outcome = results.predicted[index]
        if metric in outcome.numbers and not outcome.problem:
            yield index, outcome.numbers[metric].value


def _words(value: float, metric: Metric) -> str:
    unit = f" {metric.unit}" if metric.dimension is units.COUNT and metric.unit else ""
    return f"{units.format(value, metric.dimension)}{unit}"


def _difference_words(difference: float, statement: Statement) -> str:
    if statement.relation == "alike":
        return f"{100 * abs(difference):.1f} % apart"
    return f"{100 * abs(difference):.1f} % {'below' if difference >= 0 else 'above'}"


def _threshold(bound: str, share: float) -> str:
    return f"{bound} {100 * share:.3g} %"
