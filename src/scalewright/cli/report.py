"""`scalewright report RUN`: one run, printed and drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.options import AsJson, OutFile, write_out

PlotFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw time, rate, split, memory, energy: .png, .svg or .pdf.")
]
PageFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write a page: findings, plots, rollouts over time: .html.")
]


def run(
    run_directory: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the run.", show_default=False)],
    as_json: AsJson = False,
    out: OutFile = None,
    plot: PlotFile = None,
    page: PageFile = None,
) -> None:
    """Print one run: split, throughput, memory, energy, and the prediction beside the measurement."""
    from scalewright.errors import ConfigError
    from scalewright.records.documents import check_file, to_json
    from scalewright.records.run_directory import RunDirectory
    from scalewright.report.console import print_whole
    from scalewright.report.figure_file import check_plot
    from scalewright.report.run.report import run_report

    if plot is not None:
        check_plot(plot)
    if page is not None:
        if page.suffix.lower() != ".html":
            raise ConfigError(f"--page {str(page)!r} names no page: end it in .html")
        check_file(page)
    report = run_report(RunDirectory.open(run_directory))
    if plot is not None:
        report.plot(plot)
    if page is not None:
        report.write_page(page)
    write_out(out, report.document())
    if as_json:
        typer.echo(to_json(report.document()), nl=False)
    else:
        print_whole(report.show)
