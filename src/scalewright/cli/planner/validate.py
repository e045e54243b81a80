"""`scalewright validate`: predictions against published runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scalewright.cli.options import AsJson, CatalogFolder, OutFile, write_out

if TYPE_CHECKING:
    from scalewright.planner.validation.error_table import Scores


def run(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE.jsonl", help="Rows to predict; default: those shipped.", show_default=False),
    ] = None,
    record: Annotated[
        bool, typer.Option("--record", help="For developers: keep the scores of the shipped rows as those to hold.")
    ] = False,
    as_json: AsJson = False,
    out: OutFile = None,
    catalog: CatalogFolder = None,
) -> None:
    """Predict published runs from their own model, hardware and layout, and print how far off we are.

    Exit 1: none of a file's rows can be predicted; without a file, a score is worse than the one recorded.
    """
    from scalewright.catalog.library import open_catalog
    from scalewright.errors import ConfigError
    from scalewright.planner.validation.error_table import validation_table
    from scalewright.records.documents import to_json
    from scalewright.records.types import ExitCode
    from scalewright.report.console import answer_console
    from scalewright.report.planner.validation import print_error_table

    if record and file is not None:
        raise ConfigError(f"--record keeps the scores of the shipped rows, not of {file}: leave the file out")
    table = validation_table(open_catalog(catalog), file)
    write_out(out, table.as_document())
    if as_json:
        typer.echo(to_json(table.as_document()), nl=False)
    else:
        print_error_table(answer_console(), table)
    if file is None:
        _hold(table.overall, record=record)
    elif not table.overall["num_expressed"]:
        raise typer.Exit(ExitCode.NO)


def _hold(overall: Scores, *, record: bool) -> None:
    """Keep these scores, or say which differ from those kept; a worse one is the answer no."""
    from scalewright.planner.validation.recorded import compare_scores, read_scores, record_scores, recorded_scores_path
    from scalewright.records.types import ExitCode

    if record:
        record_scores(recorded_scores_path(), overall)
        return
    changes = compare_scores(read_scores(recorded_scores_path()), overall)
    for change in changes:
        typer.echo(change.sentence, err=True)
    if any(change.is_worse for change in changes):
        raise typer.Exit(ExitCode.NO)
