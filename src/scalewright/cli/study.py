"""`scalewright study`: one file from question to report."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scalewright.cli.options import AsJson, CatalogFolder

if TYPE_CHECKING:
    from scalewright.catalog.library import Catalog
    from scalewright.records.study_report import StudyReport
    from scalewright.study.points import Study
    from scalewright.study.store import Store

LINE_WIDTH = 80
"""Columns of a terminal that nobody has widened."""
app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Studies: a question, its points, their report.")
StudyName = Annotated[
    str, typer.Argument(metavar="STUDY", help="Name of a shipped study, or a TOML file.", show_default=False)
]
OutFolder = Annotated[Path | None, typer.Option("--results", "--out", metavar="DIR", help="Default: results/STUDY.")]
ResultsFolder = Annotated[Path | None, typer.Option(metavar="DIR", help="What was measured; default: results/STUDY.")]
ReportFolder = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Write page, plots, tables and data.")]
Watch = Annotated[bool, typer.Option("--watch", help="Go on showing it until the study ends or Ctrl-C.")]
SiteName = Annotated[str, typer.Option("--site", help="Run points as jobs of this cluster; here: the one at hand.")]
Wait = Annotated[bool, typer.Option("--wait", help="At a site: stay until every job has ended, then report.")]
Budget = Annotated[
    str, typer.Option(metavar="TIME", help="Of a pipeline: make it smaller, so that it takes about so long.")
]
HERE = "here"
JOBS_EVERY_S = 15.0
"""Between two looks at the queue, which is shared with others."""
Plots = Annotated[bool, typer.Option("--plots/--no-plots", help="Figures for a paper, as SVG, PNG and PDF.")]


@app.callback()
def _root() -> None:
    """One file from question to report: predicted for any catalogued system, measured on the machine at hand."""


@app.command("list")
def list_studies(as_json: AsJson = False) -> None:
    """List the studies that ship with the package and those in ./studies."""
    from scalewright.records.documents import document, to_json
    from scalewright.report.console import answer_console, plain_table
    from scalewright.study.file import peek, studies_by_name

    rows = [{**peek(path), "path": str(path)} for path in studies_by_name().values()]
    if as_json:
        typer.echo(to_json(document("studies", {"studies": rows})), nl=False)
        return
    table = plain_table("study", "title")
    for row in rows:
        table.add_row(row["id"], row["title"])
    answer_console().print(table)


@app.command("show")
def show(study: StudyName, as_json: AsJson = False, catalog: CatalogFolder = None) -> None:
    """Show a study's question, its points, and the commands that answer it."""
    from scalewright.catalog.library import open_catalog
    from scalewright.records.documents import document, to_json
    from scalewright.report.console import answer_console, plain_table
    from scalewright.report.pipeline.stages import print_stages
    from scalewright.study.points import open_study

    opened = open_study(open_catalog(catalog), study)
    if as_json:
        points = [{"id": p.id, "labels": p.labels, "resolved": p.resolved} for p in opened.points]
        typer.echo(to_json(document("study-points", {"study": opened.file.id, "points": points})), nl=False)
        return
    console = answer_console()
    console.print(f"{opened.file.title}: {len(opened.points)} points of kind {opened.file.kind}", markup=False)
    console.print(" ".join(opened.file.question.split()), markup=False)
    console.print()
    if opened.pipeline is None:
        table = plain_table(*opened.points[0].labels, gap=1)
        for point in opened.points:
            table.add_row(*point.labels.values())
        console.print(table)
        console.print()
    if opened.file.pipeline is not None:
        print_stages(console, opened.file.pipeline)
        console.print()
    for command in _next_commands(opened, shlex.quote(study)):
        console.print(command, markup=False, soft_wrap=True)


def _next_commands(study: Study, name: str) -> list[str]:
    """What to type next. Points of this machine can be predicted once it is calibrated, which `run` does."""
    predict, run = f"scalewright study predict {name}", f"scalewright study run {name}"
    if any(point.resolved.get("system") == HERE for point in study.points):
        return [f"measure it: {run}", f"predict it: {predict} (after scalewright calibrate)"]
    has_measure = study.file.measure is not None or study.file.pipeline is not None
    return [f"predict it: {predict}", *([f"measure it: {run}"] if has_measure else [])]


@app.command("check")
def check(study: StudyName, catalog: CatalogFolder = None) -> None:
    """Check a study: every key, model, system, layout and expression. Exit 2: one sentence says what is wrong."""
    from scalewright import units
    from scalewright.catalog.library import open_catalog
    from scalewright.study.pipeline.setting import PipelineSetting, least_budget_s
    from scalewright.study.points import open_study

    library = open_catalog(catalog)
    opened = open_study(library, study)
    counts = [f"{len(opened.points)} points"]
    if opened.file.pipeline is not None:
        for profile in opened.file.pipeline.profile_names:
            stages = open_study(library, study, is_measured=True, setting=PipelineSetting(profile=profile))
            least_s = least_budget_s(opened.file.pipeline, profile)
            least = "" if least_s is None else f" (budget of {units.format(least_s, units.SECONDS)} or more)"
            counts.append(f"{len(stages.points)} stages for {profile}{least}")
    elif opened.file.measure is not None:
        counts.append(f"{len(open_study(library, study, is_measured=True).points)} to measure")
    counts.append(f"{len(opened.file.published)} published figures")
    line = f"{study}: {', '.join(counts)}"
    typer.echo(line if len(line) <= LINE_WIDTH else "\n  ".join([f"{study}:", *counts]))


