"""`scalewright preflight`: check nodes before a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.options import AsJson, CatalogFolder

Ranks = Annotated[int, typer.Option(help="0: one per GPU or task of the allocation; two on a CPU.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or auto.")]
SystemName = Annotated[str, typer.Option(help="Catalogued system whose nominal rates must be reached.")]
PartitionName = Annotated[str, typer.Option(help="Its partition; default: its first.")]
TransportName = Annotated[str, typer.Option(help="Transport between nodes that the library's log must show.")]
Spares = Annotated[int, typer.Option(help="Nodes that may be left out. The good nodes are written for srun.")]
Folders = Annotated[list[Path] | None, typer.Option("--folder", help="Must be writable; may be repeated.")]
MinFree = Annotated[str, typer.Option(help="Free space that each folder must have.")]
Deadline = Annotated[str, typer.Option(help="Time for all ranks to start, and again to finish.")]
RunDir = Annotated[Path | None, typer.Option(metavar="DIR", help="Default: runs/TIME-preflight.")]


def run(
    ranks: Ranks = 0,
    device: Device = "auto",
    system: SystemName = "",
    partition: PartitionName = "",
    transport: TransportName = "",
    spares: Spares = 0,
    folder: Folders = None,
    min_free: MinFree = "1 GB",
    deadline: Deadline = "60 s",
    run_dir: RunDir = None,
    as_json: AsJson = False,
    catalog: CatalogFolder = None,
) -> None:
    """Check mapping, links, transport, versions, space and speed of nodes. Exit 1: wrong request; 75: bad nodes."""
    from scalewright.catalog.library import open_catalog
    from scalewright.errors import ConfigError
    from scalewright.here.devices import device_here, visible_gpus
    from scalewright.launch.preflight.node_check import check_nodes, ranks_here
    from scalewright.launch.preflight.request import with_nominal
    from scalewright.records.documents import to_json
    from scalewright.records.preflight import PreflightRequest
    from scalewright.records.run_directory import RunDirectory, new_run_id
    from scalewright.report.cluster.preflight import print_preflight
    from scalewright.report.console import answer_console
    from scalewright.units import BYTES, SECONDS, parse

    if ranks < 0 or spares < 0:
        raise ConfigError(f"--ranks {ranks} and --spares {spares} must not be negative")
    if partition and not system:
        raise ConfigError(f"--partition {partition} needs the system it belongs to: give --system as well")
    deadline_s = parse(deadline, SECONDS)
    if deadline_s < 1.0:
        raise ConfigError(f"--deadline {deadline} is too short to start a process: give 1 s or more")
    gpus = [] if device == "cpu" else visible_gpus()
    checked = ranks_here(os.environ, num_ranks=ranks, num_gpus=len(gpus))
    if spares >= checked.num_nodes:
        raise ConfigError(
            f"--spares {spares} of {checked.num_nodes} nodes leaves no node to run on: allocate more nodes"
        )
    device_here(device, num_ranks=checked.ranks_per_node)  # raises if the device is not available
    folder_of_run = (run_dir or Path("runs") / new_run_id("preflight")).absolute()
    request = PreflightRequest(
        device=device, num_spares=spares, transport=transport, deadline_s=deadline_s,
        min_free_bytes=parse(min_free, BYTES),
        folders=tuple(str(path.absolute()) for path in folder or ()) or (str(folder_of_run), _node_folder()),
    )  # fmt: skip
    if system:
        request = with_nominal(
            request, open_catalog(catalog), system=system, partition=partition or None, transport=transport or None,
            num_nodes=checked.num_nodes - spares, ranks_per_node=checked.ranks_per_node,
        )  # fmt: skip
    elif transport:
        open_catalog(catalog).transport(transport)  # raises for an unknown name
    result = check_nodes(RunDirectory(folder_of_run), request, os.environ, checked)
    if as_json:
        typer.echo(to_json(result), nl=False)
    else:
        print_preflight(answer_console(), result, where=str(folder_of_run / "preflight"))
    raise typer.Exit(int(result["code"]))


def _node_folder() -> str:
    """The node-local folder."""
    return os.environ.get("SLURM_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
