"""`bench checkpoint`: training state of some sizes saved and restored through the project's own checkpoints.

Rows: mode (sync, async), size_bytes (of all ranks), num_ranks, stall_s (longest rank, median save) with stall_low_s and
stall_high_s, total_s (request to name), bytes_per_s (size over total), restore_s, restore_bytes_per_s, restore_cache
(cold, warm), repeats. Here the stall of an asynchronous save is the whole copy to host memory. In training the copy
overlaps with the next forward and backward pass.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from scalewright import units
from scalewright.data.room import check_room, file_system_type
from scalewright.errors import EnvironmentFailedError, ScalewrightError
from scalewright.records.documents import read_document
from scalewright.records.loader import restore
from scalewright.records.measurements import Measurements, write_measurements
from scalewright.records.metric_names import EVENT_PART
from scalewright.records.run_directory import RunDirectory
from scalewright.records.types import ExitCode
from scalewright.run.checkpoint import Checkpointer
from scalewright.run.device import choose_device, join_group
from scalewright.run.metrics import MetricWriter
from scalewright.run.micro.conditions import ConditionsWatch, open_board
from scalewright.run.micro.disk import page_cache
from scalewright.run.micro.disk.checkpoint_state import check_memory, is_state, local, make_state
from scalewright.run.micro.disk.scratch import scratch_folder
from scalewright.run.micro.session import device_identity, software_versions
from scalewright.run.micro.time_budget import TimeBudget
from scalewright.run.rank_context import RankContext
from scalewright.run.signals import StopSignals
from scalewright.run.watchdog import Watchdog
from scalewright.run.world import World
from scalewright.workload.storage_run import SMALLEST_STATE_BYTES, CheckpointRun, SaveMode

KEPT = 1
FILES_PER_CHECKPOINT = 8
SAVE_AND_RESTORE = 2
"""Time still needed after a save, in saves: one more save, and the restore at the end."""
T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class _CheckpointBench:
    config: CheckpointRun
    world: World
    device: torch.device
    mesh: DeviceMesh
    metrics: MetricWriter
    stop: StopSignals
    watchdog: Watchdog
    budget: TimeBudget
    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    num_parts: int = 0

    def report_part(self, text: str) -> None:
        self.num_parts += 1
        self.metrics.event(step=-1, name=EVENT_PART, detail=text, value=self.budget.used_frac)

    def agreed(self, value: T) -> T:
        """The value of rank 0, so that all ranks do the same."""
        box: list[Any] = [value]
        dist.broadcast_object_list(box, src=0)
        of_first: T = box[0]
        return of_first

    def is_stopped(self) -> bool:
        return self.agreed(self.stop.requested is not None)

    def longest_s(self, time_s: float) -> float:
        """The longest time of all ranks: training continues when the last rank does."""
        times: list[Any] = [None] * self.world.world_size
        dist.all_gather_object(times, time_s)
        return float(max(times))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Save:
    stall_s: float
    total_s: float


def run(rank: RankContext) -> ExitCode:
    directory, world = rank.directory, rank.world
    config = restore(read_document(directory.config, CheckpointRun.KIND), CheckpointRun, where=str(directory.config))
    device = choose_device(config.device, world)
    check_memory(config, device, world)
    join_group(world, device)
    try:
        mesh = init_device_mesh(device.type, (world.world_size,))
        bench = _CheckpointBench(
            config=config, world=world, device=device, mesh=mesh, metrics=rank.metrics, stop=rank.stop,
            watchdog=rank.watchdog, budget=TimeBudget(total_s=config.budget_s),
        )  # fmt: skip
        with _shared_scratch(bench) as folder, ConditionsWatch(open_board(device)) as watch:
            is_whole = _measure_all(bench, folder)
            file_system = file_system_type(folder)
        if not is_whole:
            return ExitCode.REQUEUE
    finally:
        with contextlib.suppress(RuntimeError):  # peers may have left
            dist.destroy_process_group()
    if world.is_first:
        measurements = Measurements(
            kind="checkpoint",
            device=device_identity(device, world) | {"file_system": file_system, "path": config.path},
            versions=software_versions(device),
            rows=bench.rows,
            conditions=watch.conditions().document(),
            summary=_summary(bench.rows),
            fits=_fits(bench.rows),
            notes=[*bench.notes, *watch.notes()],
        )
        write_measurements(directory, measurements)
    return ExitCode.YES


@contextlib.contextmanager
def _shared_scratch(bench: _CheckpointBench) -> Iterator[Path]:
    """A folder that rank 0 creates and removes. An error of rank 0 is raised on all ranks."""
    with contextlib.ExitStack() as stack:
        outcome: Path | ScalewrightError | None = None
        if bench.world.is_first:
            try:
                outcome = stack.enter_context(scratch_folder(Path(bench.config.path)))
                # One whole checkpoint and one being written: the old one is deleted when the new one has its name.
                largest = bench.config.sizes_bytes[-1]
                num_files = (bench.world.world_size + FILES_PER_CHECKPOINT) * (KEPT + 1)
                check_room(outcome, num_bytes=(KEPT + 1) * largest, num_files=num_files)
            except ScalewrightError as error:
                outcome = error
        folder = bench.agreed(outcome)
        if isinstance(folder, ScalewrightError):
            raise folder
        assert folder is not None
        if not folder.is_dir():
            raise EnvironmentFailedError(
                f"{folder}: rank 0 made it, and rank {bench.world.rank} on {bench.world.host} does not see it; "
                "give a --path that all nodes share"
            )
        yield folder
        dist.barrier()  # no rank reads any more; after an error no rank waits, because that would delay the launcher


def _measure_all(bench: _CheckpointBench, folder: Path) -> bool:
    """Measure every size in every mode, smallest first; false if a signal asked the run to stop."""
    config = bench.config
    _warm_up(bench, folder)
    expected_s = 0.0
    for number, size in enumerate(config.sizes_bytes):
        if bench.agreed(number > 0 and expected_s > bench.budget.left_s):
            bench.notes.append(
                f"the budget ended before {units.format(size, units.BYTES)}: give a longer --budget for larger states"
            )
            break
        begun_s = time.monotonic()
        if not _measure_size(bench, folder / f"size-{number}", size, share_s=_share_s(bench, number)):
            return False
        growth = config.sizes_bytes[number + 1] / size if number + 1 < len(config.sizes_bytes) else 1.0
        repeated_s = sum((row["repeats"] - 1) * row["total_s"] for row in bench.rows[-len(config.modes) :])
        expected_s = (time.monotonic() - begun_s - repeated_s) * growth
    return True


def _share_s(bench: _CheckpointBench, number: int) -> float:
    """Share of the remaining time for a size, by the root of its bytes, so that small sizes are repeated too."""
    remaining = bench.config.sizes_bytes[number:]
    return bench.budget.left_s * math.sqrt(remaining[0]) / math.fsum(math.sqrt(size) for size in remaining)


def _warm_up(bench: _CheckpointBench, folder: Path) -> None:
    """Save once without timing: the first save loads code and starts threads, which is not a cost of storage."""
    bench.report_part("warming up")
    tensors = make_state(SMALLEST_STATE_BYTES, bench.mesh, bench.device)
    with _saver(folder / "warm-up") as saver:
        saver.save_async(1, tensors, {})
        saver.finish()
        saver.load_newest(tensors)


def _measure_size(bench: _CheckpointBench, folder: Path, size_bytes: int, *, share_s: float) -> bool:
    tensors = make_state(size_bytes, bench.mesh, bench.device)
    actual_bytes = bench.world.world_size * sum(local(t).nbytes for t in tensors.values())
    modes, begun_s = bench.config.modes, time.monotonic()
    for number, mode in enumerate(modes, start=1):
        bench.report_part(f"{mode}, {units.format(actual_bytes, units.BYTES)}")
        with _saver(folder / mode) as saver:
            if mode == "async":
                saver.make_room(tensors)  # once per training, before its first step
            saves = _saves(bench, saver, tensors, mode, ends_s=begun_s + share_s * number / len(modes))
            if saves is None:
                return False
            restore_s, is_cold = _restored(bench, saver, folder / mode, tensors)
        if bench.world.is_first:
            shutil.rmtree(folder / mode, ignore_errors=True)  # room was checked for two checkpoints at a time
        bench.rows.append(_row(mode, actual_bytes, bench.world.world_size, saves, restore_s, is_cold))
    return True


@contextlib.contextmanager
def _saver(folder: Path) -> Iterator[Checkpointer]:
    saver = Checkpointer(
        RunDirectory(folder), keep=KEPT, layout="bench", next_step="free space, give another --path or smaller --sizes"
    )
    try:
        yield saver
    finally:
        saver.close()


def _saves(
    bench: _CheckpointBench, saver: Checkpointer, tensors: dict[str, Tensor], mode: SaveMode, *, ends_s: float
) -> list[_Save] | None:
    saves: list[_Save] = []
    while len(saves) < bench.config.repeats:
        if bench.is_stopped():
            return None
        is_over = bool(saves) and time.monotonic() + SAVE_AND_RESTORE * saves[-1].total_s > ends_s
        if bench.agreed(is_over):
            break
        saves.append(_timed_save(bench, saver, tensors, mode, step=len(saves) + 1))
        bench.watchdog.step_done(step=bench.num_parts, seconds_s=saves[-1].total_s, loss=None, flop_per_s=0.0)
    return saves


def _timed_save(
    bench: _CheckpointBench, saver: Checkpointer, tensors: dict[str, Tensor], mode: SaveMode, *, step: int
) -> _Save:
    _synchronise(bench)
    begun_s = time.perf_counter()
    if mode == "sync":
        saver.save(step, tensors, {})
        stall_s = time.perf_counter() - begun_s
    else:
        saver.save_async(step, tensors, {})
        saver.before_update()
        stall_s = time.perf_counter() - begun_s
        saver.finish()
    return _Save(stall_s=bench.longest_s(stall_s), total_s=bench.longest_s(time.perf_counter() - begun_s))


def _restored(
    bench: _CheckpointBench, saver: Checkpointer, folder: Path, tensors: dict[str, Tensor]
) -> tuple[float, bool]:
    """Time to restore with verification, and whether it came from disk. Raises if the state is not the saved one."""
    is_cold = _drop_from_cache(bench, folder)
    for tensor in tensors.values():
        local(tensor).zero_()
    _synchronise(bench)
    begun_s = time.perf_counter()
    loaded = saver.load_newest(tensors)
    if bench.device.type == "cuda":
        torch.cuda.synchronize()
    restore_s = bench.longest_s(time.perf_counter() - begun_s)
    wrong = [name for name, tensor in tensors.items() if not is_state(name, tensor, bench.world.rank)]
    wrong_of_ranks: list[Any] = [None] * bench.world.world_size
    dist.all_gather_object(wrong_of_ranks, wrong)
    if loaded is None or any(wrong_of_ranks):
        raise EnvironmentFailedError(
            f"{folder}: restored state is not the saved one ({next(filter(None, wrong_of_ranks), ['nothing'])[0]}): "
            "this storage loses data; do not train on it"
        )
    return restore_s, is_cold


def _drop_from_cache(bench: _CheckpointBench, folder: Path) -> bool:
    """Drop the checkpoint from the page cache of every node. Returns whether that worked."""
    files = [path for path in folder.rglob("*.distcp") if path.is_file()]
    if bench.world.is_first_on_node:
        page_cache.flush(files)
        page_cache.drop(files)
    dist.barrier()
    try:
        cached = max((page_cache.cached_frac(path) for path in files), default=1.0)
    except OSError:
        cached = 0.0
    return bench.longest_s(cached) < 0.1


def _synchronise(bench: _CheckpointBench) -> None:
    if bench.device.type == "cuda":
        torch.cuda.synchronize()
    dist.barrier()


def _row(
    mode: SaveMode, size_bytes: int, num_ranks: int, saves: list[_Save], restore_s: float, is_cold: bool
) -> dict[str, Any]:
    stalls, totals = [save.stall_s for save in saves], [save.total_s for save in saves]
    total_s = statistics.median(totals)
    return {
        "mode": mode,
        "size_bytes": size_bytes,
        "num_ranks": num_ranks,
        "stall_s": statistics.median(stalls),
        "stall_low_s": min(stalls),
        "stall_high_s": max(stalls),
        "total_s": total_s,
        "total_low_s": min(totals),
        "total_high_s": max(totals),
        "bytes_per_s": size_bytes / total_s,
        "restore_s": restore_s,
        "restore_bytes_per_s": size_bytes / restore_s,
        "restore_cache": "cold" if is_cold else "warm",
        "repeats": len(saves),
    }


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Figures of the largest size that was measured."""
    largest = max(row["size_bytes"] for row in rows)
    at = {row["mode"]: row for row in rows if row["size_bytes"] == largest}
    any_row = next(iter(at.values()))
    both = at["sync"]["stall_s"] / at["async"]["stall_s"] if len(at) == 2 else None
    return {
        "size_bytes": largest,
        "write_bytes_per_s": max(row["bytes_per_s"] for row in at.values()),
        "restore_bytes_per_s": any_row["restore_bytes_per_s"],
        "sync_over_async_stall": both,
    }


def _fits(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """total = latency + size / bandwidth for each mode, by least squares of relative errors; from two sizes on."""
    fits = []
    for mode in dict.fromkeys(row["mode"] for row in rows):
        sizes = np.array([row["size_bytes"] for row in rows if row["mode"] == mode], dtype=np.float64)
        times = np.array([row["total_s"] for row in rows if row["mode"] == mode])
        if len(sizes) < 2:
            continue
        latency_s, s_per_byte = np.linalg.lstsq(np.stack([1 / times, sizes / times], 1), np.ones(len(sizes)))[0]
        if (
            latency_s < 0 or s_per_byte <= 0
        ):  # no visible latency, or nothing but latency: the largest size is the best estimate
            latency_s, s_per_byte = 0.0, times[-1] / sizes[-1]
        fits.append({"mode": mode, "latency_s": float(latency_s), "bytes_per_s": float(1 / s_per_byte)})
    return fits
