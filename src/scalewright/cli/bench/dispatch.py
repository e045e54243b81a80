"""`scalewright bench dispatch`: what starting a kernel costs the host."""

from __future__ import annotations

from typing import Annotated

import typer

from scalewright.cli.bench.start import run_benchmark
from scalewright.cli.options import AsJson, DeviceName, RunFolder


def run(
    compile_too: Annotated[bool, typer.Option("--compile/--no-compile", help="Also torch.compile.")] = True,
    device: DeviceName = "auto",
    budget: Annotated[str, typer.Option(help="Time for measuring and compiling; start-up comes on top.")] = "30 s",
    run_dir: RunFolder = None,
    as_json: AsJson = False,
) -> None:
    """Time the launch of tiny kernels: eager, compiled, and from a CUDA graph. Exit 3: throttled twice."""
    run_benchmark("dispatch", run_dir=run_dir, as_json=as_json, compile=compile_too, device=device, budget=budget)
