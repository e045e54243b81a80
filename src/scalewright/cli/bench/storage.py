"""`scalewright bench storage`: small files, tar shards, LMDB and RAM, cold and warm, and metadata."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from scalewright.cli.bench.start import RunFolder, folder_to_measure, start_bench
from scalewright.cli.options import AsJson

MOST_DEFAULT_WORKERS = 16
ScratchFolder = Annotated[Path, typer.Option(metavar="DIR", help="Scratch folder on the storage to measure.")]
FormatNames = Annotated[str, typer.Option(help="all, or some of files,shards,lmdb,ram.")]
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
    """Time reading of small files, tar shards, LMDB and RAM, and metadata. Exit 3: the scratch is full or not ours."""
    from scalewright import units
    from scalewright.workload.micro_run import parse_numbers
    from scalewright.workload.storage_run import FORMATS, StorageFormat, StorageRun

    names = FORMATS if formats.strip() == "all" else tuple(part.strip() for part in formats.split(","))
    config = StorageRun(
        path=folder_to_measure(path),
        formats=cast(tuple[StorageFormat, ...], names),
        size_bytes=round(units.parse(size, units.BYTES)),
        sample_bytes=round(units.parse(sample_size, units.BYTES)),
        num_workers=_sweep() if workers == "auto" else parse_numbers(workers, flag="--workers"),
        read_sizes_bytes=tuple(round(units.parse(part, units.BYTES)) for part in io_sizes.split(",")),
        num_metadata_files=files,
        budget_s=units.parse(budget, units.SECONDS),
    )
    start_bench("storage", config.document(), run_dir=run_dir, as_json=as_json)


def _sweep() -> tuple[int, ...]:
    """Powers of two up to the cores of this machine."""
    from scalewright.here.devices import num_cores

    most = min(num_cores(), MOST_DEFAULT_WORKERS)
    return tuple(2**power for power in range(most.bit_length()) if 2**power <= most)
