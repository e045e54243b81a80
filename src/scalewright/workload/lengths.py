"""Lengths of prompts and answers: one number, or a distribution with its tail.

    parse_lengths("512")
    parse_lengths("lognormal:mean=512,cv=0.8,max=4096").expected_max(64)

Lengths are tokens. A `max` cuts a length off, as an engine's limit does, and the mean is that of the lengths after it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from scalewright import units
from scalewright.errors import ConfigError, QuantityError, nearest
from scalewright.workload.grammar import MAX_SIZE, assignments, whole_number

Floats = NDArray[np.float64]
NUM_CELLS = 4096
"""Cells of a numeric integral over lengths."""
NEVER_LONGER_FRAC = 1.0 - 1e-9
"""Where the tail of a distribution without a limit is cut off in integrals."""
FORMS = "512, fixed:512, uniform:64-512, lognormal:mean=512,cv=0.8 or pareto:mean=512,alpha=1.8,max=4096"
PARTS = {"lognormal": ("mean", "cv", "max"), "pareto": ("mean", "alpha", "max")}
PART_NAMES = ("mean", "cv", "alpha", "max")
"""Every name that may follow a comma inside a distribution."""
NORMAL = NormalDist()
LEAST_ALPHA = 0.1
"""Of a Pareto distribution: with less, nearly all lengths are its limit or none."""
CELL_ENDS = np.concatenate([np.linspace(0.0, 0.9, 37), 1.0 - np.geomspace(0.08, 1e-6, 48), [1.0]])
"""Shares of lengths between which `cells` averages, narrow in the tail."""


class LengthDistribution(ABC):
    """How long prompts or answers are. Subclasses give the mean, the survival function and its inverse."""

    @property
    @abstractmethod
    def text(self) -> str:
        """As `parse_lengths` reads it."""

    @property
    @abstractmethod
    def mean(self) -> float: ...

    @property
    @abstractmethod
    def longest(self) -> float:
        """The length that none is above; infinite without a limit."""

    @abstractmethod
    def survivals(self, num_tokens: Floats) -> Floats:
        """Share of lengths above each of these."""

    @abstractmethod
    def quantiles(self, fracs: Floats) -> Floats: ...

    @abstractmethod
    def tokens_up_to(self, fracs: Floats) -> Floats:
        """Integral of the quantiles from 0 to each share: tokens of so many of the shortest lengths, of one length."""

    def survival(self, num_tokens: float) -> float:
        """Share of lengths above this one."""
        return float(self.survivals(np.array([num_tokens], dtype=np.float64))[0])

    def quantile(self, frac: float) -> float:
        return float(self.quantiles(np.array([frac], dtype=np.float64))[0])

    def sample(self, rng: np.random.Generator, num: int) -> NDArray[np.int64]:
        """Whole lengths of 1 or more, in the order drawn."""
        drawn = np.rint(self.quantiles(rng.random(num)))
        return np.maximum(drawn, 1.0).astype(np.int64)

    @property
    def is_fixed(self) -> bool:
        return self.longest <= self.mean

    def expected_max(self, num_draws: float) -> float:
        """Longest of so many lengths, on average.

        Equation  integral of 1 - (1 - S(t))^n dt from 0 to the longest
        Source    the mean of a positive random variable as the integral of its survival function
        Assumes   lengths are independent; those of one prompt's answers are not, and their maximum is lower
        Checked   tests/workload/test_lengths.py: uniform n/(n+1), samples of the others
        """
        return self._integral(lambda alive: 1.0 - (1.0 - alive) ** num_draws)

    @cached_property
    def cells(self) -> tuple[Floats, Floats]:
        """Means of the lengths between fixed quantiles, rising, and the share of lengths up to the end of each cell.

        Equation  x_j = (int from p_j to p_j+1 of Q) / (p_j+1 - p_j)
        Source    shaked2007 (Stochastic Orders), section 3.A: the longer tail has the lower Lorenz curve
        Assumes   the same quantiles for every distribution: cells keep the mean, and which of two has the longer tail
        Checked   tests/workload/test_lengths.py: the mean; a longer tail has a lower sum up to every cell
        """
        means = np.diff(self.tokens_up_to(CELL_ENDS)) / np.diff(CELL_ENDS)
        return np.maximum.accumulate(means), CELL_ENDS[1:]

    def mean_up_to(self, num_tokens: float) -> float:
        """Mean of the lengths, each cut off there: the tokens that a limit leaves."""
        return self._integral(lambda alive: alive, end=num_tokens)

    @cached_property
    def mean_age(self) -> float:
        """Tokens a running answer has written, on average over time in a steady state.

        Equation  E[L^2] / (2 E[L])
        Source    renewal theory: long answers run longer, and so are seen more often
        Assumes   a new answer starts where one ends
        Checked   tests/workload/test_lengths.py: half of a fixed length, samples of the others
        """
        if self.is_fixed:
            return self.mean / 2.0
        edges = self._edges()
        middle, widths = (edges[1:] + edges[:-1]) / 2.0, np.diff(edges)
        return float(np.sum(middle * self.survivals(middle) * widths) / np.sum(self.survivals(middle) * widths))

    def _edges(self, end: float = math.inf) -> Floats:
        """Cells that are narrow near zero and wide in the tail."""
        last = min(self.longest, end)
        if math.isinf(last):
            last = self.quantile(NEVER_LONGER_FRAC)
        fine = np.linspace(0.0, min(last, 4.0 * self.mean), NUM_CELLS // 2 + 1)
        if last <= fine[-1]:
            return fine
        return np.concatenate([fine, np.geomspace(fine[-1], last, NUM_CELLS // 2 + 1)[1:]])

    def _integral(self, of: Callable[[Floats], Floats], end: float = math.inf) -> float:
        edges = self._edges(end)
        alive = self.survivals((edges[1:] + edges[:-1]) / 2.0)
        return float(np.sum(of(alive) * np.diff(edges)))


@dataclass(frozen=True, kw_only=True)
class FixedLength(LengthDistribution):
    """Every one the same."""

    num_tokens: float

    @property
    def text(self) -> str:
        return f"fixed:{self.num_tokens:g}"

    @property
    def mean(self) -> float:
        return self.num_tokens

    @property
    def longest(self) -> float:
        return self.num_tokens

    def survivals(self, num_tokens: Floats) -> Floats:
        return np.asarray(num_tokens < self.num_tokens, dtype=np.float64)

    def quantiles(self, fracs: Floats) -> Floats:
        return np.full(np.shape(fracs), self.num_tokens)

    def tokens_up_to(self, fracs: Floats) -> Floats:
        return self.num_tokens * fracs


@dataclass(frozen=True, kw_only=True)
class UniformLength(LengthDistribution):
    """Any length between two, equally often."""

    num_least: int
    num_most: int

    @property
    def text(self) -> str:
        return f"uniform:{self.num_least}-{self.num_most}"

    @property
    def mean(self) -> float:
        return (self.num_least + self.num_most) / 2.0

    @property
    def longest(self) -> float:
        return float(self.num_most)

    def survivals(self, num_tokens: Floats) -> Floats:
        return np.clip((self.num_most - num_tokens) / (self.num_most - self.num_least), 0.0, 1.0)

    def quantiles(self, fracs: Floats) -> Floats:
        return np.asarray(self.num_least + (self.num_most - self.num_least) * fracs)

    def tokens_up_to(self, fracs: Floats) -> Floats:
        return np.asarray(self.num_least * fracs + (self.num_most - self.num_least) * fracs**2 / 2.0)


@dataclass(frozen=True, kw_only=True)
class TailedLength(LengthDistribution):
    """Lengths with a tail, which `num_max` may cut off; the mean is that after the cut."""

    num_mean: float
    num_max: float = math.inf

    @property
    def mean(self) -> float:
        return self.num_mean

    @property
    def longest(self) -> float:
        return self.num_max


@dataclass(frozen=True, kw_only=True)
class LogNormalLength(TailedLength):
    """Lengths whose logarithm is normal; `cv` is standard deviation over mean, before the limit."""

    cv: float

    @property
    def text(self) -> str:
        return f"lognormal:mean={self.num_mean:g},cv={self.cv:g}{_limit_text(self.num_max)}"

    @cached_property
    def _spread(self) -> float:
        return math.sqrt(math.log1p(self.cv**2))

    @cached_property
    def _centre(self) -> float:
        """Mean of the logarithm: the one with which the lengths after the limit have the mean."""

        def mean(centre: float) -> float:
            whole = math.exp(centre + self._spread**2 / 2.0)
            if math.isinf(self.num_max):
                return whole
            z = (math.log(self.num_max) - centre) / self._spread
            return whole * NORMAL.cdf(z - self._spread) + self.num_max * NORMAL.cdf(-z)

        start = math.log(self.num_mean) - self._spread**2 / 2.0
        return start if math.isinf(self.num_max) else _solved(mean, self.num_mean, start, start + 40.0)

    def survivals(self, num_tokens: Floats) -> Floats:
        with np.errstate(divide="ignore"):
            z = (np.log(num_tokens) - self._centre) / self._spread
        above = _upper_normal(z)
        return np.where(num_tokens >= self.num_max, 0.0, above)

    def quantiles(self, fracs: Floats) -> Floats:
        inside = np.clip(fracs, 1e-15, 1.0 - 1e-15)
        z = np.array([NORMAL.inv_cdf(float(p)) for p in inside])
        return np.minimum(np.exp(self._centre + self._spread * z), self.num_max)

    def tokens_up_to(self, fracs: Floats) -> Floats:
        limit = math.inf if math.isinf(self.num_max) else (math.log(self.num_max) - self._centre) / self._spread
        below = np.minimum(fracs, NORMAL.cdf(limit))
        whole = math.exp(self._centre + self._spread**2 / 2.0)
        parts = [NORMAL.cdf(min(_normal_quantile(p), limit) - self._spread) for p in below.tolist()]
        at_limit = 0.0 if math.isinf(limit) else self.num_max * (fracs - below)
        return np.asarray(whole * np.array(parts) + at_limit)


@dataclass(frozen=True, kw_only=True)
class ParetoLength(TailedLength):
    """Heavy tail: the share above t falls as t^-alpha."""

    alpha: float

    @property
    def text(self) -> str:
        return f"pareto:mean={self.num_mean:g},alpha={self.alpha:g}{_limit_text(self.num_max)}"

    @cached_property
    def _least(self) -> float:
        """The shortest length: the one with which the lengths after the limit have the mean."""
        a, most = self.alpha, self.num_max
        if math.isinf(most):
            return self.num_mean * (a - 1.0) / a

        def mean(logarithm: float) -> float:
            least = math.exp(logarithm)
            if abs(a - 1.0) < 1e-9:
                return least * (1.0 + math.log(most / least))
            return float(least + (least - least**a * most ** (1.0 - a)) / (a - 1.0))

        return math.exp(_solved(mean, self.num_mean, math.log(self.num_mean) - 60.0, math.log(self.num_mean)))

    def survivals(self, num_tokens: Floats) -> Floats:
        above = (self._least / np.maximum(num_tokens, self._least)) ** self.alpha
        return np.where(num_tokens >= self.num_max, 0.0, above)

    def quantiles(self, fracs: Floats) -> Floats:
        beyond = np.maximum(1.0 - fracs, 1e-15)
        return np.minimum(self._least * beyond ** (-1.0 / self.alpha), self.num_max)

    def tokens_up_to(self, fracs: Floats) -> Floats:
        a, least, most = self.alpha, self._least, self.num_max
        below = np.minimum(fracs, 1.0 if math.isinf(most) else 1.0 - (least / most) ** a)
        if abs(a - 1.0) < 1e-9:
            parts = -least * np.log1p(-below)
        else:
            parts = least * a / (a - 1.0) * (1.0 - (1.0 - below) ** ((a - 1.0) / a))
        return np.asarray(parts + (0.0 if math.isinf(most) else most * (fracs - below)))


@dataclass(frozen=True, kw_only=True)
class EmpiricalLength(LengthDistribution):
    """Lengths as they were seen."""

    lengths: tuple[int, ...]
    """In rising order."""
    origin: str = "seen"
    """Where they come from: a file's name."""

    @property
    def text(self) -> str:
        return f"jsonl:{self.origin}"

    @property
    def mean(self) -> float:
        return sum(self.lengths) / len(self.lengths)

    @property
    def longest(self) -> float:
        return float(self.lengths[-1])

    @cached_property
    def _sorted(self) -> Floats:
        return np.array(self.lengths, dtype=np.float64)

    def survivals(self, num_tokens: Floats) -> Floats:
        not_above = np.searchsorted(self._sorted, num_tokens, side="right")
        return np.asarray(1.0 - not_above / len(self.lengths))

    def quantiles(self, fracs: Floats) -> Floats:
        places = np.minimum((np.asarray(fracs) * len(self.lengths)).astype(np.int64), len(self.lengths) - 1)
        return self._sorted[places]

    def tokens_up_to(self, fracs: Floats) -> Floats:
        ends = np.arange(len(self.lengths) + 1) / len(self.lengths)
        sums = np.concatenate([[0.0], np.cumsum(self._sorted)]) / len(self.lengths)
        return np.asarray(np.interp(fracs, ends, sums))


