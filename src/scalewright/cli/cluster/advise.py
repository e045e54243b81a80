"""`scalewright advise`: which request gets the result soonest, and why a job waits."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scalewright.cli.options import AsJson, CatalogFolder

if TYPE_CHECKING:
    from collections.abc import Callable

    from scalewright.launch.advise.ranking import Ask
    from scalewright.launch.advise.run_times import PlannedRun
    from scalewright.sites.cluster import Cluster
    from scalewright.sites.types import Site

PlanFile = Annotated[
    Path | None, typer.Argument(metavar="[PLAN.json]", help="What `plan --out FILE` wrote.", show_default=False)
]
SiteName = Annotated[str, typer.Option(help="Profile of the cluster; here: the one we stand on.")]
JobId = Annotated[str, typer.Option("--job", help="Explain why this job waits, instead.")]
Nodes = Annotated[int | None, typer.Option(help="Nodes of the request to better; default: the plan's.")]
TimeText = Annotated[str, typer.Option("--time", help="Its limit, HH:MM:SS; default: as the plan predicts.")]
PartitionName = Annotated[str, typer.Option(help="Its partition; default: the site's.")]
Account = Annotated[str, typer.Option(help="Project that pays; default: the only one you have.")]
Qos = Annotated[str, typer.Option(help="Default: the site's.")]
Constraint = Annotated[str, typer.Option(help="Node features, such as 'a100|h100&nvlink'.")]
PilotRun = Annotated[
    Path | None, typer.Option("--pilot", metavar="RUN", help="A short run; its steps and memory count.")
]
Top = Annotated[int, typer.Option(help="Choices to show.", min=1)]


def run(
    plan: PlanFile = None,
    site: SiteName = "here",
    job: JobId = "",
    nodes: Nodes = None,
    time: TimeText = "",
    partition: PartitionName = "",
    account: Account = "",
    qos: Qos = "",
    constraint: Constraint = "",
    pilot: PilotRun = None,
    top: Top = 5,
    as_json: AsJson = False,
    catalog: CatalogFolder = None,
) -> None:
    """Rank requests by time to result, wait and run. Exit 1: nothing beats the original; 3: no scheduler answers."""
    from scalewright.errors import ConfigError
    from scalewright.launch.advise.ranking import read_queue
    from scalewright.sites.scheduler import Runner

    if bool(job) == (plan is not None):
        raise ConfigError("advice is about a plan or about a job that waits: give PLAN.json or --job ID, one of them")
    if job:
        _explain(read_queue(Runner()), job, as_json=as_json)
        return
    assert plan is not None
    asked = _Asked(nodes=nodes, time=time, partition=partition, account=account, qos=qos, constraint=constraint)
    _advise(plan, site, asked, pilot, top=top, as_json=as_json, catalog=catalog)


def _explain(queue: Any, job: str, *, as_json: bool) -> None:
    from scalewright.launch.advise.pending import explain
    from scalewright.records.documents import to_json
    from scalewright.report.cluster.advice import explained_document, print_explained
    from scalewright.report.console import answer_console

    found = explain(queue, job)
    if as_json:
        typer.echo(to_json(explained_document(found)), nl=False)
    else:
        print_explained(answer_console(), found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The request that is to be bettered."""

    nodes: int | None
    time: str
    partition: str
    account: str
    qos: str
    constraint: str


