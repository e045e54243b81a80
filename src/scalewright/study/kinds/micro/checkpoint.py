"""What saving and restoring training state costs, by size and mode."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as checked

from scalewright import units
from scalewright.catalog.library import Catalog
from scalewright.launch.ranks.allocation import is_inside
from scalewright.records.measurements import Measurements, read_measurements
from scalewright.records.run_directory import RunDirectory
from scalewright.study.kinds.micro.kind import MicroKind
from scalewright.study.kinds.micro.storage import folder_to_measure
from scalewright.study.kinds.options import STRICT
from scalewright.workload.run_options import DeviceKind
from scalewright.workload.storage_run import CheckpointRun, SaveMode


@checked(frozen=True, kw_only=True, config=STRICT)
class CheckpointOptions:
    """Options of `bench checkpoint`, and of a point of this kind."""

    path: str = ""
    """Scratch folder on the storage to measure; empty: beside the run directory."""
    sizes: str = "64 MiB,256 MiB,1 GiB"
    """State of all ranks together."""
    modes: str = "sync,async"
    ranks: int | None = None
    repeats: int = 3
    device: str = "auto"
    budget: str = "60 s"


class CheckpointKind(MicroKind[CheckpointOptions]):
    name = "checkpoint"
    options = TypeAdapter(CheckpointOptions)
    metrics = ("save_time_s", "stall_time_s", "restore_time_s")

    def device(self, options: CheckpointOptions) -> DeviceKind:
        """Inside an allocation as given: this process may not see the devices of the other nodes."""
        return cast(DeviceKind, options.device) if is_inside(os.environ) else super().device(options)

    def config(
        self, catalog: Catalog, options: CheckpointOptions, *, device: DeviceKind, folder: Path
    ) -> CheckpointRun:
        del catalog
        return CheckpointRun(
            path=folder_to_measure(options.path, folder),
            sizes_bytes=tuple(round(units.parse(size, units.BYTES)) for size in options.sizes.split(",")),
            modes=cast(tuple[SaveMode, ...], tuple(mode.strip() for mode in options.modes.split(","))),
            repeats=options.repeats,
            device=device,
            budget_s=units.parse(options.budget, units.SECONDS),
        )

    def numbers(self, measurements: Measurements) -> dict[str, float | None]:
        """Of the largest state, in the mode that stops training for the shortest time."""
        rows = sorted(measurements.rows, key=lambda row: (-float(row["size_bytes"]), float(row["stall_s"])))
        columns = {"save_time_s": "total_s", "stall_time_s": "stall_s", "restore_time_s": "restore_s"}
        return {name: float(rows[0][column]) if rows else None for name, column in columns.items()}

    def samples(self, path: Path) -> tuple[float, ...]:
        return tuple(float(row["total_s"]) for row in read_measurements(RunDirectory(path)).rows)


KIND = CheckpointKind()
