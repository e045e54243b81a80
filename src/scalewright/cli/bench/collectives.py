"""`scalewright bench collectives`: collectives over sizes, in the columns of nccl-tests."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, cast

import typer

from scalewright.cli.bench.start import DeviceName, RunFolder, start_bench
from scalewright.cli.options import AsJson
from scalewright.errors import ConfigError

DEFAULT_CPU_RANKS = 2
DEFAULT_FACTOR = 2.0
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
    from scalewright import units
    from scalewright.launch.ranks.as_rank import num_ranks_here
    from scalewright.records.measurements import read_measurements
    from scalewright.records.run_directory import RunDirectory, new_run_id
    from scalewright.records.types import ExitCode
    from scalewright.workload.collective import OPS, parse_op
    from scalewright.workload.collectives_run import CollectivesRun, ElementType
    from scalewright.workload.language_run import DeviceKind

    if factor is not None and step is not None:
        raise ConfigError(f"--factor {factor:g} and --step {step} both say how sizes grow: give one of them")
    step_bytes = 0 if step is None else round(units.parse(step, units.BYTES))
    if step is not None and step_bytes < 1:
        raise ConfigError(f"--step {step}: sizes must grow, so give a step of 1 B or more")
    config = CollectivesRun(
        ops=OPS if ops.strip() == "all" else tuple(parse_op(name) for name in ops.split(",")),
        dtype=cast(ElementType, dtype),
        min_bytes=round(units.parse(min_bytes, units.BYTES)),
        max_bytes=round(units.parse(max_bytes, units.BYTES)),
        factor=DEFAULT_FACTOR if factor is None else factor,
        step_bytes=step_bytes,
        warmup=warmup,
        iterations=iters,
        budget_s=units.parse(budget, units.SECONDS),
        in_place=in_place,
        root=root,
        device=cast(DeviceKind, device),
    )
    num_ranks = num_ranks_here(os.environ, wanted=ranks, has_run_dir=run_dir is not None) or _num_ranks(ranks, device)
    config.check_ranks(num_ranks)
    path = run_dir or Path("runs") / new_run_id("collectives")
    start_bench("collectives", config.document(), run_dir=path, as_json=as_json, num_ranks=num_ranks)
    if read_measurements(RunDirectory(path)).summary["num_wrong"]:
        raise typer.Exit(ExitCode.NO)


def _num_ranks(wanted: int | None, device: str) -> int:
    """As many as asked for, where there are devices for them; by default one per device."""
    from scalewright.here.devices import device_here, visible_gpus
    from scalewright.launch.ranks.allocation import default_num_ranks, is_inside

    if wanted is not None and wanted < 1:
        raise ConfigError(f"--ranks {wanted} starts nothing: collectives need 2 or more")
    if is_inside(os.environ):
        return default_num_ranks(os.environ) if wanted is None else wanted
    kind = device_here(device, num_ranks=wanted or 1)
    if wanted is not None:
        return wanted
    return len(visible_gpus()) if kind == "cuda" else DEFAULT_CPU_RANKS