@app.command("predict")
def predict(
    study: StudyName, out: ReportFolder = None, plots: Plots = True, as_json: AsJson = False,
    catalog: CatalogFolder = None,
) -> None:  # fmt: skip
    """Predict every point, beside what is published. Nothing is run."""
    from scalewright.catalog.library import open_catalog
    from scalewright.records.documents import check_folder
    from scalewright.study.points import open_study
    from scalewright.study.report_builder import predicted_report

    library = open_catalog(catalog)
    if out is not None:
        check_folder(out)
    _show_report(predicted_report(library, open_study(library, study)), out, plots=plots, as_json=as_json)


@app.command("run")
def run(
    study: StudyName, out: OutFolder = None, site: SiteName = "", wait: Wait = False, budget: Budget = "",
    plots: Plots = True, as_json: AsJson = False, catalog: CatalogFolder = None,
) -> None:  # fmt: skip
    """Measure every point; run again to go on where it ended. Exit 1: points failed or were not reached.

    At a site points become jobs, and the command ends once they are submitted. In a search (order = "predicted") points
    that cannot run are data: exit 1 means that not one was measured. A gate of a pipeline that is not passed also gives
    exit 1.
    """
    from scalewright.catalog.library import open_catalog
    from scalewright.study.pipeline.opening import open_measured
    from scalewright.study.report_builder import measured_report
    from scalewright.study.site_run import site_name
    from scalewright.study.store import Store

    library = open_catalog(catalog)
    opened, folder = open_measured(library, study, out, site=site, budget=budget)
    at_site = site_name(opened, site, wait=wait)
    store = Store.create_or_resume(folder, opened)
    if opened.pipeline is not None and opened.pipeline.sentence:
        _say(opened.pipeline.sentence)
    if at_site:
        code = _submit(library, opened, store, at_site, catalog, wait=wait, as_json=as_json)
    else:
        code = _run_here(library, opened, store)
    code = max(code, _gates_code(opened, store))
    if wait or not at_site:
        _show_report(measured_report(library, study, store), store.report, plots=plots, as_json=as_json)
    raise typer.Exit(code)


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _gates_code(study: Study, store: Store) -> int:
    """Say every gate that was not passed, a sentence each. The exit code that follows from them."""
    from scalewright.records.types import ExitCode
    from scalewright.study.pipeline.progress import judged_gates

    results = () if study.pipeline is None else judged_gates(study.pipeline, store, 0)
    failed = [result for result in results if not result.passes]
    for result in failed:
        _say(result.sentence)
    return ExitCode.NO if failed else ExitCode.YES


def _run_here(library: Catalog, study: Study, store: Store) -> int:
    """Measure every point here, with a progress bar. The exit code."""
    from scalewright.records.types import ExitCode
    from scalewright.report.study.progress import StudyProgress
    from scalewright.study.calibration.measure import CalibrationStoppedError
    from scalewright.study.measure import calibrate_first, run_here
    from scalewright.study.order import in_order, is_success
    from scalewright.study.site_run import check_none_queued

    check_none_queued(store, _say)
    try:
        calibrate_first(library, study, _say)
    except CalibrationStoppedError as error:
        raise typer.Exit(error.code) from error
    order = in_order(library, study)
    try:
        with StudyProgress(len(order)) as progress:
            ended = run_here(library, study, store, progress, order)
    except KeyboardInterrupt as error:
        _say("stopped: measured points are kept; run the same command again to continue")
        raise typer.Exit(ExitCode.INTERRUPTED) from error
    return ExitCode.YES if is_success(study, (end.state == "finished" for end in ended)) else ExitCode.NO


def _submit(
    library: Catalog, study: Study, store: Store, site: str, catalog: Path | None, *, wait: bool, as_json: bool
) -> int:
    """Submit the open tries; with `wait`, stay until their jobs have ended. The exit code."""
    from scalewright.records.documents import document, to_json
    from scalewright.records.types import ExitCode
    from scalewright.sites.current import site_named
    from scalewright.study import site_run
    from scalewright.study.order import in_order, is_success

    order = in_order(library, study)
    drivers = site_run.submit(study, store, order, site_named(site, catalog), catalog=catalog, say=_say)
    if wait:
        site_run.wait(drivers, goes_on=study.pipeline is not None)
        finished = (store.is_finished(tried.point, tried.repeat) for tried in order)
        return ExitCode.YES if is_success(study, finished) else ExitCode.NO
    jobs = site_run.open_jobs(drivers)
    status = shlex.join(["scalewright", "study", "status", str(study.path), "--results", str(store.path)])
    if as_json:
        typer.echo(
            to_json(document("study-jobs", {"results": str(store.path), "jobs": jobs, "next": status})), nl=False
        )
    else:
        typer.echo("\n".join(jobs) if jobs else "nothing is left to submit")
        _say(f"  its status: {status}" if jobs else f"  the report: {status.replace('status', 'report', 1)}")
        if jobs and study.pipeline is not None:
            watch = shlex.join(["scalewright", "jobs", "watch", str(drivers[-1].folder.path)])
            _say(f"  later stages: {watch} submits those after a gate or a retry; without these Slurm starts them")
    return ExitCode.YES


