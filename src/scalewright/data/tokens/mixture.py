"""Mixture: which set the i-th sample of training comes from, by weight, and which sample of that set it is."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scalewright.errors import ConfigError

BLOCK = 2**12
"""Samples after which the row of sets repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedPath:
    """A token set and how often its samples are taken."""

    path: Path
    weight: float = 1.0

    def __str__(self) -> str:
        return str(self.path) if self.weight == 1.0 else f"{self.path}:{self.weight:g}"


def parse_sets(text: str) -> list[WeightedPath]:
    """The sets of `PATH[:WEIGHT],PATH[:WEIGHT]...`. A colon before anything but a number belongs to the path."""
    sets = []
    for part in [text] if Path(text).exists() else text.split(","):
        path, colon, weight_text = part.rpartition(":")
        weight = _number(weight_text)
        if not colon or weight is None or Path(part).exists():
            path, weight = part, 1.0
        if not path.strip():
            raise ConfigError(f"--data {text!r}: a set has no path; give PATH, or PATH:WEIGHT for each of several")
        if not (weight > 0 and math.isfinite(weight)):
            raise ConfigError(f"--data {part!r}: weight {weight:g} must be above 0; leave the set out instead")
        sets.append(WeightedPath(path=Path(path.strip()), weight=weight))
    return sets


class Mixture:
    """Sets in one row by their weights. Any place of it is computed without those before it.

    A block of `BLOCK` samples has each set's share, rounded by less than one sample. Shares are spread over the
    block: each next sample is of the set that is due first, so that no set is ever off by a whole sample within it
    (Tijdeman 1980, the chairman assignment problem).
    """

    def __init__(self, weights: Sequence[float]) -> None:
        if not weights or not all(weight > 0 and math.isfinite(weight) for weight in weights):
            raise ConfigError(f"weights {list(weights)}: give one or more numbers above 0")
        total = math.fsum(weights)
        self.shares = [weight / total for weight in weights]
        counts = _rounded(self.shares, BLOCK)
        if min(counts) < 1:
            least = self.shares[counts.index(0)]
            raise ConfigError(
                f"a share of {least:.2g} is below one of {BLOCK} samples; give the set a larger weight, or none"
            )
        self._counts = np.asarray(counts, dtype=np.int64)
        self._sets = _spread(tuple(counts))
        self._numbers = _numbers(self._sets, len(counts))

    def __call__(self, places: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For each place: the set, and how many samples of that set came before."""
        blocks, within = np.divmod(np.asarray(places, dtype=np.int64), BLOCK)
        sets = self._sets[within]
        return sets, blocks * self._counts[sets] + self._numbers[within]

    def taken(self, num_samples: int) -> list[int]:
        """Samples of each set among the first `num_samples`."""
        blocks, within = divmod(num_samples, BLOCK)
        begun = np.bincount(self._sets[:within], minlength=len(self._counts))
        return [int(number) for number in blocks * self._counts + begun]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _rounded(shares: Sequence[float], total: int) -> list[int]:
    """Whole numbers that sum to `total`, each less than one from its share: the largest remainders are rounded up."""
    exact = [share * total for share in shares]
    counts = [math.floor(value) for value in exact]
    by_remainder = sorted(range(len(shares)), key=lambda n: (counts[n] - exact[n], n))
    for number in by_remainder[: total - sum(counts)]:
        counts[number] += 1
    return counts


@functools.cache
def _spread(counts: tuple[int, ...]) -> NDArray[np.int64]:
    """The set of each place of a block: among those whose quota allows one more, the one that is due first."""
    total, among = sum(counts), range(len(counts))
    given = [0] * len(counts)
    slack = 1.0 / (2 * len(counts) - 2) if len(counts) > 1 else 0.0
    sets = np.empty(total, dtype=np.int64)
    for place in range(total):
        passed = (place + 1) / total
        # A set may take its next sample if its quota after this place, plus what the bound leaves, has room for it.
        chosen = min(
            (n for n in among if given[n] + slack <= counts[n] * passed),
            key=lambda n: (given[n] + 1 - slack) / counts[n],
        )
        given[chosen] += 1
        sets[place] = chosen
    return sets


def _numbers(sets: NDArray[np.int64], num_sets: int) -> NDArray[np.int64]:
    """For each place, how often its set came before."""
    numbers = np.empty(len(sets), dtype=np.int64)
    for one in range(num_sets):
        places = np.flatnonzero(sets == one)
        numbers[places] = np.arange(len(places))
    return numbers
