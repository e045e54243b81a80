"""`scalewright preflight`: are these nodes ready for step 1?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.options import AsJson, CatalogFolder

Ranks = Annotated[int, typer.Option(help="0: one per GPU or task of the allocation; on a CPU alone two.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or auto.")]
SystemName = Annotated[str, typer.Option(help="Catalogued system whose nominal rates must be met.")]
PartitionName = Annotated[str, typer.Option(help="Its partition; default: its first.")]
TransportName = Annotated[str, typer.Option(help="The way between nodes that the library's log must show.")]
Spares = Annotated[int, typer.Option(help="Nodes that may be left out; the others are written for srun.")]
Folders = Annotated[list[Path] | None, typer.Option("--folder", help="Must be writable with room; may be repeated.")]
MinFree = Annotated[str, typer.Option(help="Room that each folder must have.")]
Deadline = Annotated[str, typer.Option(help="Time to arrive, and again to finish.")]
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
    """Check map, links, transport, versions, room and speed of nodes. Exit 1: asked for wrongly; 75: other nodes."""
    from scalewright.catalog.library import open_catalog
    from scalewright.errors import ConfigError
    from scalewright.here.devices import device_here, visible_gpus
    from scalewright.launch.preflight.request import with_nominal
    from scalewright.launch.preflight.start import check_nodes, shape_here
    from scalewright.records.documents import to_json
    from scalewright.records.preflight import PreflightRequest
    from scalewright.records.run_directory import RunDirectory, new_run_id
    from scalewright.report.cluster.preflight import print_preflight
    from scalewright.report.console import answer_console
    from scalewright.units import BYTES, SECONDS, parse

    if ranks < 0 or spares < 0:
        raise ConfigError(f"--ranks {ranks} and --spares {spares} must not be negative")
    if partition and not system:
        raise ConfigError("--partition is one of a catalogued system's: give --system as well")
    deadline_s = parse(deadline, SECONDS)
    if deadline_s < 1.0:
        raise ConfigError(f"--deadline {deadline} is too short to start a process: give 1 s or more")
    gpus = [] if device == "cpu" else visible_gpus()
    shape = shape_here(os.environ, num_ranks=ranks, num_gpus=len(gpus))
    if spares >= shape.num_nodes:
        raise ConfigError(f"--spares {spares} of {shape.num_nodes} nodes leaves none to run on: ask for more nodes")
    device_here(device, num_ranks=shape.ranks_per_node)  # refuses what cannot be
    folder_of_run = (run_dir or Path("runs") / new_run_id("preflight")).absolute()
    request = PreflightRequest(
        device=device, num_spares=spares, transport=transport, deadline_s=deadline_s,
        min_free_bytes=parse(min_free, BYTES),
        folders=tuple(str(path.absolute()) for path in folder or ()) or (str(folder_of_run), _node_folder()),
    )  # fmt: skip
    if system:
        request = with_nominal(
            request, open_catalog(catalog), system=system, partition=partition or None, transport=transport or None,
            num_nodes=shape.num_nodes - spares, ranks_per_node=shape.ranks_per_node,
        )  # fmt: skip
    elif transport:
        open_catalog(catalog).transport(transport)  # an unknown name is refused
    result = check_nodes(RunDirectory(folder_of_run), request, os.environ, shape)
    if as_json:
        typer.echo(to_json(result), nl=False)
    else:
        print_preflight(answer_console(), result, where=str(folder_of_run / "preflight"))
    raise typer.Exit(int(result["code"]))


def _node_folder() -> str:
    """Where a node keeps what is its own."""
    return os.environ.get("SLURM_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