def fixed(num_tokens: float) -> LengthDistribution:
    return FixedLength(num_tokens=num_tokens)


def lengths_seen(lengths: Iterable[int], *, origin: str = "seen") -> LengthDistribution:
    """The distribution of lengths that a file or a run holds."""
    ordered = tuple(sorted(lengths))
    if not ordered:
        raise ConfigError(f"{origin} holds no lengths: give at least one")
    if ordered[0] < 1:
        raise ConfigError(f"{origin} holds the length {ordered[0]}: lengths are 1 token or more")
    return EmpiricalLength(lengths=ordered, origin=origin)


def lengths_with_limit(mean: float, longest: float, *, least_cv: float, limit_frac: float) -> LengthDistribution:
    """Lengths of which the mean and a limit are known: log-normal, spread at least by `least_cv`, and so far that the
    share `limit_frac` of them reaches the limit."""
    if longest <= mean:
        return fixed(mean)
    cv = max(least_cv, cv_to_limit(longest / mean, limit_frac=limit_frac))
    return LogNormalLength(num_mean=mean, cv=cv, num_max=longest)


def cv_to_limit(ratio: float, *, limit_frac: float) -> float:
    """Standard deviation over mean of a log-normal whose share `limit_frac` lies above `ratio` times its mean.

    Equation  s^2 / 2 - z s + ln r = 0,  z the normal quantile of 1 - f;  cv = sqrt(exp(s^2) - 1)
    Source    a log-normal's mean is exp(m + s^2 / 2)
    Assumes   the smaller root; where no spread reaches that far, the one that reaches furthest
    Checked   tests/workload/test_rl.py: the share above the limit
    """
    z = NORMAL.inv_cdf(1.0 - limit_frac)
    s = z - math.sqrt(max(z**2 - 2.0 * math.log(ratio), 0.0))
    return math.sqrt(math.expm1(s**2))


