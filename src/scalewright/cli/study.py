"""`scalewright study`: one file from question to report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scalewright.cli.options import AsJson, CatalogFolder

if TYPE_CHECKING:
    from scalewright.records.study_report import StudyReport

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Studies: a question, its points, their report.")
StudyName = Annotated[
    str, typer.Argument(metavar="STUDY", help="Name of a shipped study, or a TOML file.", show_default=False)
]
OutFolder = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Default: results/STUDY.")]
ResultsFolder = Annotated[Path | None, typer.Option(metavar="DIR", help="What was measured; default: results/STUDY.")]
ReportFolder = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Write page, plots, tables and data.")]
Watch = Annotated[bool, typer.Option("--watch", help="Go on showing it until the study ends or Ctrl-C.")]
Plots = Annotated[bool, typer.Option("--plots/--no-plots", help="Figures for a paper, as SVG and PNG.")]


@app.callback()
def _root() -> None:
    """One file from question to report: predicted for any catalogued system, measured on the machine at hand."""


@app.command("list")
def list_studies(as_json: AsJson = False) -> None:
    """List the studies that ship with the package and those in ./studies."""
    from scalewright.records.documents import document, to_json
    from scalewright.report.console import answer_console, plain_table
    from scalewright.study.file import known, peek

    rows = [{**peek(path), "path": str(path)} for path in known().values()]
    if as_json:
        typer.echo(to_json(document("studies", {"studies": rows})), nl=False)
        return
    table = plain_table("study", "title")
    for row in rows:
        table.add_row(row["id"], row["title"])
    answer_console().print(table)


@app.command("show")
def show(study: StudyName, as_json: AsJson = False, catalog: CatalogFolder = None) -> None:
    """Show a study's points, resolved."""
    from scalewright.catalog.library import open_catalog
    from scalewright.records.documents import document, to_json
    from scalewright.report.console import answer_console, plain_table
    from scalewright.study.points import open_study

    found = open_study(open_catalog(catalog), study)
    if as_json:
        points = [{"id": p.id, "labels": p.labels, "resolved": p.resolved} for p in found.points]
        typer.echo(to_json(document("study-points", {"study": found.file.id, "points": points})), nl=False)
        return
    console = answer_console()
    console.print(f"{found.file.title}: {len(found.points)} points of kind {found.file.kind}", markup=False)
    table = plain_table(*found.points[0].labels, gap=1)
    for point in found.points:
        table.add_row(*point.labels.values())
    console.print(table)


@app.command("check")
def check(study: StudyName, catalog: CatalogFolder = None) -> None:
    """Check a study: every key, model, system, layout and expression. Exit 2: one sentence says what is wrong."""
    from scalewright.catalog.library import open_catalog
    from scalewright.study.points import open_study

    library = open_catalog(catalog)
    found = open_study(library, study)
    counts = [f"{len(found.points)} points"]
    if found.file.measure is not None:
        counts.append(f"{len(open_study(library, study, is_measured=True).points)} to measure")
    typer.echo(f"{found.path}: {', '.join(counts)}, {len(found.file.published)} published figures")


@app.command("predict")
def predict(
    study: StudyName, out: ReportFolder = None, plots: Plots = True, as_json: AsJson = False,
    catalog: CatalogFolder = None,
) -> None:  # fmt: skip
    """Predict every point, beside what is published. Nothing is run."""
    from scalewright.catalog.library import open_catalog
    from scalewright.study.answer import predicted_report
    from scalewright.study.points import open_study

    library = open_catalog(catalog)
    _answer(predicted_report(library, open_study(library, study)), out, plots=plots, as_json=as_json)


