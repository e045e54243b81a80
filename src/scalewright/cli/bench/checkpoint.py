"""`scalewright bench checkpoint`: what saving and restoring training state costs, by size and mode."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.bench.options import ScratchFolder
from scalewright.cli.bench.start import run_benchmark
from scalewright.cli.options import AsJson, DeviceName, RunFolder

StateSizes = Annotated[str, typer.Option(metavar="SIZE,...", help="State of all ranks together.")]
ModeNames = Annotated[str, typer.Option(help="sync: training waits; async: it continues after a copy.")]


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
    run_benchmark(
        "checkpoint", run_dir=run_dir, as_json=as_json,
        path=str(path), sizes=sizes, modes=modes, ranks=ranks, repeats=repeats, device=device, budget=budget,
    )  # fmt: skip
