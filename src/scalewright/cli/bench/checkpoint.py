"""`scalewright bench checkpoint`: what saving and restoring training state costs, by size and mode."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, cast

import typer

from scalewright.cli.bench.start import DeviceName, RunFolder, folder_to_measure, start_bench
from scalewright.cli.options import AsJson
from scalewright.errors import ConfigError

ScratchFolder = Annotated[Path, typer.Option(metavar="DIR", help="Scratch folder on the storage to measure.")]
StateSizes = Annotated[str, typer.Option(metavar="SIZE,...", help="State of all ranks together.")]
ModeNames = Annotated[str, typer.Option(help="sync: training waits; async: it goes on after a copy.")]


def run(
    path: ScratchFolder = Path(),
    sizes: StateSizes = "64 MiB,256 MiB,1 GiB",
    modes: ModeNames = "sync,async",
    ranks: Annotated[int, typer.Option(help="Processes that save together.")] = 1,
    repeats: Annotated[int, typer.Option(help="Saves of each size and mode, if the budget allows.")] = 3,
    device: DeviceName = "auto",
    budget: Annotated[str, typer.Option(help="Time for measuring; the largest sizes are left out first.")] = "60 s",
    run_dir: RunFolder = None,
    as_json: AsJson = False,
) -> None:
    """Time saves and restores of sharded state, as training does them. Exit 3: the scratch is full or not ours."""
    from scalewright import units
    from scalewright.here.devices import device_here
    from scalewright.launch.ranks.allocation import is_inside
    from scalewright.workload.language_run import DeviceKind
    from scalewright.workload.storage_run import CheckpointRun, SaveMode

    if ranks < 1:
        raise ConfigError(f"--ranks {ranks} starts nothing: give 1 or more")
    place = device if is_inside(os.environ) else device_here(device, num_ranks=ranks)
    config = CheckpointRun(
        path=folder_to_measure(path),
        sizes_bytes=tuple(round(units.parse(part, units.BYTES)) for part in sizes.split(",")),
        modes=cast(tuple[SaveMode, ...], tuple(part.strip() for part in modes.split(","))),
        repeats=repeats,
        device=cast(DeviceKind, place),
        budget_s=units.parse(budget, units.SECONDS),
    )
    start_bench("checkpoint", config.document(), run_dir=run_dir, as_json=as_json, num_ranks=ranks)
