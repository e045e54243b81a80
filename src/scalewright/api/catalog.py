"""`sw.catalog`: what is known of devices, systems and models, as tables with their sources.

sw.catalog.systems                           a table of all systems; sw.catalog.systems() is the same
sw.catalog.systems["leonardo"]               one entry, with its facts
sw.catalog.find("h100-sxm")                  an entry of that name, of any kind
sw.catalog.compare("h100-sxm", "a100-sxm-80gb")
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from scalewright.api.frames import Framed
from scalewright.catalog.library import Catalog, open_catalog
from scalewright.catalog.types import KINDS, Entry
from scalewright.report.catalogue.entries import facts_of, figures, ratios, summary_columns
from scalewright.report.notebook import html


@dataclass(frozen=True, slots=True)
class EntryTable(Framed, Mapping[str, "EntryFacts"]):
    """The entries of one kind by their ids."""

    kind: str
    library: Catalog

    def __call__(self) -> EntryTable:
        """The table itself: `sw.catalog.systems()` is what many type first."""
        return self

    def __getitem__(self, name: str) -> EntryFacts:
        return EntryFacts(self.library.get(self.kind, name), self.library)

    def __iter__(self) -> Iterator[str]:
        return iter(self.library.ids(self.kind))

    def __len__(self) -> int:
        return len(self.library.ids(self.kind))

    def columns(self) -> dict[str, list[str]]:
        summaries = [{"id": entry.id, **summary_columns(entry)} for entry in self.library.all(self.kind)]
        return {name: [summary[name] for summary in summaries] for name in summaries[0]} if summaries else {}

    def __repr__(self) -> str:
        return f"{self.kind}: {', '.join(self)}"

    def _repr_html_(self) -> str:
        columns = self.columns()
        return html.table(list(columns), zip(*columns.values(), strict=True), caption=f"{len(self)} {self.kind}")


@dataclass(frozen=True, slots=True)
class EntryFacts(Framed):
    """One entry with its facts: value, kind of evidence and source."""

    entry: Entry
    library: Catalog

    def columns(self) -> dict[str, list[str]]:
        facts = list(facts_of(self.entry))
        return {
            "fact": [name for name, _ in facts],
            "value": [fact.text for _, fact in facts],
            "kind": [fact.source.kind for _, fact in facts],
            "source": [fact.source.text for _, fact in facts],
        }

    def __getitem__(self, name: str) -> float:
        """The value of a fact in SI units."""
        facts = {fact_name: fact.value for fact_name, fact in facts_of(self.entry)}
        return float(facts[name])

    def __repr__(self) -> str:
        lines = [f"{name}: {fact.text} ({fact.source.kind})" for name, fact in facts_of(self.entry)]
        return "\n".join([f"{self.entry.id}  {self.entry.name}", *lines])

    def _repr_html_(self) -> str:
        columns = self.columns()
        return html.table(list(columns), zip(*columns.values(), strict=True), caption=self.entry.name)


@dataclass(frozen=True, slots=True)
class EntryComparison(Framed):
    """Two entries of one kind side by side, with the ratio of each figure that both have."""

    first: Entry
    second: Entry
    library: Catalog

    def columns(self) -> dict[str, list[Any]]:
        """Figures that both have, in SI units."""
        left, right = (figures(self.library, entry) for entry in (self.first, self.second))
        ratio = ratios(self.library, self.first, self.second)
        names = [name for name in left if name in right]
        return {
            "figure": names,
            self.first.id: [left[name][0] for name in names],
            self.second.id: [right[name][0] for name in names],
            "ratio": [ratio.get(name) for name in names],
        }

    def _repr_html_(self) -> str:
        left, right = (figures(self.library, entry) for entry in (self.first, self.second))
        ratio = ratios(self.library, self.first, self.second)
        rows = [
            (name, left[name][1], right[name][1], f"{ratio[name]:.2f}" if name in ratio else "")
            for name in left
            if name in right
        ]
        return html.table(["figure", self.first.id, self.second.id, "ratio"], rows, right=("ratio",))


def find(name: str) -> EntryFacts:
    """The entry of that name, of any kind. If there is none, the error lists near names."""
    library = open_catalog()
    return EntryFacts(library.find(name), library)


def compare(first: str, second: str) -> EntryComparison:
    """Two entries of one kind side by side."""
    library = open_catalog()
    return EntryComparison(*library.find_pair(first, second), library)


def __getattr__(kind: str) -> EntryTable:
    """`sw.catalog.KIND`: the table of a kind of entries."""
    if kind in KINDS:
        return EntryTable(kind, open_catalog())
    raise AttributeError(f"the catalogue has no {kind!r}: choose {', '.join(names())}")


def names() -> list[str]:
    return [*KINDS, "find", "compare"]


def overview_html() -> str:
    library = open_catalog()
    return html.table(["kind", "entries"], [(kind, str(len(library.ids(kind)))) for kind in KINDS], right=("entries",))
