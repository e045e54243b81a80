"""`bench collectives` as every rank runs it: operations of the back end, their times, and whether results are right.

Rows (one per operation and size): op, dtype, redop, root, num_ranks, num_nodes, size_bytes, count, is_in_place, time_s
with time_low_s and time_high_s, repeats (rounds), iterations (calls in all rounds), alg_bytes_per_s, bus_bytes_per_s,
num_wrong, backend. Size, count and both bandwidths are defined as in nccl-tests: see `workload.collective`.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.distributed as dist

from scalewright.catalog.verified import untested_paths
from scalewright.errors import ConfigError
from scalewright.records.documents import read_document
from scalewright.records.loader import restore
from scalewright.records.measurements import Measurements, write_measurements
from scalewright.records.metric_names import EVENT_PART
from scalewright.records.run_directory import RunDirectory
from scalewright.records.types import ExitCode
from scalewright.run.device import choose_device, join_group
from scalewright.run.micro.collective_ops import Operations, cells_of
from scalewright.run.micro.collective_timing import Rounds, SampledCell
from scalewright.run.micro.conditions import ConditionsWatch, open_board
from scalewright.run.micro.session import device_identity, software_versions
from scalewright.run.micro.timing import timing_of
from scalewright.run.preflight.measure import RankLocation, log_library, transport_used
from scalewright.run.rank_context import RankContext
from scalewright.run.world import World
from scalewright.workload.collective import REDUCING, SPLIT, CollectiveOp, bandwidths_bytes_per_s
from scalewright.workload.collectives_run import KIND, CollectivesRun

ALWAYS_IN_PLACE: tuple[CollectiveOp, ...] = ("all-reduce", "broadcast")
"""PyTorch's calls for these take one buffer."""


def run(rank: RankContext) -> ExitCode:
    """Measure on all ranks, and write the measurements on rank 0."""
    directory, world = rank.directory, rank.world
    config = restore(read_document(directory.config, KIND), CollectivesRun, where=str(directory.config))
    config.check_ranks(world.world_size)
    device = choose_device(config.device, world)
    _check_memory(config, device, world)
    if device.type == "cuda":
        log_library(directory, world)
    join_group(world, device)
    try:
        measurements = _measured(config, rank, device)
    finally:
        with contextlib.suppress(RuntimeError):  # peers may have left
            dist.destroy_process_group()
    if measurements is None:
        return ExitCode.REQUEUE
    if world.is_first:
        write_measurements(directory, measurements)
    return ExitCode.YES


def _measured(config: CollectivesRun, rank: RankContext, device: torch.device) -> Measurements | None:
    """The measurements, the same on every rank; None if a signal asked the run to stop."""
    world = rank.world
    operations = Operations(config, device)
    lacking = {op: why for op in config.ops if (why := operations.lacks(op))}
    columns = [cells_of(config, op, world.world_size) for op in config.ops if op not in lacking]
    backend = _backend(device)
    notes = [f"{backend} has no {op} for {config.dtype}, left out: {why}" for op, why in lacking.items()]
    notes += [f"untested: {name}" for name, _ in untested_paths() if f"collectives over {backend}" in name.lower()]

    def report_part(part: str, share: float) -> None:
        rank.metrics.event(step=-1, name=EVENT_PART, detail=part, value=share)

    rounds = Rounds(
        operations, config, device, watchdog=rank.watchdog, is_stopped=lambda: rank.stop.requested is not None,
        report_part=report_part,
    )  # fmt: skip
    with ConditionsWatch(open_board(device)) as watch:
        sampled = rounds.sample(rounds.probe(columns))
        if rounds.stopped():
            return None
        if not sampled:
            reasons = [*notes, *rounds.notes] or ["no size has an element for every rank"]
            raise ConfigError(
                f"nothing from {config.min_bytes} to {config.max_bytes} bytes could be measured: {'; '.join(reasons)}; "
                "give other operations, larger sizes or more time"
            )
    rows = [_row(one, config, world, device) for one in sampled]
    return Measurements(
        kind="collectives",
        device=device_identity(device, world) | {"num_ranks_per_node": world.local_world_size},
        versions=_versions(rank.directory, world, device),
        conditions=watch.conditions().document(),
        rows=rows,
        summary=_summary(rows),
        notes=[*notes, *rounds.notes, *watch.notes(), *_wrong(rows)],
    )


def _row(sampled: SampledCell, config: CollectivesRun, world: World, device: torch.device) -> dict[str, Any]:
    cell, timing = sampled.probed.cell, timing_of(sampled.samples_s, calls_per_repeat=sampled.num_calls)
    algorithm, bus = bandwidths_bytes_per_s(
        cell.op, size_bytes=cell.size_bytes, time_s=timing.time_s, num_ranks=world.world_size
    )
    return {
        "op": cell.op,
        "dtype": config.dtype,
        "redop": "sum" if cell.op in REDUCING else "none",
        "root": config.root if cell.op == "broadcast" else -1,
        "num_ranks": world.world_size,
        "num_nodes": world.num_nodes,
        "size_bytes": cell.size_bytes,
        "count": cell.count,
        "is_in_place": cell.op in ALWAYS_IN_PLACE or (config.in_place and cell.op in SPLIT[:2]),
        **timing.row(),
        "iterations": timing.repeats * sampled.num_calls,
        "alg_bytes_per_s": algorithm,
        "bus_bytes_per_s": bus,
        "num_wrong": sampled.probed.num_wrong,
        "backend": _backend(device),
    }


def _backend(device: torch.device) -> str:
    if device.type != "cuda":
        return "gloo"
    return "rccl" if torch.version.hip is not None else "nccl"


def _versions(directory: RunDirectory, world: World, device: torch.device) -> dict[str, str]:
    """Version of the library, and the routes of its messages."""
    location = RankLocation(device=device, gpu=None, num_visible=0)
    transport = transport_used(directory, world, location)
    routes = ", ".join(dict.fromkeys(transport.routes)) or "memory of the node"
    return software_versions(device) | {"backend": f"{transport.library} {transport.version}", "interface": routes}


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean bus bandwidth, as nccl-tests prints below its table, and the best of each operation."""
    best: dict[str, float] = {}
    for row in rows:
        best[row["op"]] = max(best.get(row["op"], 0.0), row["bus_bytes_per_s"])
    mean = sum(row["bus_bytes_per_s"] for row in rows) / len(rows) if rows else None
    return {
        "mean_bus_bytes_per_s": mean,
        "best_bus_bytes_per_s": best,
        "num_wrong": sum(row["num_wrong"] for row in rows),
    }


def _wrong(rows: list[dict[str, Any]]) -> list[str]:
    wrong = [row for row in rows if row["num_wrong"]]
    if not wrong:
        return []
    ops = ", ".join(dict.fromkeys(row["op"] for row in wrong))
    return [f"results were wrong in {sum(row['num_wrong'] for row in wrong)} elements ({ops}): do not train over this"]


def _check_memory(config: CollectivesRun, device: torch.device, world: World) -> None:
    """Called before anything is allocated: a process that the kernel kills for lack of memory cannot report why."""
    if device.type == "cuda":
        config.check_memory(float(torch.cuda.mem_get_info(device)[0]), num_sharing=1)
        return
    import psutil

    config.check_memory(float(psutil.virtual_memory().available), num_sharing=world.local_world_size)
