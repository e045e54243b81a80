"""`scalewright validate`: predictions against published runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.options import AsJson, CatalogFolder, OutFile


def run(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE.jsonl", help="Rows to predict; default: those shipped.", show_default=False),
    ] = None,
    as_json: AsJson = False,
    out: OutFile = None,
    catalog: CatalogFolder = None,
) -> None:
    """Predict published runs from their own model, hardware and layout, and print how far off we are."""
    from scalewright.catalog.library import open_catalog
    from scalewright.catalog.published import load_runs, packaged_runs
    from scalewright.planner.error_table import error_table
    from scalewright.planner.validate import validate_run
    from scalewright.records.documents import to_json, write_document
    from scalewright.report.console import answer_console
    from scalewright.report.validation import print_error_table

    library = open_catalog(catalog)
    runs = load_runs(file or packaged_runs())
    table = error_table([validate_run(library, run) for run in runs])
    if out is not None:
        write_document(out, table.as_document())
    if as_json:
        typer.echo(to_json(table.as_document()), nl=False)
    else:
        print_error_table(answer_console(), table)
