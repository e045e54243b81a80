"""Entry: what every kind of catalogue entry has in common."""

from __future__ import annotations

from pydantic import Field

from scalewright.catalog.facts import Fact, Id, Source, Strict


class Entry(Strict):
    """What every entry has."""

    schema_: str = Field(alias="schema")
    id: Id
    name: str
    aliases: tuple[str, ...] = ()
    """Other spellings people and papers use; matched without case, spaces, `_` or `-`."""
    sources: dict[str, Source]
    notes: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    """Other sources' figures that disagree with this entry, and why its own value is kept."""


def require_positive(name: str, fact: Fact | None, *, whole: bool = False) -> None:
    if fact is None:
        return
    if fact.value <= 0:
        raise ValueError(f"{name} is {fact.text}: it must be above zero")
    if whole and fact.value != int(fact.value):
        raise ValueError(f"{name} is {fact.text}: it must be a whole number")
