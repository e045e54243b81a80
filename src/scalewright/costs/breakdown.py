"""Breakdown: named, nested, additive terms. The parts are the explanation; the total is computed, never stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatLike = float | NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTimes:
    """Seconds of one micro-batch, forward and backward."""

    forward_s: FloatLike
    backward_s: FloatLike

    def __add__(self, other: PassTimes) -> PassTimes:
        return PassTimes(forward_s=self.forward_s + other.forward_s, backward_s=self.backward_s + other.backward_s)

    def scaled(self, factor: FloatLike) -> PassTimes:
        return PassTimes(forward_s=self.forward_s * factor, backward_s=self.backward_s * factor)


NOTHING = PassTimes(forward_s=0.0, backward_s=0.0)


@dataclass(frozen=True, slots=True)
class Words:
    """A column of names: each distinct name once, and the index of the name that each layout has."""

    names: NDArray[np.str_]
    places: NDArray[Any]

    def at(self, index: int) -> str:
        return str(self.names[self.places[index]])

    def spread(self, index: NDArray[np.int64]) -> Words:
        """The name of each layout, where these are the names of the distinct ones."""
        return Words(self.names, self.places.take(index, axis=-1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """A term, or a sum of terms of one unit. A leaf's value may be a column: one number per layout."""

    name: str
    unit: str
    value: FloatLike | None = None
    """Set on leaves only."""
    parts: tuple[Breakdown, ...] = ()
    formula: str = ""
    """`module.function` whose docstring holds equation, source and assumptions."""
    inputs: dict[str, Any] = field(default_factory=dict)
    note: str = ""

    def __post_init__(self) -> None:
        if (self.value is None) == (not self.parts):
            raise AssertionError(f"{self.name}: a term has either a value or parts")
        other_units = [p.name for p in self.parts if p.unit != self.unit]
        if other_units:
            raise AssertionError(f"{self.name} is in {self.unit}, but {other_units} are not")

    @property
    def total(self) -> FloatLike:
        if self.value is not None:
            return self.value
        total: FloatLike = 0.0
        for part in self.parts:
            total = total + part.total
        return total

    def at(self, index: int) -> Breakdown:
        """The breakdown of one layout out of columns."""

        def pick(value: Any) -> Any:
            if isinstance(value, Words):
                return value.at(index)
            return value[index].item() if isinstance(value, np.ndarray) else value

        return replace(
            self,
            value=None if self.value is None else float(pick(self.value)),
            parts=tuple(p.at(index) for p in self.parts),
            inputs={k: pick(v) for k, v in self.inputs.items()},
        )

    def walk(self, depth: int = 0) -> Iterator[tuple[int, Breakdown]]:
        yield depth, self
        for part in self.parts:
            yield from part.walk(depth + 1)

    def part(self, name: str) -> Breakdown:
        """The first term of that name, at any depth."""
        for _, term in self.walk():
            if term.name == name:
                return term
        raise KeyError(name)

    def as_dict(self) -> dict[str, Any]:
        body: dict[str, Any] = {"name": self.name, f"total_{self.unit}": float(self.total)}
        if self.formula:
            body["formula"] = self.formula
        if self.inputs:
            body["inputs"] = {k: v.item() if isinstance(v, np.generic) else v for k, v in self.inputs.items()}
        if self.note:
            body["note"] = self.note
        if self.parts:
            body["parts"] = [p.as_dict() for p in self.parts]
        return body


def seconds_term(name: str, value: FloatLike, formula: str, **inputs: object) -> Breakdown:
    """A leaf in seconds, with the inputs of its formula."""
    return Breakdown(name=name, unit="s", value=value, formula=formula, inputs=inputs)


def bytes_term(name: str, value: FloatLike, formula: str, **inputs: object) -> Breakdown:
    """A leaf in bytes."""
    return Breakdown(name=name, unit="bytes", value=value, formula=formula, inputs=inputs)


def joules_term(name: str, value: FloatLike, formula: str, **inputs: object) -> Breakdown:
    """A leaf in joules."""
    return Breakdown(name=name, unit="j", value=value, formula=formula, inputs=inputs)
