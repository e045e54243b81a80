"""Small files, tar shards, LMDB and RAM, read cold and warm; and metadata."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as checked

from scalewright import units
from scalewright.catalog.library import Catalog
from scalewright.errors import EnvironmentFailedError
from scalewright.here.devices import num_cores
from scalewright.launch.ranks.allocation import is_inside
from scalewright.records.measurements import Measurements, read_measurements
from scalewright.records.run_directory import RunDirectory
from scalewright.study.kinds.micro.kind import MicroKind, scratch_beside
from scalewright.study.kinds.options import STRICT
from scalewright.workload.micro_run import parse_numbers
from scalewright.workload.run_options import DeviceKind
from scalewright.workload.storage_run import FORMATS, StorageFormat, StorageRun

MOST_DEFAULT_WORKERS = 16


@checked(frozen=True, kw_only=True, config=STRICT)
class StorageOptions:
    """Options of `bench storage`, and of a point of this kind."""

    path: str = ""
    """Scratch folder on the storage to measure; empty: beside the run directory."""
    formats: str = "all"
    size: str = "256 MiB"
    """Of the data set, once per format."""
    sample_size: str = "110 kB"
    workers: str = "auto"
    """Processes that read, separated by commas; auto: 1,2,4,... cores."""
    io_sizes: str = "128 KiB,1 MiB,8 MiB"
    files: int = 1000
    """Empty files per process, for the metadata rate."""
    ranks: int | None = None
    device: str = "cpu"
    budget: str = "60 s"


class StorageKind(MicroKind[StorageOptions]):
    name = "storage"
    options = TypeAdapter(StorageOptions)
    metrics: tuple[str, ...] = ("cold_samples_per_s", "warm_samples_per_s", "bytes_per_s")

    def device(self, options: StorageOptions) -> DeviceKind:
        return cast(DeviceKind, options.device)

    def config(self, catalog: Catalog, options: StorageOptions, *, device: DeviceKind, folder: Path) -> StorageRun:
        del catalog, device
        formats = FORMATS if options.formats.strip() == "all" else tuple(n.strip() for n in options.formats.split(","))
        return StorageRun(
            path=folder_to_measure(options.path, folder),
            formats=cast(tuple[StorageFormat, ...], formats),
            size_bytes=round(units.parse(options.size, units.BYTES)),
            sample_bytes=round(units.parse(options.sample_size, units.BYTES)),
            num_workers=_sweep() if options.workers == "auto" else parse_numbers(options.workers, flag="--workers"),
            read_sizes_bytes=tuple(round(units.parse(size, units.BYTES)) for size in options.io_sizes.split(",")),
            num_metadata_files=options.files,
            budget_s=units.parse(options.budget, units.SECONDS),
        )

    def numbers(self, measurements: Measurements) -> dict[str, float | None]:
        rows = measurements.rows
        return {
            "cold_samples_per_s": _best(rows, "samples_per_s", cache="cold"),
            "warm_samples_per_s": _best(rows, "samples_per_s", cache="warm"),
            "bytes_per_s": _best(rows, "bytes_per_s", cache="cold", order="sequential"),
        }

    def samples(self, path: Path) -> tuple[float, ...]:
        rows = read_measurements(RunDirectory(path)).rows
        return tuple(float(row["time_s"]) / float(row["num_samples"]) for row in rows if row.get("num_samples"))


def folder_to_measure(path: str, run_folder: Path) -> str:
    """The scratch folder of a storage benchmark. It must exist, unless other nodes than this one use it."""
    if not path:
        return str(scratch_beside(run_folder) if run_folder != Path() else run_folder)
    if not is_inside(os.environ) and not Path(path).is_dir():
        raise EnvironmentFailedError(f"{path}: no such folder to measure in; make it, or give another --path")
    return str(Path(path).resolve())


def _sweep() -> tuple[int, ...]:
    """Powers of two up to the cores of this machine."""
    most = min(num_cores(), MOST_DEFAULT_WORKERS)
    return tuple(2**power for power in range(most.bit_length()) if 2**power <= most)


def _best(rows: Sequence[Mapping[str, Any]], key: str, **conditions: str) -> float | None:
    """The largest figure of the rows that meet the conditions; of a random order where the format has one."""
    matching = [row for row in rows if all(row.get(name) == value for name, value in conditions.items())]
    random = [row for row in matching if row.get("order") == "random"]
    return max((float(row[key]) for row in (random or matching)), default=None)


KIND = StorageKind()
