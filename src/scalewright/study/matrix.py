"""The matrix of a study expanded: every combination of its axes, with the values that follow from it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from scalewright.errors import ConfigError
from scalewright.study.expressions import Value, fill, shown
from scalewright.study.file import PointMatrix, axes_of
from scalewright.study.point_values import Condition, Facts, PointValues, as_tuple


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """One combination of axes with everything that follows from it."""

    labels: dict[str, str]
    """The axes, for people."""
    values: dict[str, Value]
    options: dict[str, Value]
    """Options of the point's kind; empty ones are left out."""
    kind: str = ""
    """Kind of this point, if the study mixes kinds; empty: the study's own."""


def matches(values: Mapping[str, Value], condition: Condition) -> bool:
    """Whether a point has these values; a tuple allows any of its values."""
    return all(name in values and values[name] in as_tuple(allowed) for name, allowed in condition.items())


def num_combinations(matrix: PointMatrix) -> int:
    product = math.prod(len(axis) for axis in matrix.matrix.values()) if matrix.matrix else 0
    return product + sum(math.prod(len(as_tuple(v)) for v in extra.values()) for extra in matrix.include)


def expand(matrix: PointMatrix, *, facts: Facts, where: str, max_points: int) -> list[Combination]:
    """All combinations in the order of the axes. Too many, none, or a value that cannot be computed is an error."""
    empty = [name for name, axis in matrix.matrix.items() if not axis]
    if empty:
        raise ConfigError(f"{where}: key 'matrix.{empty[0]}' is an empty list: give it at least one value")
    count = num_combinations(matrix)
    if count > max_points:
        raise ConfigError(
            f"{where}: the matrix has {count} points, over max_points of {max_points}: shorten an axis, or raise "
            "max_points"
        )
    combinations = [_combination(matrix, axes, facts, where) for axes in _axis_values(matrix, where)]
    if not combinations:
        raise ConfigError(f"{where}: every point of the matrix is excluded: drop an exclude")
    return combinations


def _axis_values(matrix: PointMatrix, where: str) -> Iterator[dict[str, Value]]:
    names = axes_of(matrix)
    if matrix.matrix:
        for axes in _product(matrix.matrix):
            if not any(matches(axes, condition) for condition in matrix.exclude):
                yield axes
    for number, extra in enumerate(matrix.include):
        different = sorted(set(names) ^ set(extra))
        if different:
            what = "has no value for" if different[0] in names else "gives a value for something that is no axis,"
            raise ConfigError(
                f"{where}: key 'include.{number}' {what} {different[0]!r}: every point needs the same axes"
            )
        yield from _product({name: as_tuple(extra[name]) for name in names})


def _product(axes: Mapping[str, tuple[Value, ...]]) -> Iterator[dict[str, Value]]:
    for combination in itertools.product(*axes.values()):
        yield dict(zip(axes, combination, strict=True))


def _combination(matrix: PointMatrix, axes: dict[str, Value], facts: Facts, where: str) -> Combination:
    values = PointValues(matrix, axes, facts=facts, where=where).every()

    def filled(table: Mapping[str, Value], key: str) -> dict[str, Value]:
        return {
            name: fill(value, values, where=f"{where}: key '{key}.{name}'") if isinstance(value, str) else value
            for name, value in table.items()
        }

    options = filled(matrix.point, "point")
    kind = str(options.pop("kind", ""))
    options |= filled(matrix.extra.get(kind, {}), f"extra.{kind}")
    options = {name: value for name, value in options.items() if value != ""}
    labels = {name: shown(value) for name, value in axes.items()}
    return Combination(labels=labels, values=values, options=options, kind=kind)
