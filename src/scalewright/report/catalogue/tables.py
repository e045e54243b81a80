"""Catalogue tables for people, in 80 columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pydantic import BaseModel
from rich.console import Console
from rich.markup import escape

from scalewright.catalog.library import Catalog
from scalewright.catalog.types import KINDS, ConvShape, Entry, TransformerShape
from scalewright.report.catalogue.entries import derived_of, facts_of, figures, ratios, summary_columns
from scalewright.report.console import plain_table


def print_kinds(console: Console, catalog: Catalog, *, explain: bool) -> None:
    table = plain_table(
        "kind",
        "entries",
        "facts",
        "read",
        "recalled",
        "assumed",
        right=("entries", "facts", "read", "recalled", "assumed"),
    )
    total: Counter[str] = Counter()
    for kind in KINDS:
        entries, _ = catalog.readable(kind)
        count: Counter[str] = Counter(entries=len(entries))
        for entry in entries:
            for _, fact in facts_of(entry):
                count["facts"] += 1
                count[_standing(fact.source.kind, fact.source.recalled)] += 1
        table.add_row(kind, *(str(count[k]) for k in ("entries", "facts", "read", "recalled", "assumed")))
        total += count
    table.add_row("[bold]all[/]", *(str(total[k]) for k in ("entries", "facts", "read", "recalled", "assumed")))
    console.print(table)
    if explain:
        console.print("read: held against the source's text on the day given; recalled: written from knowledge of the")
        console.print("document; assumed: our choice, with the reason. Search order of folders, first wins:")
        for folder in catalog.folders:
            console.print(f"  {escape(str(folder))}")
    console.print("next: scalewright catalog systems | catalog h100-sxm | catalog compare A B", style="dim")


def _standing(kind: str, recalled: bool) -> str:
    if kind == "assumed":
        return "assumed"
    return "recalled" if recalled else "read"


def print_listing(console: Console, kind: str, entries: Sequence[Entry]) -> None:
    if not entries:
        console.print(f"no {kind} in the catalogue")
        return
    columns = list(summary_columns(entries[0]))
    table = plain_table("id", *columns)
    table.columns[0].no_wrap = True
    for entry in entries:
        table.add_row(entry.id, *(escape(v) for v in summary_columns(entry).values()))
    console.print(table)


def print_entry(console: Console, catalog: Catalog, entry: Entry, *, explain: bool) -> None:
    console.print(f"[bold]{escape(entry.id)}[/]  {escape(entry.name)}")
    for label, text in _plain_fields(entry):
        console.print(f"  {label}: {escape(text)}", style="dim")
    if explain:
        _print_facts_with_sources(console, entry)
    else:
        table = plain_table("fact", "value", "kind", "note")
        table.columns[0].no_wrap = True
        for name, fact in facts_of(entry):
            mark = "?" if fact.source.confidence == "low" else ""
            table.add_row(name, fact.text, fact.source.kind + mark, escape(fact.note))
        console.print(table)
    figures = derived_of(catalog, entry)
    if figures:
        table = plain_table("derived", "value", "from")
        for figure in figures:
            table.add_row(figure.name, figure.shown, escape(figure.arithmetic))
        console.print()
        console.print(table)
    for text in entry.conflicts:
        console.print(f"[yellow]conflict[/] {escape(text)}")
    for text in entry.notes:
        console.print(f"[cyan]note[/] {escape(text)}")
    if not explain:
        console.print("kind? = low confidence; --explain prints the source of every value", style="dim")
    console.print()


def _plain_fields(entry: Entry) -> list[tuple[str, str]]:
    """Fields that are words rather than facts, and a model's shape on one line."""
    skip = {"schema_", "id", "name", "sources", "notes", "conflicts", "partitions", "published"}
    shown = []
    for name in type(entry).model_fields:
        value = getattr(entry, name)
        if name in skip or value in (None, (), {}, ""):
            continue
        if isinstance(value, TransformerShape | ConvShape):
            given = value.model_dump(exclude={"source"}, exclude_defaults=True)
            shown.append(("shape", ", ".join(f"{k}={v}" for k, v in given.items())))
            shown.append(("shape from", f"{value.source.text} ({value.source.kind})"))
        elif not isinstance(value, BaseModel | dict):
            shown.append((name, ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)))
    return shown


def _print_facts_with_sources(console: Console, entry: Entry) -> None:
    """Facts grouped under their source, so that a long source is printed once."""
    by_source: dict[str, list[str]] = {}
    heads: dict[str, str] = {}
    for name, fact in facts_of(entry):
        source = fact.source
        key = source.text
        marks = (
            source.kind,
            "recalled" if source.recalled else "",
            "low confidence" if source.confidence == "low" else "",
        )
        standing = ", ".join(mark for mark in marks if mark)
        heads[key] = f"[cyan]{standing}, {source.checked.isoformat()}[/]  {escape(source.text)}" + (
            f"\n  {escape(source.url)}" if source.url else ""
        )
        note = f"  ({fact.note})" if fact.note else ""
        by_source.setdefault(key, []).append(f"  {name} = {fact.text}{note}")
    for key, lines in by_source.items():
        console.print(heads[key])
        for line in lines:
            console.print(escape(line))


def print_comparison(console: Console, catalog: Catalog, first: Entry, second: Entry) -> None:
    left = {name: text for name, (_, text) in figures(catalog, first).items()}
    right = {name: text for name, (_, text) in figures(catalog, second).items()}
    ratio = ratios(catalog, first, second)
    table = plain_table("", first.id, second.id, "ratio", right=("ratio",))
    for name in [*left, *(n for n in right if n not in left)]:
        table.add_row(name, left.get(name, "-"), right.get(name, "-"), f"{ratio[name]:.2f}" if name in ratio else "")
    console.print(table)
