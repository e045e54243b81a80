"""All left-to-right expressions of countdown, sorted by their value for each choice of numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations_with_replacement, permutations, product

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
MOST_EXPRESSIONS = 12_000_000
"""Of all choices of numbers together. Beyond, a fixed sample of the choices is taken."""
CHOICES_SEED = 20_250_101
"""Decides that sample: the same on every machine."""
NOT_VALID = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemSpace:
    """Every problem: a choice of numbers and a target that some expression reaches.

    Expressions of a choice are numbered by their value, so those that reach a target are neighbours.
    """

    choices: Ints
    """Numbers in rising order, one row a choice."""
    places: Ints
    """Expression kind x number: which of the choice's numbers stands where."""
    operators: Ints
    """Expression kind x gap: which operator stands where."""
    order: NDArray[np.int32]
    """Choice x position: expression kinds by rising value. Those that are not valid come first."""
    first_valid: Ints
    """Of each choice: the position of its first valid expression."""
    choice: Ints
    """Of each problem."""
    target: Ints
    start: Ints
    """Of each problem: the first position that reaches its target."""
    stop: Ints
    """Of each problem: the position after the last one."""
    is_test: NDArray[np.bool_]

    @property
    def num_problems(self) -> int:
        return len(self.target)

    @property
    def hit_frac(self) -> NDArray[np.float64]:
        """Share of valid expressions that reach the target: what a random attempt hits."""
        num_valid = self.order.shape[1] - self.first_valid[self.choice]
        hit_frac: NDArray[np.float64] = (self.stop - self.start) / num_valid
        return hit_frac


@lru_cache(maxsize=8)
def problem_space(*, numbers: int, largest: int, operators: str, values: int, test_frac: float) -> ProblemSpace:
    """The problems of one difficulty. The split depends on the problem alone, not on a seed."""
    kinds = list(product(permutations(range(numbers)), product(range(len(operators)), repeat=numbers - 1)))
    places = np.array([place for place, _ in kinds], dtype=np.int64)
    gaps = np.array([gap for _, gap in kinds], dtype=np.int64).reshape(len(kinds), numbers - 1)
    choices = number_choices(numbers=numbers, largest=largest, most=max(MOST_EXPRESSIONS // len(kinds), 1))
    reached = expression_values(choices, places, gaps, operators=operators, values=values)
    order = np.argsort(reached, axis=1, kind="stable").astype(np.int32)
    reached = np.take_along_axis(reached, order, axis=1)
    is_first = np.ones(reached.shape, dtype=bool)
    is_first[:, 1:] = reached[:, 1:] != reached[:, :-1]
    choice, start = np.nonzero(is_first)
    stop = np.append(start[1:], 0)
    stop[np.append(choice[1:] != choice[:-1], True)] = reached.shape[1]
    target = reached[choice, start].astype(np.int64)
    is_valid = target != NOT_VALID
    choice, start, stop, target = choice[is_valid], start[is_valid], stop[is_valid], target[is_valid]
    return ProblemSpace(
        choices=choices, places=places, operators=gaps, order=order, first_valid=(reached == NOT_VALID).sum(axis=1),
        choice=choice, target=target, start=start, stop=stop,
        is_test=key_fracs(np.column_stack([choices[choice], target])) < test_frac,
    )  # fmt: skip


def number_choices(*, numbers: int, largest: int, most: int) -> Ints:
    """All choices of numbers in rising order; a fixed sample of at most `most` where there are more."""
    if math.comb(largest + numbers - 1, numbers) <= most:
        return np.array(list(combinations_with_replacement(range(1, largest + 1), numbers)), dtype=np.int64)
    rng = np.random.default_rng(CHOICES_SEED)
    drawn = np.sort(rng.integers(1, largest + 1, (most, numbers)), axis=1)
    return np.unique(drawn, axis=0)


def expression_values(choices: Ints, places: Ints, gaps: Ints, *, operators: str, values: int) -> NDArray[np.int16]:
    """Choice x kind: the value of each expression, or -1 where a step leaves the range or a division has a rest."""
    results = np.empty((len(choices), len(places)), dtype=np.int16)
    for kind, (place, gap) in enumerate(zip(places, gaps, strict=True)):
        value = choices[:, place[0]].copy()
        for position, operator in zip(place[1:], gap, strict=True):
            value = _applied(operators[operator], value, choices[:, position], values=values)
        results[:, kind] = value
    return results


def _applied(operator: str, left: Ints, right: Ints, *, values: int) -> Ints:
    is_valid = left >= 0
    match operator:
        case "+":
            result = left + right
        case "-":
            result = left - right
        case "*":
            result = left * right
        case _:
            result = left // right
            is_valid &= result * right == left
    return np.where(is_valid & (result >= 0) & (result < values), result, NOT_VALID)


def key_fracs(keys: Ints) -> NDArray[np.float64]:
    """A number from 0 up to 1 for each row of whole numbers: the same on every machine, and without a pattern.

    Each number is mixed in by the steps of SplitMix64.
    """
    mixed = np.zeros(len(keys), dtype=np.uint64)
    for column in keys.T:
        mixed = mixed + column.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed = mixed ^ (mixed >> np.uint64(31))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def num_misses(draws: NDArray[np.float64], hit_frac: NDArray[np.float64], *, most: int) -> Ints:
    """Misses before the first hit of independent attempts, given that one of `most` attempts hits.

    The inverse of a geometric distribution that is cut after `most`, at numbers from 0 up to 1.
    """
    miss_frac = 1.0 - hit_frac
    level = 1.0 - draws * (1.0 - miss_frac**most)
    with np.errstate(divide="ignore"):
        misses = np.floor(np.log(level) / np.log(miss_frac))
    whole: Ints = np.clip(np.nan_to_num(misses, posinf=0.0), 0, most - 1).astype(np.int64)
    return whole
