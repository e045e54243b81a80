"""`scalewright bench collectives`: collectives over sizes, in the columns of nccl-tests."""

from __future__ import annotations

from typing import Annotated

import typer

from scalewright.cli.bench.start import run_benchmark
from scalewright.cli.options import AsJson, DeviceName, RunFolder

OP_HELP = "all, or some of all-reduce, all-gather, reduce-scatter, all-to-all, broadcast, send-recv, with commas."
OpNames = Annotated[str, typer.Option(help=OP_HELP)]
ElementName = Annotated[str, typer.Option(help="fp32, fp64, fp16, bf16, int32 or uint8.")]
RankCount = Annotated[int | None, typer.Option(help="Processes; default: one per GPU, 2 on a CPU.")]


def run(
    ops: OpNames = "all",
    dtype: ElementName = "fp32",
    ranks: RankCount = None,
    min_bytes: Annotated[str, typer.Option(help="Smallest size.")] = "1 KiB",
    max_bytes: Annotated[str, typer.Option(help="Largest size.")] = "64 MiB",
    factor: Annotated[float | None, typer.Option(help="From one size to the next; default: 2.")] = None,
    step: Annotated[str | None, typer.Option(help="Size from one to the next, instead of a factor.")] = None,
    warmup: Annotated[int, typer.Option(help="Calls before each timed loop that do not count.")] = 1,
    iters: Annotated[int, typer.Option(help="Timed calls per size; 0: what the budget allows.")] = 0,
    budget: Annotated[str, typer.Option(help="Time for all of it, unless --iters is given.")] = "60 s",
    in_place: Annotated[bool, typer.Option("--in-place", help="Gather and scatter inside one buffer.")] = False,
    root: Annotated[int, typer.Option(help="Rank that broadcasts.")] = 0,
    device: DeviceName = "auto",
    run_dir: RunFolder = None,
    as_json: AsJson = False,
) -> None:
    """Time collectives over NCCL, RCCL or Gloo and fit their latency and bandwidth. Exit 1: a result was wrong."""
    from scalewright.records.measurements import read_measurements
    from scalewright.records.types import ExitCode

    execution = run_benchmark(
        "collectives", run_dir=run_dir, as_json=as_json,
        ops=ops, dtype=dtype, ranks=ranks, min_bytes=min_bytes, max_bytes=max_bytes, factor=factor, step=step,
        warmup=warmup, iters=iters, budget=budget, in_place=in_place, root=root, device=device,
    )  # fmt: skip
    if read_measurements(execution.directory).summary["num_wrong"]:
        raise typer.Exit(ExitCode.NO)