@app.command("point", hidden=True)
def point(
    item: Annotated[str, typer.Argument(metavar="POINT/REPEAT", help="Which try.", show_default=False)],
    results: Annotated[Path, typer.Option(metavar="DIR", help="The study's results.", show_default=False)],
    catalog: CatalogFolder = None,
) -> None:
    """Measure one try of a point: what the job of a study runs."""
    from scalewright.catalog.library import open_catalog
    from scalewright.study.site_run import run_point
    from scalewright.study.store import Store

    raise typer.Exit(run_point(open_catalog(catalog), Store.open(results), item))


@app.command("schema")
def schema() -> None:
    """Print the JSON schema of study files, for editors."""
    import json

    from scalewright.study.schema import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))


@app.command("report")
def report(
    study: StudyName, results: ResultsFolder = None, out: ReportFolder = None, plots: Plots = True,
    as_json: AsJson = False, catalog: CatalogFolder = None,
) -> None:  # fmt: skip
    """Write the report anew from what has been measured so far: page, plots, tables, data. Nothing is run."""
    from scalewright.catalog.library import open_catalog
    from scalewright.records.documents import check_folder
    from scalewright.study.pipeline.opening import open_measured
    from scalewright.study.report_builder import measured_report
    from scalewright.study.store import Store

    library = open_catalog(catalog)
    _, folder = open_measured(library, study, results)
    store = Store.open(folder)
    check_folder(out or store.report)
    _show_report(measured_report(library, study, store), out or store.report, plots=plots, as_json=as_json)


@app.command("status")
def status(
    study: StudyName, results: ResultsFolder = None, watch: Watch = False, as_json: AsJson = False,
    catalog: CatalogFolder = None,
) -> None:  # fmt: skip
    """Show how far a study is, point by point. Exit 1: some points failed."""
    from scalewright.catalog.library import open_catalog
    from scalewright.records.documents import to_json
    from scalewright.records.types import ExitCode
    from scalewright.report.study.status import EVERY_S, show_status
    from scalewright.study.pipeline.opening import open_measured
    from scalewright.study.site_run import launches_of, look
    from scalewright.study.status import StudyStatus, status_of
    from scalewright.study.store import Store

    opened, folder = open_measured(open_catalog(catalog), study, results)
    store = Store.open(folder)
    store.check(opened)
    latest: list[StudyStatus] = []

    def see() -> dict[str, Any]:
        queue = look(store, _say)
        latest[:] = [status_of(opened, store, queue=queue)]
        return latest[0].as_document()

    if as_json:
        typer.echo(to_json(see()), nl=False)
    else:
        show_status(see, watch=watch, every_s=JOBS_EVERY_S if launches_of(store) else EVERY_S)
    raise typer.Exit(ExitCode.NO if latest[0].count("failed") else ExitCode.YES)


@app.command("diff")
def diff(
    first: Annotated[Path, typer.Argument(metavar="BEFORE", help="Results folder.", show_default=False)],
    second: Annotated[Path, typer.Argument(metavar="AFTER", help="Results folder.", show_default=False)],
    threshold: Annotated[str, typer.Option(help="Change that does not matter, beyond the noise.")] = "0 %",
    as_json: AsJson = False,
) -> None:
    """Show which points got faster or slower by more than their noise. Exit 1: some got slower."""
    from scalewright import units
    from scalewright.records.documents import to_json
    from scalewright.records.types import ExitCode
    from scalewright.report.console import answer_console
    from scalewright.report.study.diff import print_diff
    from scalewright.study.diff import compare
    from scalewright.study.store import Store

    limit = units.parse(threshold, units.FRACTION)
    differences = compare(Store.open(first), Store.open(second), threshold_frac=limit)
    if as_json:
        typer.echo(to_json(differences.as_document()), nl=False)
    else:
        print_diff(answer_console(), differences.as_document())
    raise typer.Exit(ExitCode.NO if differences.slower else ExitCode.YES)


def _show_report(report: StudyReport, folder: Path | None, *, plots: bool, as_json: bool) -> None:
    from scalewright.records.documents import to_json
    from scalewright.report.console import answer_console
    from scalewright.report.study.table import print_study
    from scalewright.report.study.write import write_report

    if as_json:
        typer.echo(to_json(report.document()), nl=False)
    else:
        print_study(answer_console(), report)
    if folder is None:
        return
    page, missing = write_report(folder, report, with_plots=plots)
    for sentence in missing:
        typer.echo(f"note: {sentence}", err=True)
    typer.echo(f"report {page or folder}", err=True)
