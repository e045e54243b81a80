"""Bandwidth of memory, and of the link between host and device."""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as checked

from scalewright import units
from scalewright.catalog.library import Catalog
from scalewright.records.measurements import Measurements
from scalewright.study.kinds.micro.kind import MicroKind, largest
from scalewright.study.kinds.options import STRICT
from scalewright.workload.micro_run import STREAM_BYTES, MemoryRun
from scalewright.workload.run_options import DeviceKind


@checked(frozen=True, kw_only=True, config=STRICT)
class MemoryOptions:
    """Options of `bench memory`, and of a point of this kind."""

    sizes: str | None = None
    """Of a buffer, separated by commas; default: 64 KiB to 1 GiB."""
    ranks: int | None = None
    device: str = "auto"
    budget: str = "20 s"


class MemoryKind(MicroKind[MemoryOptions]):
    name = "memory"
    options = TypeAdapter(MemoryOptions)
    metrics = ("memory_bytes_per_s",)

    def config(self, catalog: Catalog, options: MemoryOptions, *, device: DeviceKind, folder: Path) -> MemoryRun:
        del catalog, folder
        sizes = STREAM_BYTES
        if options.sizes is not None:
            sizes = tuple(round(units.parse(size, units.BYTES)) for size in options.sizes.split(","))
        return MemoryRun(sizes_bytes=sizes, device=device, budget_s=units.parse(options.budget, units.SECONDS))

    def numbers(self, measurements: Measurements) -> dict[str, float | None]:
        """Copy in the memory of the device that computes: on a CPU that is the host's."""
        place = "device" if measurements.device.get("type") == "cuda" else "host"
        copies = [row for row in measurements.rows if row["op"] == "copy" and row["place"] == place]
        return {"memory_bytes_per_s": largest(copies, "bytes_per_s")}


KIND = MemoryKind()
