"""`scalewright report RUN`: one run, printed and drawn."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.options import AsJson, OutFile
from scalewright.errors import ConfigError, ScalewrightError
from scalewright.records.run_directory import RunDirectory

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
    from scalewright.report.console import answer_console
    from scalewright.report.planner.roofline import check_plot
    from scalewright.report.run.summary import plot_run, print_run

    if plot is not None:
        check_plot(plot)
    directory = RunDirectory.open(run_directory)
    if directory.measurements.exists():
        _report_benchmark(directory, as_json=as_json, out=out, plot=plot)
        return
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


def _report_benchmark(directory: RunDirectory, *, as_json: bool, out: Path | None, plot: Path | None) -> None:
    """A micro benchmark has no steps: what it measured, as it told it then."""
    from scalewright.records.documents import to_json, write_document
    from scalewright.records.measurements import read_measurements
    from scalewright.report.bench.measurements import print_measurements
    from scalewright.report.console import answer_console

    if plot is not None:
        raise ConfigError(f"{directory.path} is a {read_measurements(directory).kind} benchmark, which has no plot")
    found = read_measurements(directory)
    if out is not None:
        write_document(out, found.document())
    if as_json:
        typer.echo(to_json(found.document()), nl=False)
    else:
        print_measurements(answer_console(), found)
