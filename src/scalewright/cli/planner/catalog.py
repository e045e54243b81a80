"""`scalewright catalog`: what is known, where from, and what follows from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from scalewright.cli.options import AsJson, CatalogFolder, Explain, report_written, warn_left_out

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from rich.console import Console

    from scalewright.catalog.library import Catalog
    from scalewright.catalog.types import Entry


def run(
    kind: Annotated[
        str | None, typer.Argument(help="accelerators, systems, models, ..., `compare` or `new`.", show_default=False)
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="Entry to show, or two to compare; new: system, fabric, price or site, and a name.",
            show_default=False,
        ),
    ] = None,
    explain: Explain = False,
    as_json: AsJson = False,
    catalog: CatalogFolder = None,
) -> None:
    """Show the catalogue: its kinds, one kind, one entry, `compare A B`; `new KIND NAME` writes a template."""
    from scalewright.catalog.library import open_catalog
    from scalewright.catalog.types import KINDS
    from scalewright.errors import ConfigError
    from scalewright.records.documents import document, to_json
    from scalewright.report.catalogue import entries as catalogue
    from scalewright.report.catalogue import tables as catalogue_tables
    from scalewright.report.console import print_whole

    words = list(names or [])
    if kind == "new":
        _write_template(words, catalog)
        return
    library = open_catalog(catalog)
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
            print_whole(lambda console: catalogue_tables.print_comparison(console, library, *pair))
        return
    entries: list[Entry]
    if kind is None:
        if as_json:
            typer.echo(to_json(document("catalog", {"kinds": {k: library.ids(k) for k in KINDS}})), nl=False)
        else:
            print_whole(lambda console: catalogue_tables.print_kinds(console, library, explain=explain))
        return
    if kind in KINDS and not words:
        entries, problems = library.readable(kind)
        warn_left_out(problems)
    elif kind in KINDS:
        entries = [library.get(kind, name) for name in words]
    else:
        entries = []
        for name in (kind, *words):
            matches, problems = library.find_all(name)
            entries += matches.values()
            warn_left_out(problems)
    if as_json:
        body = {"entries": [catalogue.as_dict(library, e) for e in entries]}
        typer.echo(to_json(document("catalog", body)), nl=False)
    elif kind in KINDS and not words:
        print_whole(lambda console: catalogue_tables.print_listing(console, kind, entries))
    else:
        print_whole(lambda console: _print_entries(console, library, entries, explain=explain))


def _print_entries(console: Console, library: Catalog, entries: Iterable[Entry], *, explain: bool) -> None:
    from scalewright.report.catalogue import tables as catalogue_tables

    for entry in entries:
        catalogue_tables.print_entry(console, library, entry, explain=explain)


def _write_template(words: list[str], folder: Path | None) -> None:
    from datetime import UTC, datetime

    from scalewright.catalog.facts import EXAMPLE_LINE
    from scalewright.catalog.library import open_catalog, search_path
    from scalewright.catalog.new_entry import EXAMPLE, FOLDERS, write_new_entry
    from scalewright.errors import ConfigError

    if len(words) != 2:
        raise ConfigError(
            f"catalog new takes a kind ({', '.join(FOLDERS)}) and a name, not {' '.join(words)!r}: write {EXAMPLE}"
        )
    kind, name = words
    library, accelerator = open_catalog(folder), None
    if kind == "price" and name in library.ids("systems"):
        accelerator = next(p.accelerator for p in library.system(name).partitions if p.default)
    path = write_new_entry(
        kind, name, folder=search_path(folder)[0], today=datetime.now(UTC).date(), accelerator=accelerator
    )
    report_written(path)
    show = f"site show {name}" if kind == "site" else f"catalog {FOLDERS[kind]} {name}"
    where = "" if folder is None else f" --catalog {folder}"
    typer.echo(
        f"next: put your values in and delete the line {EXAMPLE_LINE!r}, with which nothing uses them; then check it "
        f"with scalewright {show}{where}",
        err=True,
    )
