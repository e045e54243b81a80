"""`scalewright jobs`: submit, follow, resume and cancel graphs of jobs, and count their GPU-hours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scalewright.cli.cluster.options import Force
from scalewright.cli.options import AsJson, CatalogFolder

if TYPE_CHECKING:
    from scalewright.launch.graph.driver import Driver
    from scalewright.launch.graph.graph import Graph
    from scalewright.launch.graph.manifest import LaunchFolder

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Graphs of jobs: submit, follow, resume, cancel.")

LaunchDir = Annotated[Path, typer.Argument(metavar="DIR", help="Folder that submit printed.", show_default=False)]
LaunchDirs = Annotated[
    list[Path] | None, typer.Argument(metavar="[DIR]...", help="Folders of launches; default: those in runs/.")
]
JobNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="[JOB]...", help="Jobs of the graph; default: all.", show_default=False),
]
Poll = Annotated[str, typer.Option(help="Shortest time between two squeue calls. It grows up to 6 times that.")]
LONGEST_OVER_SHORTEST = 6.0


@app.callback()
def _root() -> None:
    """Graphs of jobs on Slurm. A stopped command can be continued from the launch folder with `jobs resume`."""


@app.command("submit")
def submit(
    graph: Annotated[Path, typer.Argument(metavar="GRAPH.toml", help="Jobs and what they wait for.")],
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Launch folder; default: runs/TIME-NAME.")] = None,
    site: Annotated[str, typer.Option(help="Profile of the cluster; default: the file's.")] = "",
    limit_gpu_hours: Annotated[float | None, typer.Option(help="Refuse more; default: the file's.", min=0.0)] = None,
    cut: Annotated[bool, typer.Option("--cut", help="Drop the last items of sweeps to stay in the limit.")] = False,
    force: Force = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the graph and its cost; write nothing.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Stay until every job has ended.")] = False,
    poll: Poll = "10 s",
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the graph: .dot, .svg, .png, .pdf.")] = None,
    as_json: AsJson = False,
    catalog: CatalogFolder = None,
) -> None:
    """Submit a graph. Exit 1: over the budget, or with --watch a job failed."""
    from scalewright.catalog.library import open_catalog
    from scalewright.launch.graph.budget import bill, check_budget, cut_to, estimate
    from scalewright.launch.graph.launches import dry_scripts, read_graph, start_launch
    from scalewright.launch.single_job import large_job_warning
    from scalewright.report.cluster.jobs import check_graph_plot, draw_graph, print_graph

    shortest_s = _seconds(poll)
    if plot is not None:
        check_graph_plot(plot)
    resolved, profile = read_graph(graph, site=site, catalog=catalog)
    limit = resolved.limit_gpu_hours if limit_gpu_hours is None else limit_gpu_hours
    dropped: dict[str, tuple[str, ...]] = {}
    if cut and limit is not None:
        resolved, dropped = cut_to(resolved, limit)
    estimated = estimate(resolved)
    warnings = check_budget(estimated, warn_gpu_hours=resolved.warn_gpu_hours, limit_gpu_hours=None if force else limit)
    library = open_catalog(catalog)
    if resolved.warn_gpu_hours is None:
        warnings += filter(None, [large_job_warning(estimated.num_gpu_hours, profile, library, what="the graph")])
    price = bill(library, resolved.system, gpu_s=estimated.gpu_s) if resolved.system else None
    for name, items in dropped.items():
        warnings.append(f"{name}: the last {len(items)} items are dropped to stay in the limit, from {items[0]!r} on")
    if dry_run:
        dry_scripts(resolved, profile, out)
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)
    if plot is not None:
        draw_graph(plot, resolved)
    if dry_run:
        print_graph(resolved, estimated, price, dropped, as_json=as_json)
        return
    driver, _ = start_launch(resolved, profile, out, say=_say)
    with driver.folder.held():
        driver.begin_and_act()
        _follow(driver, resolved, watch=watch, shortest_s=shortest_s, as_json=as_json)


@app.command("list")
def list_jobs(folders: LaunchDirs = None, as_json: AsJson = False) -> None:
    """List submitted jobs and their states, from the launch folders and one squeue call."""
    from scalewright.launch.graph.launches import current_progress
    from scalewright.report.cluster.jobs import print_launches

    print_launches(current_progress(_launches(folders), say=_say), as_json=as_json)


@app.command("watch")
def watch(folder: LaunchDir, poll: Poll = "10 s", as_json: AsJson = False) -> None:
    """Follow a graph until every job has ended: check gates, retry, submit waiting jobs. Exit 1: a job failed."""
    driver = _open(folder)
    with driver.folder.held():
        driver.take_up()
        _follow(driver, driver.graph, watch=True, shortest_s=_seconds(poll), as_json=as_json)


@app.command("resume")
def resume(
    folder: LaunchDir,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Submit failed and cancelled items once more.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Continue a stopped graph: find its jobs in the queue and submit what is due. No job is submitted twice."""
    driver = _open(folder)
    with driver.folder.held():
        driver.take_up()
        driver.go_on(retry_failed=retry_failed)
        _follow(driver, driver.graph, watch=False, shortest_s=0.0, as_json=as_json)


