"""Values of one point: its axes, choices, derived values and facts of its system, each computed when it is needed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

from scalewright.errors import ConfigError
from scalewright.study.expressions import Value, evaluate, fill
from scalewright.study.file import FACTS, PointMatrix

Condition = Mapping[str, Value | tuple[Value, ...]]
Facts = Callable[[Mapping[str, Value]], Mapping[str, Value]]
"""Values that follow from a point's system, partition and transport, such as the GPUs per node."""
PLACE = ("system", "partition", "transport")
"""Options of a point that say where it runs."""


def as_tuple(value: Value | tuple[Value, ...]) -> tuple[Value, ...]:
    return value if isinstance(value, tuple) else (value,)


class PointValues(Mapping[str, Value]):
    """Values of a point by name, in the order that they need each other.

    A derived value comes before a choice of the same name, and a choice before an axis. Of several choices the last
    counts. A choice may ask for a derived value, and a derived value may use a choice, as long as neither needs itself.
    """

    def __init__(self, matrix: PointMatrix, axes: Mapping[str, Value], *, facts: Facts, where: str) -> None:
        self._matrix, self._axes, self._facts_of, self._where = matrix, axes, facts, where
        self._known: dict[str, Value] = {}
        self._matched: dict[int, bool] = {}
        self._facts: Mapping[str, Value] | None = None
        self._needed: list[str] = []
        chosen = (name for choice in matrix.choose for name in choice.values)
        self._names = tuple(dict.fromkeys((*axes, *chosen, *matrix.derive, *FACTS)))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in FACTS or self._has(name))

    def _has(self, name: str) -> bool:
        with self._needing(name):
            return name in self._matrix.derive or self._plain(name, len(self._matrix.choose)) is not None

    def __getitem__(self, name: str) -> Value:
        if name not in self._known:
            if name in self._needed:
                chain = " needs ".join([*self._needed[self._needed.index(name) :], name])
                raise ConfigError(f"{self._where}: {chain}: a value cannot follow from itself")
            with self._needing(name):
                self._known[name] = self._computed(name)
        return self._known[name]

    @contextlib.contextmanager
    def _needing(self, name: str) -> Iterator[None]:
        self._needed.append(name)
        try:
            yield
        finally:
            self._needed.pop()

    def every(self) -> dict[str, Value]:
        """All values that the point has."""
        facts = self._place_facts()
        return {name: self[name] for name in self._names if name in facts or self._has(name)}

    def _computed(self, name: str) -> Value:
        if name in self._matrix.derive:
            where = f"{self._where}: key 'derive.{name}'"
            return evaluate(self._matrix.derive[name], _Below(self, name), where=where)
        value = self.below(name)
        if value is not None:
            return value
        facts = self._place_facts()
        if name not in facts:
            raise ConfigError(
                f"{self._where}: {name} follows from the system of a point, and this one names no catalogued system: "
                "give one in [point], or write the number"
            )
        return facts[name]

    def below(self, name: str) -> Value | None:
        """A choice or an axis of this name, beneath a derived value; None if there is none."""
        value = self._plain(name, len(self._matrix.choose))
        return fill(value, self, where=f"{self._where}: {name}") if isinstance(value, str) else value

    def _plain(self, name: str, num_choices: int) -> Value | None:
        """The value that the first choices give, or else the axis; None if neither does."""
        for number in reversed(range(num_choices)):
            choice = self._matrix.choose[number]
            if name in choice.values and self._matches(number):
                return choice.values[name]
        return self._axes.get(name)

    def _matches(self, number: int) -> bool:
        if number not in self._matched:
            where = self._matrix.choose[number].where
            self._matched[number] = all(
                self._seen_by(name, number) in as_tuple(allowed) for name, allowed in where.items()
            )
        return self._matched[number]

    def _seen_by(self, name: str, number: int) -> Value | None:
        """What a choice compares: a derived value or a fact, or what earlier choices and axes give."""
        if name in self._matrix.derive or (name in FACTS and self._plain(name, number) is None):
            return self[name]
        value = self._plain(name, number)
        return fill(value, self, where=f"{self._where}: {name}") if isinstance(value, str) else value

    def _place_facts(self) -> Mapping[str, Value]:
        if self._facts is None:
            self._facts = self._facts_of(self._place())
        return self._facts

    def _place(self) -> dict[str, Value]:
        """System, partition and transport as the point's options have them; a system may also be an axis alone."""
        options = dict(self._matrix.point)
        if any(name in table for table in self._matrix.extra.values() for name in PLACE):
            kind = fill(str(options.get("kind", "")), self, where=f"{self._where}: key 'point.kind'")
            options |= self._matrix.extra.get(kind, {})
        place = {
            name: fill(str(options[name]), self, where=f"{self._where}: key 'point.{name}'")
            for name in PLACE
            if name in options
        }
        if "system" not in place and "system" in self:
            place["system"] = str(self["system"])
        return dict(place)


class _Below(Mapping[str, Value]):
    """The values of a point as one derived value sees them: its own name is the choice or the axis."""

    def __init__(self, values: PointValues, name: str) -> None:
        self._values, self._name = values, name

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: object) -> bool:
        return self._values.below(self._name) is not None if name == self._name else name in self._values

    def __getitem__(self, name: str) -> Value:
        if name != self._name:
            return self._values[name]
        value = self._values.below(name)
        if value is None:
            raise KeyError(name)
        return value