def parse_lengths(text: str, *, what: str = "length") -> LengthDistribution:
    """A distribution as people write it; a whole number is a fixed length."""
    kind, colon, rest = (part.strip() for part in text.strip().partition(":"))
    if not colon:
        kind, rest = "fixed", kind
    if kind == "fixed":
        return fixed(whole_number(rest, key=what, what="lengths"))
    if kind == "uniform":
        return _uniform(text, rest, what)
    if kind in PARTS:
        return _tailed(kind, text, rest, what)
    near = nearest(kind, ("fixed", "uniform", *PARTS))
    hint = f"did you mean {' or '.join(near)}?" if near else f"write {FORMS}"
    raise ConfigError(f"{what} {text!r} names no distribution of lengths: {hint}")


def _uniform(text: str, rest: str, what: str) -> LengthDistribution:
    low, dash, high = rest.partition("-")
    if not dash:
        raise ConfigError(f"{what} {text!r} gives no range: write uniform:64-512")
    least, most = (whole_number(end.strip(), key=what, what="lengths") for end in (low, high))
    if least > most:
        raise ConfigError(f"{what} {text!r} ends below its start: write uniform:{most}-{least}")
    return fixed(least) if least == most else UniformLength(num_least=least, num_most=most)


def _tailed(kind: str, text: str, rest: str, what: str) -> LengthDistribution:
    written = assignments(rest, allowed=PARTS[kind], what=f"{what} {kind}")
    shape = PARTS[kind][1]
    missing = [name for name in ("mean", shape) if name not in written]
    if missing:
        raise ConfigError(f"{what} {text!r} lacks {' and '.join(missing)}: write {FORMS}")
    mean, form = (_positive(written[name], name, text, what) for name in ("mean", shape))
    most = _positive(written["max"], "max", text, what) if "max" in written else math.inf
    if mean < 1.0:
        raise ConfigError(f"{what} {text!r} has mean={mean:g}: a mean length is 1 token or more")
    if most <= mean:
        raise ConfigError(f"{what} {text!r} has max={most:g}, not above its mean of {mean:g}: raise max")
    if kind == "lognormal":
        return LogNormalLength(num_mean=mean, cv=form, num_max=most)
    if form < LEAST_ALPHA:
        raise ConfigError(f"{what} {text!r} has alpha={form:g}: it must be {LEAST_ALPHA:g} or more")
    if form <= 1.0 and math.isinf(most):
        raise ConfigError(f"{what} {text!r} has no mean with alpha={form:g} and no max: add max=, or alpha above 1")
    return ParetoLength(num_mean=mean, alpha=form, num_max=most)