@app.command("cancel")
def cancel(folder: LaunchDir, jobs: JobNames = None, as_json: AsJson = False) -> None:
    """Cancel the jobs of a launch. After a whole launch is cancelled, nothing is submitted until it is resumed."""
    from scalewright.launch.graph.launches import cancel_launch

    _print_ids(cancel_launch(folder, jobs or (), say=_say), as_json=as_json)


@app.command("requeue")
def requeue(folder: LaunchDir, jobs: JobNames = None, as_json: AsJson = False) -> None:
    """Stop running jobs and queue them again under the same id. They resume from their checkpoints."""
    from scalewright.launch.graph.launches import check_job_names

    driver = _open(folder)
    with driver.folder.held():
        driver.take_up()
        check_job_names(driver.graph, jobs or ())
        ids = driver.requeue(jobs or ())
    _print_ids(ids, as_json=as_json)


@app.command("logs")
def logs(
    folder: LaunchDir,
    jobs: JobNames = None,
    item: Annotated[int | None, typer.Option(help="Only this item, counted from 0.", min=0)] = None,
    lines: Annotated[int, typer.Option(help="Last lines of each log.", min=1)] = 20,
    as_json: AsJson = False,
) -> None:
    """Print the end of each item's latest log, failed items first."""
    from scalewright.launch.graph.launches import log_ends
    from scalewright.records.documents import document, to_json
    from scalewright.records.terminal_text import printable

    launch = _launches([folder])[0]
    ends = log_ends(launch, jobs or (), item=item, num_lines=lines)
    if as_json:
        body = [{"path": str(path), "lines": text.split("\n")} for path, text in ends]
        typer.echo(to_json(document("job-logs", {"logs": body})), nl=False)
        return
    if not ends:
        typer.echo("there are no logs yet", err=True)
    for path, text in ends:
        typer.echo(f"==> {path} <==\n{printable(text)}")


@app.command("spent")
def spent(
    folders: LaunchDirs = None,
    account: Annotated[str, typer.Option(help="A whole project instead of launches, from Slurm's accounting.")] = "",
    since: Annotated[str, typer.Option(metavar="YYYY-MM-DD", help="With --account: from this day on.")] = "",
    limit_gpu_hours: Annotated[float | None, typer.Option(help="Print what remains of this.", min=0.0)] = None,
    system: Annotated[str, typer.Option(help="Catalogue name: cost, energy and carbon.")] = "",
    as_json: AsJson = False,
    catalog: CatalogFolder = None,
) -> None:
    """GPU-hours used and left. Exit 1: more than the limit was used."""
    from scalewright.catalog.library import open_catalog
    from scalewright.launch.graph.budget import bill
    from scalewright.launch.graph.launches import spent_by_account, spent_by_launches
    from scalewright.records.types import ExitCode
    from scalewright.report.cluster.jobs import print_spent

    usage = spent_by_account(account, since, say=_say) if account else spent_by_launches(_launches(folders), say=_say)
    library = open_catalog(catalog)
    price = bill(library, system, gpu_s=usage.gpu_s, measured_j=usage.measured_j) if system else None
    print_spent(usage, price, limit_gpu_hours=limit_gpu_hours, as_json=as_json)
    if limit_gpu_hours is not None and usage.num_gpu_hours > limit_gpu_hours:
        raise typer.Exit(ExitCode.NO)


def _follow(driver: Driver, graph: Graph, *, watch: bool, shortest_s: float, as_json: bool) -> None:
    """With `watch` stay until every job has ended; print the states."""
    from scalewright.launch.graph.launches import LaunchProgress
    from scalewright.records.types import ExitCode
    from scalewright.report.cluster.jobs import print_launches

    is_done = watch and driver.watch(shortest_s=shortest_s, longest_s=LONGEST_OVER_SHORTEST * shortest_s).is_done
    launch = LaunchProgress(folder=driver.folder, graph=graph, manifest=driver.manifest)
    print_launches([launch], as_json=as_json)
    if not watch and launch.needs_driver:
        typer.echo(f"some jobs are submitted later: scalewright jobs watch {driver.folder.path}", err=True)
    if is_done and not launch.is_ok:
        raise typer.Exit(ExitCode.NO)


def _print_ids(ids: list[str], *, as_json: bool) -> None:
    from scalewright.records.documents import document, to_json

    typer.echo(to_json(document("job-ids", {"ids": ids})) if as_json else " ".join(ids) + "\n", nl=False)


def _open(folder: Path) -> Driver:
    from scalewright.launch.graph.launches import open_launch

    return open_launch(folder, say=_say)


def _launches(folders: list[Path] | None) -> list[LaunchFolder]:
    from scalewright.errors import ConfigError
    from scalewright.launch.graph.manifest import find_launches

    launches = find_launches(folders or [Path("runs")])
    if not launches:
        where = ", ".join(str(f) for f in folders or [Path("runs")])
        raise ConfigError(f"{where}: holds no launch: submit a graph with scalewright jobs submit, or name its folder")
    return launches


def _seconds(text: str) -> float:
    from scalewright import units
    from scalewright.errors import ConfigError, QuantityError

    try:
        seconds = units.parse(text, units.SECONDS)
    except QuantityError as error:
        raise ConfigError(f"--poll {error}") from error
    if seconds <= 0:
        raise ConfigError(f"--poll {text!r} must be above 0, such as 10 s")
    return seconds


def _say(text: str) -> None:
    typer.echo(text, err=True)
