"""From axes to points: the product, choices, facts of the system, derived values, exceptions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from scalewright.errors import ConfigError
from scalewright.study.expressions import Value, evaluate, fill, shown
from scalewright.study.file import Cells, axes_of

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
    """What the kind of point is told; what is empty is left out."""
    kind: str = ""
    """Of this point, where the study mixes them; else the study's own."""


def matches(values: Mapping[str, Value], condition: Condition) -> bool:
    """Whether a point has these values; a tuple: one of them."""
    return all(name in values and values[name] in listed(wanted) for name, wanted in condition.items())


def num_combinations(cells: Cells) -> int:
    product = math.prod(len(axis) for axis in cells.matrix.values()) if cells.matrix else 0
    return product + sum(math.prod(len(listed(v)) for v in extra.values()) for extra in cells.include)


def listed(value: Value | tuple[Value, ...]) -> tuple[Value, ...]:
    return value if isinstance(value, tuple) else (value,)


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
    names = axes_of(cells)
    if cells.matrix:
        for axes in _product(cells.matrix):
            if not any(matches(axes, condition) for condition in cells.exclude):
                yield axes
    for number, extra in enumerate(cells.include):
        odd = sorted(set(names) ^ set(extra))
        if odd:
            what = "has no value for" if odd[0] in names else "gives a value for what is no axis,"
            raise ConfigError(f"{where}: key 'include.{number}' {what} {odd[0]!r}: every point needs the same axes")
        yield from _product({name: listed(extra[name]) for name in names})


def _product(axes: Mapping[str, tuple[Value, ...]]) -> Iterator[dict[str, Value]]:
    for combination in itertools.product(*axes.values()):
        yield dict(zip(axes, combination, strict=True))


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

    def filled(table: Mapping[str, Value], key: str) -> dict[str, Value]:
        return {
            name: fill(value, values, where=f"{where}: key '{key}.{name}'") if isinstance(value, str) else value
            for name, value in table.items()
        }

    told = filled(cells.point, "point")
    kind = str(told.pop("kind", ""))
    told |= filled(cells.extra.get(kind, {}), f"extra.{kind}")
    told = {name: value for name, value in told.items() if value != ""}
    return Cell(labels={name: shown(value) for name, value in axes.items()}, values=values, point=told, kind=kind)
