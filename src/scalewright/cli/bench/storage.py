"""`scalewright bench storage`: small files, tar shards, LMDB, SquashFS and RAM, cold and warm, and metadata."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.bench.options import ScratchFolder
from scalewright.cli.bench.start import run_benchmark
from scalewright.cli.options import AsJson, RunFolder

FormatNames = Annotated[str, typer.Option(help="all, or some of files,shards,lmdb,squashfs,ram.")]
WorkerCounts = Annotated[str, typer.Option(metavar="N,...", help="Processes that read; auto: 1,2,4,... cores.")]
ReadSizes = Annotated[str, typer.Option(metavar="SIZE,...", help="Of a sequential read of shards.")]


def run(
    path: ScratchFolder = Path(),
    formats: FormatNames = "all",
    size: Annotated[str, typer.Option(help="Of the data set, once per format.")] = "256 MiB",
    sample_size: Annotated[str, typer.Option(help="Of a sample, on average.")] = "110 kB",
    workers: WorkerCounts = "auto",
    io_sizes: ReadSizes = "128 KiB,1 MiB,8 MiB",
    files: Annotated[int, typer.Option(help="Empty files per process, for the metadata rate.")] = 1000,
    budget: Annotated[str, typer.Option(help="Time for all of it.")] = "60 s",
    run_dir: RunFolder = None,
    as_json: AsJson = False,
) -> None:
    """Time small files, tar shards, LMDB, SquashFS, RAM and metadata. Exit 3: the scratch is full or not ours."""
    run_benchmark(
        "storage", run_dir=run_dir, as_json=as_json,
        path=str(path), formats=formats, size=size, sample_size=sample_size, workers=workers, io_sizes=io_sizes,
        files=files, budget=budget,
    )  # fmt: skip
