"""`scalewright report RUN`: one run, printed and drawn."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.options import AsJson, OutFile
from scalewright.errors import ScalewrightError

PlotFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw time, rate, split, memory, energy: .png, .svg or .pdf.")
]


def run(
    run_directory: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the run.", show_default=False)],
    as_json: AsJson = False,
    out: OutFile = None,
    plot: PlotFile = None,
) -> None:
    """Print one run: split, throughput, memory, energy, and the prediction beside the measurement."""
    from scalewright.observe.collect import collect
    from scalewright.observe.rollup import refresh_rollup
    from scalewright.observe.summary import summarize
    from scalewright.records.documents import to_json, write_document
    from scalewright.records.run_directory import RunDirectory
    from scalewright.report.console import answer_console
    from scalewright.report.roofline import check_plot
    from scalewright.report.run import plot_run, print_run

    if plot is not None:
        check_plot(plot)
    directory = RunDirectory.open(run_directory)
    found = collect(directory)
    with contextlib.suppress(ScalewrightError, OSError):  # of somebody else's run, or on a full disk, it is left out
        refresh_rollup(directory)
    summary = summarize(found)
    if plot is not None:
        plot_run(plot, found, summary)
    if out is not None:
        write_document(out, summary.as_document())
    if as_json:
        typer.echo(to_json(summary.as_document()), nl=False)
    else:
        print_run(answer_console(), found, summary)
