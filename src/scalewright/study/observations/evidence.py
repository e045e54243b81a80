"""From numbers to a verdict: intervals of shares and ratios, and what they say of a published figure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from scalewright import units
from scalewright.catalog.observations import FigureUnit, ObservedFigure
from scalewright.records.observations import ObservedEvidence, Verdict
from scalewright.records.study_report import Number

SAYS_NOTHING: Final = "cannot say"


def verdict_of(number: Number, figure: ObservedFigure) -> Verdict:
    """Whether a number with its interval agrees with a published figure.

    About and up to: the figure lies in the interval. Above: the whole interval does; one that the figure divides says
    nothing.
    """
    low = number.value if number.low is None else number.low
    high = number.value if number.high is None else number.high
    if figure.sense == "above":
        if low > figure.value:
            return "holds"
        return "does not hold" if high <= figure.value else SAYS_NOTHING
    return "holds" if low <= figure.value <= high else "does not hold"


def verdict_if(condition: bool) -> Verdict:
    return "holds" if condition else "does not hold"


def together(verdicts: list[Verdict]) -> Verdict:
    """Of several settings, none of which the publication names: what all of them say; else nothing."""
    return verdicts[0] if len(set(verdicts)) == 1 else SAYS_NOTHING


def evidence(text: str, verdict: Verdict, number: Number | None = None, *, why: str = "") -> ObservedEvidence:
    """`why` is kept where the observation does not hold: elsewhere there is no difference to explain."""
    why = why if verdict == "does not hold" else ""
    if number is None:
        return ObservedEvidence(text=text, verdict=verdict, why=why)
    return ObservedEvidence(text=text, verdict=verdict, value=number.value, low=number.low, high=number.high, why=why)


def terms_words(terms: Mapping[str, float], names: Iterable[str] | None = None, *, most: int = 3) -> str:
    """The largest terms of a step with their times, largest first."""
    chosen = {name: terms[name] for name in (terms if names is None else names) if terms.get(name, 0.0) > 0.0}
    largest = sorted(chosen, key=chosen.__getitem__, reverse=True)[:most]
    return ", ".join(f"{name.replace('_', ' ')} {units.format(chosen[name], units.SECONDS)}" for name in largest)


def share_interval(part_s: float, total_s: float, interval_s: tuple[float, float]) -> Number:
    """The share of a part, as if the whole error of the total were the part's.

    Equation  s = p / t;  ends: (T - (t - p)) / T for each end T of the interval of t, at least 0
    Source    the definition
    Assumes   the rest of the time is right
    Checked   tests/study/test_observations.py
    """
    rest_s = total_s - part_s
    low, high = (max((end - rest_s) / end, 0.0) for end in interval_s)
    return Number(value=part_s / total_s, low=low, high=high)


def ratio_interval(
    numerator_s: float, numerator_interval_s: tuple[float, float], denominator_s: float,
    denominator_interval_s: tuple[float, float],
) -> Number:  # fmt: skip
    """The ratio of two times whose errors are independent.

    Equation  ln of an end = ln(a / b) -+ sqrt(u^2 + v^2), u and v the distances of both intervals' ends in logarithms
    Source    the propagation of independent errors
    Assumes   errors of the two times are factors, and independent of each other
    Checked   tests/study/test_observations.py
    """
    ratio = numerator_s / denominator_s
    below = math.hypot(
        math.log(numerator_s / numerator_interval_s[0]), math.log(denominator_interval_s[1] / denominator_s)
    )
    above = math.hypot(
        math.log(numerator_interval_s[1] / numerator_s), math.log(denominator_s / denominator_interval_s[0])
    )
    return Number(value=ratio, low=ratio * math.exp(-below), high=ratio * math.exp(above))


def figure_words(value: float, unit: FigureUnit) -> str:
    """A figure as people write it."""
    if unit == "share":
        return f"{100 * value:.0f} %"
    if unit == "FLOP/s":
        return f"{units.format(value, units.FLOP_PER_S)} per GPU"
    if unit == "times":
        return f"{value:.2f} times"
    return f"{value:.0f} {'GPU' if value == 1 else 'GPUs'}"


def published_words(figure: ObservedFigure | None) -> str:
    if figure is None:
        return ""
    sense = {"about": "", "above": "over ", "up to": "up to "}[figure.sense]
    return f"{sense}{figure_words(figure.value, figure.unit)}"


def interval_words(number: Number, unit: FigureUnit) -> str:
    """A number with its interval."""
    text = figure_words(number.value, unit)
    if number.low is None or number.high is None:
        return text
    ends = [figure_words(end, unit).split(" ")[0] for end in (number.low, number.high)]
    return f"{text} ({ends[0]} to {ends[1]})"