@app.command("run")
def run(
    study: StudyName, out: OutFolder = None, plots: Plots = True, as_json: AsJson = False, catalog: CatalogFolder = None
) -> None:
    """Measure every point here; run again to go on where it ended. Exit 1: some points failed or were not reached."""
    from scalewright.catalog.library import open_catalog
    from scalewright.records.types import ExitCode
    from scalewright.report.study_progress import StudyProgress
    from scalewright.study.answer import measured_report
    from scalewright.study.calibrate import StoppedError
    from scalewright.study.measure import calibrate_first, run_here, tries
    from scalewright.study.points import open_study
    from scalewright.study.store import Store

    library = open_catalog(catalog)
    found = open_study(library, study, is_measured=True)
    store = Store.create_or_resume(out or Path("results") / found.file.id, found)
    try:
        calibrate_first(library, found, lambda text: typer.echo(text, err=True))
    except StoppedError as error:
        raise typer.Exit(error.code) from error
    with StudyProgress(len(list(tries(found)))) as progress:
        ended = run_here(library, found, store, progress)
    _answer(measured_report(library, study, store), store.report, plots=plots, as_json=as_json)
    raise typer.Exit(ExitCode.YES if all(end.state == "finished" for end in ended) else ExitCode.NO)


@app.command("report")
def report(
    study: StudyName, results: ResultsFolder = None, out: ReportFolder = None, plots: Plots = True,
    as_json: AsJson = False, catalog: CatalogFolder = None,
) -> None:  # fmt: skip
    """Write the report anew from what has been measured so far: page, plots, tables, data. Nothing is run."""
    from scalewright.catalog.library import open_catalog
    from scalewright.study.answer import measured_report
    from scalewright.study.points import open_study
    from scalewright.study.store import Store

    library = open_catalog(catalog)
    found = open_study(library, study, is_measured=True)
    store = Store.open(results or Path("results") / found.file.id)
    _answer(measured_report(library, study, store), out or store.report, plots=plots, as_json=as_json)


@app.command("status")
def status(
    study: StudyName, results: ResultsFolder = None, watch: Watch = False, as_json: AsJson = False,
    catalog: CatalogFolder = None,
) -> None:  # fmt: skip
    """Show how far a study is, point by point. Exit 1: some points failed."""
    from scalewright.catalog.library import open_catalog
    from scalewright.records.documents import to_json
    from scalewright.records.types import ExitCode
    from scalewright.report.study_status import show_status
    from scalewright.study.points import open_study
    from scalewright.study.status import status_of
    from scalewright.study.store import Store

    found = open_study(open_catalog(catalog), study, is_measured=True)
    store = Store.open(results or Path("results") / found.file.id)
    store.check(found)
    if as_json:
        typer.echo(to_json(status_of(found, store).as_document()), nl=False)
    else:
        show_status(lambda: status_of(found, store).as_document(), watch=watch)
    raise typer.Exit(ExitCode.NO if status_of(found, store).count("failed") else ExitCode.YES)


@app.command("diff")
def diff(
    first: Annotated[Path, typer.Argument(metavar="BEFORE", help="Results folder.", show_default=False)],
    second: Annotated[Path, typer.Argument(metavar="AFTER", help="Results folder.", show_default=False)],
    threshold: Annotated[str, typer.Option(help="Change that does not matter, beyond the noise.")] = "0 %",
    as_json: AsJson = False,
) -> None:
    """Tell which points got faster or slower by more than their noise. Exit 1: some got slower."""
    from scalewright import units
    from scalewright.records.documents import to_json
    from scalewright.records.types import ExitCode
    from scalewright.report.console import answer_console
    from scalewright.report.study_diff import print_diff
    from scalewright.study.diff import compare
    from scalewright.study.store import Store

    limit = units.parse(threshold, units.FRACTION)
    found = compare(Store.open(first), Store.open(second), threshold_frac=limit)
    if as_json:
        typer.echo(to_json(found.as_document()), nl=False)
    else:
        print_diff(answer_console(), found.as_document())
    raise typer.Exit(ExitCode.NO if found.slower else ExitCode.YES)


def _answer(found: StudyReport, folder: Path | None, *, plots: bool, as_json: bool) -> None:
    from scalewright.records.documents import to_json
    from scalewright.report.console import answer_console
    from scalewright.report.study_table import print_study
    from scalewright.report.study_write import write_report

    if as_json:
        typer.echo(to_json(found.document()), nl=False)
    else:
        print_study(answer_console(), found)
    if folder is None:
        return
    page, missing = write_report(folder, found, with_plots=plots)
    for sentence in missing:
        typer.echo(f"note: {sentence}", err=True)
    typer.echo(f"report {page or folder}", err=True)
