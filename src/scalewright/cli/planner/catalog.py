"""`scalewright catalog`: what is known, where from, and what follows from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from scalewright.cli.options import AsJson, CatalogFolder, Explain

if TYPE_CHECKING:
    from scalewright.catalog.types import Entry


def run(
    kind: Annotated[
        str | None, typer.Argument(help="accelerators, systems, models, ..., or `compare`.", show_default=False)
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Entry to show, or two to compare.", show_default=False),
    ] = None,
    explain: Explain = False,
    as_json: AsJson = False,
    catalog: CatalogFolder = None,
) -> None:
    """Show the catalogue: its kinds, one kind, one entry, or `compare A B`."""
    from scalewright.catalog.library import open_catalog
    from scalewright.catalog.types import KINDS
    from scalewright.errors import ConfigError
    from scalewright.records.documents import document, to_json
    from scalewright.report.catalogue import entries as catalogue
    from scalewright.report.catalogue import tables as catalogue_tables
    from scalewright.report.console import answer_console

    library = open_catalog(catalog)
    words = list(names or [])
    console = answer_console()
    if kind == "compare":
        if len(words) != 2:
            raise ConfigError(
                f"catalog compare takes two names, not {len(words)}: write catalog compare h100-sxm a100-sxm-80gb"
            )
        pair = library.find_pair(*words)
        if as_json:
            body = {
                "entries": [catalogue.as_dict(library, e) for e in pair],
                "ratios": catalogue.ratios(library, *pair),
            }
            typer.echo(to_json(document("catalog", body)), nl=False)
        else:
            catalogue_tables.print_comparison(console, library, *pair)
        return
    entries: list[Entry]
    if kind is None:
        if as_json:
            typer.echo(to_json(document("catalog", {"kinds": {k: library.ids(k) for k in KINDS}})), nl=False)
        else:
            catalogue_tables.print_kinds(console, library, explain=explain)
        return
    if kind in KINDS and not words:
        entries = library.all(kind)
    elif kind in KINDS:
        entries = [library.get(kind, name) for name in words]
    else:
        entries = [library.find(name) for name in (kind, *words)]
    if as_json:
        body = {"entries": [catalogue.as_dict(library, e) for e in entries]}
        typer.echo(to_json(document("catalog", body)), nl=False)
    elif kind in KINDS and not words:
        catalogue_tables.print_listing(console, kind, entries)
    else:
        for entry in entries:
            catalogue_tables.print_entry(console, library, entry, explain=explain)