def _advise(
    plan: Path, site_name: str, asked: _Asked, pilot: Path | None, *, top: int, as_json: bool, catalog: Path | None
) -> None:
    from scalewright.launch.advise.ranking import advise, read_queue
    from scalewright.launch.plan_job import check_node_size
    from scalewright.records.documents import to_json
    from scalewright.records.types import ExitCode
    from scalewright.report.cluster.advice import advice_document, print_advice
    from scalewright.report.console import answer_console
    from scalewright.sites.current import cluster_of_user, site_of
    from scalewright.sites.scheduler import Runner

    planned = _planned(plan, pilot, catalog)
    cluster = cluster_of_user()
    site = site_of(site_name, cluster, catalog)
    original = _original(planned, site, cluster, asked)
    check_node_size(planned.gpus_per_node, site)
    partitions = [p for p in cluster.partitions if not site.partitions or _has_gpus(site, p.name)]
    runner = Runner()
    with tempfile.TemporaryDirectory(prefix="scalewright-advise-") as folder:
        script_of = _renderer(site, cluster, planned, asked, Path(folder))
        script_of(original)  # what breaks a rule of the site is refused before anybody is asked

        def test(ask: Ask) -> str:
            script = Path(folder) / "job.sh"
            script.write_text(script_of(ask))
            return runner.said(["sbatch", "--test-only", str(script)])

        found = advise(planned, original=original, partitions=partitions, queue=read_queue(runner), test=test)
    if as_json:
        typer.echo(to_json(advice_document(found, planned, site=site.id)), nl=False)
    else:
        print_advice(answer_console(), found, planned, top=top)
    raise typer.Exit(ExitCode.YES if found.helps else ExitCode.NO)


def _planned(plan: Path, pilot: Path | None, catalog: Path | None) -> PlannedRun:
    from scalewright.catalog.library import open_catalog
    from scalewright.launch.advise.run_times import planned_run, with_pilot
    from scalewright.observe.pilot import measured_pilot
    from scalewright.records.documents import read_document
    from scalewright.records.run_directory import RunDirectory

    constants = open_catalog(catalog).constants()
    found = planned_run(
        read_document(plan, "plan"), where=str(plan), margin_frac=constants.walltime_margin.value,
        startup_s=constants.startup_time.value,
    )  # fmt: skip
    return found if pilot is None else with_pilot(found, measured_pilot(RunDirectory.open(pilot)))


def _original(planned: PlannedRun, site: Site, cluster: Cluster, asked: _Asked) -> Ask:
    from scalewright.errors import ConfigError, UnknownNameError
    from scalewright.launch.advise.ranking import Ask
    from scalewright.sites.walltime import parse_walltime_s

    names = [p.name for p in cluster.partitions]
    default = next((p.name for p in cluster.partitions if p.is_default), names[0] if names else "")
    chosen = asked.partition or site.select.partition or default
    if chosen not in names:
        raise UnknownNameError("partition", chosen, names, hint=f"{cluster.name} has {', '.join(names)}")
    num_nodes = planned.num_nodes if asked.nodes is None else asked.nodes
    count = planned.count(num_nodes)
    longest = next(p.max_time_s for p in cluster.partitions if p.name == chosen)
    limit_s = parse_walltime_s(asked.time) if asked.time else min(planned.request_s(count), longest or 10**9)
    if planned.num_jobs(count, limit_s) is None:
        raise ConfigError(
            f"--time {asked.time or limit_s} leaves too little time to work: starting, saving and the margin take more "
            "than half of it"
        )
    return Ask(num_nodes=num_nodes, partition=chosen, limit_s=limit_s)


def _has_gpus(site: Site, partition: str) -> bool:
    found = site.partition(partition)
    return found is not None and found.has_gpus


def _renderer(site: Site, cluster: Cluster, planned: PlannedRun, asked: _Asked, folder: Path) -> Callable[[Ask], str]:
    """The very script that launch would submit for a request, with nothing to run in it."""
    from scalewright.launch.script.render import render
    from scalewright.launch.script.request import JobRequest

    account = asked.account or (cluster.accounts[0] if site.account.required and len(cluster.accounts) == 1 else "")

    def script_of(ask: Ask) -> str:
        request = JobRequest(
            command=("true",), num_nodes=ask.num_nodes, walltime_s=ask.limit_s, gpus_per_node=planned.gpus_per_node,
            run_dir=folder, work_dir=folder, account=account, partition=ask.partition, qos=asked.qos,
            constraint=asked.constraint,
        )  # fmt: skip
        return render(request, site).text

    return script_of
