"""`scalewright data show`: a finished data set, its funnel and its page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.options import AsJson

SetFolder = Annotated[Path, typer.Argument(metavar="DIR", help="A folder that data run made.", show_default=False)]
ReportPage = Annotated[Path | None, typer.Option("--page", metavar="FILE", help="Write the report as a page: .html.")]


def run(folder: SetFolder, page: ReportPage = None, as_json: AsJson = False) -> None:
    """Show what a pipeline read, dropped and wrote."""
    from scalewright.cli.options import report_written
    from scalewright.data.text.execution.result import read_result
    from scalewright.errors import ConfigError
    from scalewright.records.documents import to_json
    from scalewright.report.data.page import write_data_page
    from scalewright.report.data.terminal import print_data_set

    if page is not None and page.suffix.lower() != ".html":
        raise ConfigError(f"--page {str(page)!r} names no page: end it in .html")
    result = read_result(folder)
    if page is not None:
        write_data_page(page, result, folder.resolve().name)
        report_written(page)
    if as_json:
        typer.echo(to_json(result), nl=False)
    else:
        print_data_set(result, folder)
