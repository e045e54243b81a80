"""`scalewright bench memory`: bandwidth of memory and of the link between host and device."""

from __future__ import annotations

from typing import Annotated, cast

import typer

from scalewright.cli.bench.start import DeviceName, RunFolder, start_bench
from scalewright.cli.options import AsJson

SizesText = Annotated[str | None, typer.Option(metavar="SIZE,...", help="Of a buffer; default: 64 KiB to 1 GiB.")]


def run(
    sizes: SizesText = None,
    device: DeviceName = "auto",
    budget: Annotated[str, typer.Option(help="Time for measuring; start-up comes on top.")] = "20 s",
    run_dir: RunFolder = None,
    as_json: AsJson = False,
) -> None:
    """Time copy, add, read and write in device and host memory, and copies between them. Exit 3: throttled twice."""
    from scalewright import units
    from scalewright.here.devices import device_here
    from scalewright.workload.language_run import DeviceKind
    from scalewright.workload.micro_run import STREAM_BYTES, MemoryRun

    given = STREAM_BYTES
    if sizes is not None:
        given = tuple(round(units.parse(part, units.BYTES)) for part in sizes.split(","))
    budget_s = units.parse(budget, units.SECONDS)
    place = device_here(device, num_ranks=1)
    config = MemoryRun(sizes_bytes=given, device=cast(DeviceKind, place), budget_s=budget_s)
    start_bench("memory", config.document(), run_dir=run_dir, as_json=as_json)
