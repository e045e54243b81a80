"""`scalewright data check`: a pipeline file, without running it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.options import AsJson

PipelinePath = Annotated[Path, typer.Argument(metavar="PIPELINE", help="A TOML file.", show_default=False)]
Whole = Annotated[bool, typer.Option("--whole", help="Read every input file to its end.")]


def run(pipeline: PipelinePath, whole: Whole = False, as_json: AsJson = False) -> None:
    """Check a pipeline file, its steps and its inputs. Exit 1: input files have faults, which are named."""
    from scalewright.data.text.execution.check import check_pipeline
    from scalewright.records.documents import to_json
    from scalewright.records.types import ExitCode
    from scalewright.report.data.check import print_check
    from scalewright.report.data.count_bar import CountBar

    with CountBar("files") as bar:
        checked = check_pipeline(pipeline, is_whole=whole, on_progress=bar.show)
    if as_json:
        typer.echo(to_json(checked.document()), nl=False)
    else:
        print_check(checked)
    if checked.files.problems:
        raise typer.Exit(ExitCode.NO)
