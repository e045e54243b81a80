"""`scalewright bench dispatch`: what starting a kernel costs the host."""

from __future__ import annotations

from typing import Annotated, cast

import typer

from scalewright.cli.bench.start import DeviceName, RunFolder, start_bench
from scalewright.cli.options import AsJson


def run(
    compile_too: Annotated[bool, typer.Option("--compile/--no-compile", help="Also torch.compile.")] = True,
    device: DeviceName = "auto",
    budget: Annotated[str, typer.Option(help="Time for measuring and compiling; start-up comes on top.")] = "30 s",
    run_dir: RunFolder = None,
    as_json: AsJson = False,
) -> None:
    """Time the launch of tiny kernels: eager, compiled, and from a CUDA graph. Exit 3: throttled twice."""
    from scalewright import units
    from scalewright.here.devices import device_here
    from scalewright.workload.language_run import DeviceKind
    from scalewright.workload.micro_run import DispatchRun

    budget_s = units.parse(budget, units.SECONDS)
    place = device_here(device, num_ranks=1)
    config = DispatchRun(
        compiles=compile_too, budgets_compiling=True, device=cast(DeviceKind, place), budget_s=budget_s
    )
    start_bench("dispatch", config.document(), run_dir=run_dir, as_json=as_json)
