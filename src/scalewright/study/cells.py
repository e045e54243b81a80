"""From axes to points: the product, choices, facts of the system, derived values, exceptions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from scalewright.errors import ConfigError
from scalewright.study.expressions import Value, evaluate, fill, shown
from scalewright.study.file import Cells

Condition = Mapping[str, Value | tuple[Value, ...]]
Facts = Callable[[Mapping[str, Value]], Mapping[str, Value]]
"""What else is known of a point once its axes and choices are: GPUs per node of its system, for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One combination of axes with everything that follows from it."""

    labels: dict[str, str]
    """The axes, for people."""
    values: dict[str, Value]
    point: dict[str, Value]
    """What the kind of point is told."""


def matches(values: Mapping[str, Value], condition: Condition) -> bool:
    """Whether a point has these values; a tuple: one of them."""
    return all(
        name in values and values[name] in (wanted if isinstance(wanted, tuple) else (wanted,))
        for name, wanted in condition.items()
    )


def num_combinations(cells: Cells) -> int:
    return math.prod(len(axis) for axis in cells.matrix.values()) + len(cells.include)


def expand(cells: Cells, *, facts: Facts, where: str, max_points: int) -> list[Cell]:
    """All points in the order of the axes. Too many, none, or a value that cannot be worked out is an error."""
    empty = [name for name, axis in cells.matrix.items() if not axis]
    if empty:
        raise ConfigError(f"{where}: key 'matrix.{empty[0]}' is an empty list, so there is no point: give it a value")
    count = num_combinations(cells)
    if count > max_points:
        raise ConfigError(
            f"{where}: the matrix has {count} points, over max_points of {max_points}: shorten an axis or raise it"
        )
    found = [_cell(cells, axes, facts, where) for axes in _combinations(cells, where)]
    if not found:
        raise ConfigError(f"{where}: every point of the matrix is excluded: drop an exclude")
    return found


def _combinations(cells: Cells, where: str) -> Iterator[dict[str, Value]]:
    names = list(cells.matrix)
    for combination in itertools.product(*cells.matrix.values()):
        axes = dict(zip(names, combination, strict=True))
        if not any(matches(axes, condition) for condition in cells.exclude):
            yield axes
    for number, extra in enumerate(cells.include):
        lacking = [name for name in names if name not in extra]
        if lacking:
            raise ConfigError(f"{where}: key 'include.{number}' has no value for the axis {lacking[0]!r}: add one")
        yield dict(extra)


def _cell(cells: Cells, axes: dict[str, Value], facts: Facts, where: str) -> Cell:
    values: dict[str, Value] = dict(axes)
    for choice in cells.choose:
        if matches(values, choice.where):
            values.update(choice.values)
    for name, value in values.items():
        if isinstance(value, str):
            values[name] = fill(value, values, where=f"{where}: {name}")
    values = {**facts(values), **values}
    for name, text in cells.derive.items():
        values[name] = evaluate(text, values, where=f"{where}: key 'derive.{name}'")
    told = {
        name: fill(value, values, where=f"{where}: key 'point.{name}'") if isinstance(value, str) else value
        for name, value in cells.point.items()
    }
    return Cell(labels={name: shown(value) for name, value in axes.items()}, values=values, point=told)
