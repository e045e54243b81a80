"""`scalewright advise`: which request gets the result soonest, and why a job waits."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scalewright.cli.cluster.options import Constraint, Qos
from scalewright.cli.options import AsJson, CatalogFolder

if TYPE_CHECKING:
    from collections.abc import Callable

    from scalewright.launch.advise.ranking import QueueRequest
    from scalewright.launch.advise.run_times import PlannedRun
    from scalewright.sites.cluster import Cluster
    from scalewright.sites.types import Site

PlanFile = Annotated[
    Path | None, typer.Argument(metavar="[PLAN.json]", help="What `plan --out FILE` wrote.", show_default=False)
]
SiteName = Annotated[str, typer.Option(help="Profile of the cluster; here: the cluster you are on.")]
JobId = Annotated[str, typer.Option("--job", help="Explain instead why this job waits.")]
Nodes = Annotated[int | None, typer.Option(help="Nodes of the original request; default: the plan's.")]
TimeText = Annotated[str, typer.Option("--time", help="Its limit, HH:MM:SS; default: as the plan predicts.")]
PartitionName = Annotated[str, typer.Option(help="Its partition; default: the site's.")]
Account = Annotated[str, typer.Option(help="Project to charge; default: yours, if you have only one.")]
PilotRun = Annotated[
    Path | None, typer.Option("--pilot", metavar="RUN", help="A short run, for measured step times and memory.")
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
    """Rank requests by time to result (wait plus run). Exit 1: no request beats the original; 3: no scheduler."""
    from scalewright.errors import ConfigError
    from scalewright.launch.advise.ranking import read_queue
    from scalewright.sites.scheduler import Runner

    if bool(job) == (plan is not None):
        raise ConfigError("give either PLAN.json (which request is best) or --job ID (why a job waits)")
    if job:
        _explain(read_queue(Runner()), job, as_json=as_json)
        return
    assert plan is not None
    options = _RequestOptions(
        nodes=nodes, time=time, partition=partition, account=account, qos=qos, constraint=constraint
    )  # fmt: skip
    _advise(plan, site, options, pilot, top=top, as_json=as_json, catalog=catalog)


def _explain(queue: Any, job: str, *, as_json: bool) -> None:
    from scalewright.launch.advise.pending import explain
    from scalewright.records.documents import to_json
    from scalewright.report.cluster.advice import pending_document, print_pending
    from scalewright.report.console import answer_console

    pending = explain(queue, job)
    if as_json:
        typer.echo(to_json(pending_document(pending)), nl=False)
    else:
        print_pending(answer_console(), pending)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RequestOptions:
    """The options of the original request, which the advice tries to improve."""

    nodes: int | None
    time: str
    partition: str
    account: str
    qos: str
    constraint: str


def _advise(
    plan: Path,
    site_name: str,
    options: _RequestOptions,
    pilot: Path | None,
    *,
    top: int,
    as_json: bool,
    catalog: Path | None,
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
    original = _original(planned, site, cluster, options)
    check_node_size(planned.gpus_per_node, site)
    partitions = [p for p in cluster.partitions if not site.partitions or _has_gpus(site, p.name)]
    runner = Runner()
    with tempfile.TemporaryDirectory(prefix="scalewright-advise-") as folder:
        script_of = _renderer(site, cluster, planned, options, Path(folder))
        script_of(original)  # refuses a request that breaks a rule of the site, before the scheduler is asked

        def test(request: QueueRequest) -> str:
            script = Path(folder) / "job.sh"
            script.write_text(script_of(request))
            return runner.call_for_messages(["sbatch", "--test-only", str(script)])

        advice = advise(planned, original=original, partitions=partitions, queue=read_queue(runner), test=test)
    if as_json:
        typer.echo(to_json(advice_document(advice, planned, site=site.id)), nl=False)
    else:
        print_advice(answer_console(), advice, planned, top=top)
    raise typer.Exit(ExitCode.YES if advice.helps else ExitCode.NO)


def _planned(plan: Path, pilot: Path | None, catalog: Path | None) -> PlannedRun:
    from scalewright.catalog.library import open_catalog
    from scalewright.launch.advise.run_times import planned_run, with_pilot
    from scalewright.observe.pilot import measured_pilot
    from scalewright.records.documents import read_document
    from scalewright.records.run_directory import RunDirectory

    constants = open_catalog(catalog).constants()
    run_of_plan = planned_run(
        read_document(plan, "plan"), where=str(plan), margin_frac=constants.walltime_margin.value,
        startup_s=constants.startup_time.value,
    )  # fmt: skip
    return run_of_plan if pilot is None else with_pilot(run_of_plan, measured_pilot(RunDirectory.open(pilot)))


def _original(planned: PlannedRun, site: Site, cluster: Cluster, options: _RequestOptions) -> QueueRequest:
    from scalewright.errors import ConfigError, UnknownNameError
    from scalewright.launch.advise.ranking import QueueRequest
    from scalewright.sites.walltime import format_walltime, parse_walltime_s

    names = [p.name for p in cluster.partitions]
    default = next((p.name for p in cluster.partitions if p.is_default), names[0] if names else "")
    partition = options.partition or site.select.partition or default
    if "," in partition:
        raise ConfigError(f"--partition {partition}: advise compares all partitions with one: give one of them")
    if partition not in names:
        raise UnknownNameError("partition", partition, names, hint=f"{cluster.name} has {', '.join(names)}")
    num_nodes = planned.num_nodes if options.nodes is None else options.nodes
    count = planned.count(num_nodes)
    longest_s = next(p.max_time_s for p in cluster.partitions if p.name == partition)
    predicted_s = planned.request_s(count)
    limit_s = parse_walltime_s(options.time) if options.time else min(predicted_s, longest_s or predicted_s)
    if planned.num_jobs(count, limit_s) is None:
        raise ConfigError(
            f"--time {options.time or format_walltime(limit_s)} is too short: start, saving and margin take more than "
            "half of it; give a longer --time"
        )
    return QueueRequest(num_nodes=num_nodes, partition=partition, limit_s=limit_s)


def _has_gpus(site: Site, name: str) -> bool:
    partition = site.partition(name)
    return partition is not None and partition.has_gpus


def _renderer(
    site: Site, cluster: Cluster, planned: PlannedRun, options: _RequestOptions, folder: Path
) -> Callable[[QueueRequest], str]:
    """A function from a request to the script that launch would submit for it, with `true` as its command."""
    from scalewright.launch.script.render import render
    from scalewright.launch.script.request import JobRequest

    only_account = cluster.accounts[0] if site.account.required and len(cluster.accounts) == 1 else ""
    account = options.account or only_account

    def script_of(request: QueueRequest) -> str:
        job = JobRequest(
            command=("true",), num_nodes=request.num_nodes, walltime_s=request.limit_s,
            gpus_per_node=planned.gpus_per_node, run_dir=folder, work_dir=folder, account=account,
            partition=request.partition, qos=options.qos, constraint=options.constraint,
        )  # fmt: skip
        return render(job, site).text

    return script_of
