"""`scalewright study`: one file from question to report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.options import AsJson, CatalogFolder

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Studies: a question, its points, their report.")
StudyName = Annotated[
    str, typer.Argument(metavar="STUDY", help="Name of a shipped study, or a TOML file.", show_default=False)
]
OutFolder = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Default: results/STUDY.")]
OutFile = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Also write the JSON document here.")]


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
def predict(study: StudyName, as_json: AsJson = False, out: OutFile = None, catalog: CatalogFolder = None) -> None:
    """Predict every point, beside what is published. Nothing is run."""
    from scalewright.catalog.library import open_catalog
    from scalewright.records.documents import to_json, write_document
    from scalewright.report.console import answer_console
    from scalewright.report.study_table import print_study
    from scalewright.study.points import open_study
    from scalewright.study.results import predict_study
    from scalewright.study.tell import report_of

    library = open_catalog(catalog)
    report = report_of(predict_study(library, open_study(library, study)))
    if out is not None:
        write_document(out, report.document())
    if as_json:
        typer.echo(to_json(report.document()), nl=False)
    else:
        print_study(answer_console(), report)


@app.command("run")
def run(study: StudyName, out: OutFolder = None, as_json: AsJson = False, catalog: CatalogFolder = None) -> None:
    """Measure every point here; run again to go on where it ended. Exit 1: some points failed or were not reached."""
    from scalewright.catalog.library import open_catalog
    from scalewright.records.documents import to_json, write_document
    from scalewright.records.types import ExitCode
    from scalewright.report.console import answer_console
    from scalewright.report.study_progress import StudyProgress
    from scalewright.report.study_table import print_study
    from scalewright.study.measure import run_here, tries
    from scalewright.study.points import open_study
    from scalewright.study.results import measured_study
    from scalewright.study.store import Store
    from scalewright.study.tell import report_of

    library = open_catalog(catalog)
    found = open_study(library, study, is_measured=True)
    store = Store.create_or_resume(out or Path("results") / found.file.id, found)
    with StudyProgress(len(list(tries(found)))) as progress:
        ended = run_here(library, found, store, progress)
    report = report_of(measured_study(library, found, store))
    write_document(store.report / "report.json", report.document())
    if as_json:
        typer.echo(to_json(report.document()), nl=False)
    else:
        print_study(answer_console(), report)
        typer.echo(f"results in {store.path}", err=True)
    raise typer.Exit(ExitCode.YES if all(end.state == "finished" for end in ended) else ExitCode.NO)
