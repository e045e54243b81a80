"""What the sources of a study say without numbers, held against its predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from scalewright import units
from scalewright.study.expressions import Value
from scalewright.study.file import Statement
from scalewright.study.metrics import METRICS
from scalewright.study.results import Results


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One statement with the predicted values of its two sides."""

    statement: Statement
    lower: float
    higher: float
    points: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return self.lower < (1.0 - self.statement.by) * self.higher

    @property
    def sentence(self) -> str:
        metric = METRICS[self.statement.metric]
        unit = f" {metric.unit}" if metric.dimension is units.COUNT and metric.unit else ""
        lower, higher = (f"{units.format(value, metric.dimension)}{unit}" for value in (self.lower, self.higher))
        verdict = "the difference is too small" if self.lower < self.higher else "the prediction contradicts it"
        return (
            f"The source says: {self.statement.text}. Predicted {metric.title} is {lower} against {higher}: {verdict}."
        )


def checked_statements(results: Results) -> list[Checked]:
    """Every statement both sides of which are predicted."""
    checks = []
    for statement in results.study.file.statements if results.predicted else ():
        lower, higher = (_values(results, statement.metric, where) for where in (statement.lower, statement.higher))
        if lower and higher:
            checks.append(
                Checked(
                    statement=statement, lower=mean(v for _, v in lower), higher=mean(v for _, v in higher),
                    points=tuple(results.study.points[index].id for index, _ in (*lower, *higher)),
                )
            )  # fmt: skip
    return checks


def contradictions(results: Results) -> Sequence[str]:
    """A note for every statement that the predictions contradict."""
    return [check.sentence for check in checked_statements(results) if not check.holds]


def _values(results: Results, metric: str, where: dict[str, Value | tuple[Value, ...]]) -> list[tuple[int, float]]:
    return [
        (index, results.predicted[index].numbers[metric].value)
        for index in results.study.matching(where)
        if metric in results.predicted[index].numbers and not results.predicted[index].problem
    ]