def _positive(written: str, name: str, text: str, what: str) -> float:
    try:
        value = float(written) if written.startswith("-") else units.parse(written, units.COUNT)
    except (ValueError, QuantityError) as error:
        raise ConfigError(f"{what} {text!r} has {name}={written}, which is not a number: write {FORMS}") from error
    if not 0.0 < value <= MAX_SIZE:
        raise ConfigError(f"{what} {text!r} has {name}={written}: it must be above 0 and at most {MAX_SIZE}")
    return value


def _limit_text(num_max: float) -> str:
    return "" if math.isinf(num_max) else f",max={num_max:g}"


@lru_cache(maxsize=512)
def _normal_quantile(frac: float) -> float:
    """Of shares between cells, which are the same for every distribution."""
    return -math.inf if frac <= 0.0 else math.inf if frac >= 1.0 else NORMAL.inv_cdf(frac)


def _upper_normal(z: Floats) -> Floats:
    """Share of a normal distribution above z."""
    return np.array([0.5 * math.erfc(float(x) / math.sqrt(2.0)) for x in z])


def _solved(
    rising: Callable[[float], float], target: float, low: float, high: float, *, num_rounds: int = 100
) -> float:
    """Where a rising function reaches a value, by bisection."""
    for _ in range(num_rounds):
        middle = (low + high) / 2.0
        if rising(middle) < target:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0
