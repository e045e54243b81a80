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
    from scalewright.catalog.published import load_runs
    from scalewright.errors import ConfigError
    from scalewright.planner.validation.error_table import validation_table
    from scalewright.planner.validation.vision_rows import read_left_out, vision_table
    from scalewright.records.documents import document, to_json
    from scalewright.records.types import ExitCode
    from scalewright.report.console import answer_console
    from scalewright.report.planner.validation import print_error_table
    from scalewright.report.planner.vision_validation import print_vision_table

    if record and file is not None:
        raise ConfigError(f"--record keeps the scores of the shipped rows, not of {file}: leave the file out")
    entries = open_catalog(catalog)
    images = vision_table(entries, file)
    table = validation_table(entries, file) if file is None or not images.rows or load_runs(file) else None
    body = (document("validation", {}) if table is None else table.as_document()) | {"vision": images.as_dict()}
    write_out(out, body)
    if as_json:
        typer.echo(to_json(body), nl=False)
    else:
        console = answer_console()
        if table is not None:
            print_error_table(console, table)
        print_vision_table(console, images, left_out=read_left_out() if file is None else {})
    if file is None:
        assert table is not None
        _hold(table.overall, record=record)
    elif not images.predicted and not (table is not None and table.overall["num_expressed"]):
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
