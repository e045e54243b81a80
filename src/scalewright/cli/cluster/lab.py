"""`scalewright lab`: a practice cluster on this host, with a real Slurm, and faults for real runs."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from scalewright.cli.cluster import fault
from scalewright.cli.options import AsJson

if TYPE_CHECKING:
    from scalewright.lab.cluster import Lab
    from scalewright.lab.spec import LabSpec

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Practise on a real Slurm cluster on this host.")
app.add_typer(fault.app, name="fault", short_help="Inject faults into real runs, and see whether explain names them.")

UNSHAPED = "unshaped"


@app.callback()
def _root() -> None:
    """Start, list and remove practice clusters: real Slurm daemons on this host, as root."""


@app.command("up")
def up(
    id: Annotated[str | None, typer.Argument(metavar="ID", help="Its name; default: lab1, lab2, ...")] = None,
    nodes: Annotated[int, typer.Option(help="Number of nodes (slurmd).")] = 4,
    gpus: Annotated[int, typer.Option(help="Fake GPUs per node.")] = 2,
    no_accounting: Annotated[
        bool, typer.Option("--no-accounting", help="No slurmdbd and MariaDB: no sacct, QOS or preemption.")
    ] = False,
    network: Annotated[
        str | None, typer.Option(metavar="RATE", help="A shaped link for every node: 1 Gbit/s, or unshaped.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start a cluster and print how to use it. Returns when every node is idle."""
    from scalewright.lab.cluster import Lab
    from scalewright.lab.status import as_document, lab_status
    from scalewright.records.documents import to_json

    lab = Lab.up(_spec(nodes, gpus, not no_accounting, network), id)
    if as_json:
        typer.echo(to_json(as_document([lab_status(lab)])), nl=False)
    else:
        _print_usage(lab)


@app.command("status")
def status(
    id: Annotated[str | None, typer.Argument(metavar="ID", help="One cluster; default: all.")] = None,
    as_json: AsJson = False,
) -> None:
    """List clusters with their daemons, nodes and ports. Exit 1: the named cluster is not ready."""
    from scalewright.lab.cluster import Lab
    from scalewright.lab.state import find_instance, instances
    from scalewright.lab.status import as_document, lab_status
    from scalewright.records.documents import to_json
    from scalewright.records.types import ExitCode
    from scalewright.report.cluster.lab import print_status
    from scalewright.report.console import answer_console

    chosen = [find_instance(id)] if id else instances()
    statuses = [lab_status(Lab(paths)) for paths in chosen if paths.document.exists()]
    if as_json:
        typer.echo(to_json(as_document(statuses)), nl=False)
    else:
        print_status(answer_console(), statuses)
    if id and not all(status.is_ready for status in statuses):  # others may be starting or stopping at the moment
        raise typer.Exit(ExitCode.NO)


@app.command("env")
def env(id: Annotated[str, typer.Argument(metavar="ID", help="Name of the cluster.")]) -> None:
    """Print shell lines that direct Slurm's commands to a cluster: eval "$(scalewright lab env ID)"."""
    from scalewright.lab.cluster import Lab

    typer.echo(_exports(Lab.open(id)))


@app.command("down")
def down(
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID...", help="Names of clusters.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All clusters.")] = False,
) -> None:
    """Stop clusters with all their jobs, and remove their files and nothing else."""
    from scalewright.errors import ConfigError
    from scalewright.lab.cluster import remove_instance
    from scalewright.lab.state import find_instance, instances

    if bool(ids) == every:
        names = ", ".join(paths.id for paths in instances()) or "none"
        raise ConfigError(f"give either names of clusters or --all; existing clusters: {names}")
    for paths in [find_instance(name) for name in ids] if ids else instances():
        remove_instance(paths)
        typer.echo(f"{paths.id} is removed", err=True)


def _spec(nodes: int, gpus: int, accounting: bool, network: str | None) -> LabSpec:
    from scalewright import units
    from scalewright.errors import ConfigError, QuantityError
    from scalewright.lab.spec import LabSpec

    try:
        rate = None if network in (None, UNSHAPED) else units.parse(str(network), units.BYTES_PER_S)
    except QuantityError as error:
        raise ConfigError(f"--network {error}") from error
    return LabSpec(
        num_nodes=nodes,
        num_gpus_per_node=gpus,
        accounting=accounting,
        network=network is not None,
        link_rate_bytes_per_s=rate,
    )


def _exports(lab: Lab) -> str:
    return f"export SLURM_CONF={shlex.quote(str(lab.conf))}"


def _print_usage(lab: Lab) -> None:
    spec = lab.state.spec
    num_nodes = min(spec.num_nodes, 2)
    gpus = " --gpus-per-node=1" if spec.num_gpus_per_node else ""
    typer.echo(f"{lab.id} is up: {lab.summary}; remove it with: scalewright lab down {lab.id}", err=True)
    typer.echo(_exports(lab))
    # A comment, so that eval can take the whole output.
    typer.echo(f"# try: sbatch --wait -N{num_nodes}{gpus} --output=lab.out --wrap 'srun hostname' && cat lab.out")
