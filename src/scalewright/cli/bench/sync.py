"""`scalewright bench sync`: weights from trainer ranks to engine ranks, by peers, broadcast and file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.bench.start import run_benchmark
from scalewright.cli.options import AsJson, CatalogFolder, DeviceName, RunFolder

ModelName = Annotated[str | None, typer.Option(help="Catalogue name, config.json, or layers=..,hidden=..,heads=..")]
TrainerLayoutText = Annotated[str, typer.Option(help="Of the trainer: dp, zero and tp.")]
SyncWays = Annotated[str, typer.Option("--ways", help="all, or some of peers,broadcast,file.")]
SharedFolder = Annotated[Path | None, typer.Option(metavar="DIR", help="For a sync by file; default: the run's.")]
WirePrecision = Annotated[str, typer.Option(help="Of weights that travel: bf16 or fp32.")]


def run(
    model: ModelName = None,
    layout: TrainerLayoutText = "dp=2,zero=3",
    engines: Annotated[int, typer.Option(help="Copies of the model that receive it.")] = 1,
    engine_tp: Annotated[int, typer.Option(help="Ranks of each engine.")] = 1,
    sync_ways: SyncWays = "all",
    precision: WirePrecision = "bf16",
    path: SharedFolder = None,
    repeats: Annotated[int, typer.Option(help="Syncs by each way.")] = 3,
    seed: Annotated[int, typer.Option(help="Of the weights.")] = 0,
    budget: Annotated[str, typer.Option(help="Time for all syncs.")] = "60 s",
    device: DeviceName = "cpu",
    run_dir: RunFolder = None,
    as_json: AsJson = False,
    catalog: CatalogFolder = None,
) -> None:
    """Time each way of a weight sync against the link's own rate. Exit 1: other weights than the trainer's arrived."""
    from scalewright.records.measurements import read_measurements
    from scalewright.records.types import ExitCode

    execution = run_benchmark(
        "sync", run_dir=run_dir, as_json=as_json, catalog=catalog,
        model=model, layout=layout, engines=engines, engine_tp=engine_tp, sync_ways=sync_ways, precision=precision,
        path=None if path is None else str(path), repeats=repeats, seed=seed, budget=budget, device=device,
    )  # fmt: skip
    if read_measurements(execution.directory).summary["num_wrong"]:
        raise typer.Exit(ExitCode.NO)
