"""`bench storage`: makes a data set in each format in a scratch folder, reads it in several ways, and removes it.

Rows: format (files, shards, lmdb, squashfs, ram), order (sequential, random), cache (cold, warm), num_workers,
num_samples and bytes of a round, time_s (median round) with time_low_s and time_high_s (fastest and slowest), repeats
(rounds), samples_per_s, bytes_per_s, io_bytes (size of a sequential read). Needs no torch.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from scalewright import units
from scalewright.data.copying import RAM_FOLDER, CopiedSet, copy_set, remove_copy
from scalewright.data.room import check_room, file_system_type, memory_left_bytes
from scalewright.data.shards import READ_BYTES
from scalewright.data.squashfs import SUFFIX as IMAGE_SUFFIX
from scalewright.data.squashfs import make_image, mounted
from scalewright.errors import EnvironmentFailedError
from scalewright.records.documents import read_document
from scalewright.records.host_load import load_now
from scalewright.records.loader import restore
from scalewright.records.measurements import Measurements, write_measurements
from scalewright.records.metric_names import EVENT_PART
from scalewright.records.types import ExitCode
from scalewright.run.metrics import MetricWriter
from scalewright.run.micro.disk import page_cache
from scalewright.run.micro.disk.scratch import scratch_folder
from scalewright.run.micro.disk.storage_readers import METADATA_OPS, Order, Readers, Share, elapsed_s
from scalewright.run.micro.disk.storage_set import make_sets
from scalewright.run.micro.time_budget import TimeBudget
from scalewright.run.probe import processor_name
from scalewright.run.provenance import versions
from scalewright.run.rank_context import RankContext
from scalewright.run.signals import StopRequestedError, StopSignals
from scalewright.run.watchdog import Watchdog
from scalewright.run.world import World
from scalewright.workload.storage_run import FORMATS, StorageFormat, StorageRun

ROUND_S = 0.25
"""A round reads as many samples as take about this long, if the set has that many."""
MAX_ROUNDS = 7
TRIAL_SAMPLES = 4
"""Samples of each process in the first trial of a round's length."""
MAX_GROWTH = 16.0
"""Largest growth of a round from one trial to the next."""
STILL_CACHED_FRAC = 0.1
"""If more than this share of a file stays in memory after it was dropped, it is not cold."""
NUM_CHECKED = 20
WARM_MEMORY_FRAC = 0.5
"""Share of the free memory: a larger set would evict itself from the cache while it is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPattern:
    """One combination of format, order, cache state and number of workers."""

    format: StorageFormat
    order: Order
    is_cold: bool
    num_workers: int
    read_bytes: int = READ_BYTES

    def __str__(self) -> str:
        cache = "cold" if self.is_cold else "warm"
        return f"{self.format}, {self.order}, {cache}, {self.num_workers} worker{'s' if self.num_workers > 1 else ''}"


@dataclass(slots=True, kw_only=True)
class _StorageBench:
    config: StorageRun
    metrics: MetricWriter
    stop: StopSignals
    watchdog: Watchdog
    readers: Readers
    budget: TimeBudget
    places: dict[StorageFormat, Path] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    num_parts: int = 0

    def report_part(self, text: str) -> None:
        """Report what comes next. A benchmark that a signal asks to stop stops here."""
        if self.stop.requested is not None:
            raise StopRequestedError
        self.num_parts += 1
        self.metrics.event(step=-1, name=EVENT_PART, detail=text, value=self.budget.used_frac)
        self.watchdog.step_done(step=self.num_parts, seconds_s=ROUND_S, loss=None, flop_per_s=0.0)


def run(rank: RankContext) -> ExitCode:
    """Measure on the first rank; the others have nothing to do."""
    directory, world = rank.directory, rank.world
    if not world.is_first:
        return ExitCode.YES
    config = restore(read_document(directory.config, StorageRun.KIND), StorageRun, where=str(directory.config))
    budget = TimeBudget(total_s=config.budget_s)
    try:
        with scratch_folder(Path(config.path)) as folder:
            _check_fits(config, folder)
            with Readers(config.num_workers[-1]) as readers:
                bench = _StorageBench(
                    config=config, metrics=rank.metrics, stop=rank.stop, watchdog=rank.watchdog, readers=readers,
                    budget=budget,
                )  # fmt: skip
                measurements = _measured(bench, folder, world)
    except StopRequestedError:
        return ExitCode.REQUEUE
    write_measurements(directory, measurements)
    return ExitCode.YES


def _check_fits(config: StorageRun, folder: Path) -> None:
    num_files = config.num_samples if "files" in config.disk_formats else 0
    num_files = max(num_files, config.num_metadata_files * config.num_workers[-1]) + 64
    check_room(folder, num_bytes=config.size_bytes * len(config.disk_formats), num_files=num_files)


def _measured(bench: _StorageBench, folder: Path, world: World) -> Measurements:
    config, load = bench.config, load_now()
    bench.places = make_sets(
        config, folder, report_part=bench.report_part, is_stopped=lambda: bench.stop.requested is not None
    )
    with _in_ram(bench), _in_image(bench, folder):
        can_drop = _can_drop(bench, folder)
        points = _points(bench, can_drop)
        for number, point in enumerate(points):
            # The remaining time, shared by the remaining points and a last part for metadata.
            _measure(bench, point, share_s=bench.budget.left_s / (len(points) - number + 2))
            if bench.budget.left_s <= 0 and number + 1 < len(points):
                _note_skipped(bench, len(points) - number - 1, len(points))
                break
    metadata = [_metadata(bench, folder, num) for num in config.num_workers] if config.num_metadata_files else []
    return Measurements(
        kind="storage",
        device={
            "type": "cpu", "name": processor_name(), "num_ranks": 1, "num_nodes": 1, "host": world.host,
            "num_cores": len(os.sched_getaffinity(0)), "file_system": file_system_type(folder), "path": config.path,
        },
        versions={"python": platform.python_version(), "kernel": platform.release()}
        | {name: version for name, version in versions().items() if name == "lmdb"},
        rows=sorted(bench.rows, key=_row_order),
        conditions={"load_before": load.load},
        summary=_summary(bench.rows, metadata, is_cold=can_drop),
        notes=[*bench.notes, *filter(None, [load.note()])],
    )  # fmt: skip


@contextlib.contextmanager
def _in_ram(bench: _StorageBench) -> Iterator[None]:
    """Inside the `with`, the files are also on a RAM disk, if it has room for them."""
    copied: CopiedSet | None = None
    if "ram" in bench.config.formats:
        bench.report_part("copying to RAM")
        try:
            copied = copy_set(bench.places["files"], RAM_FOLDER)
            bench.places["ram"] = copied.path
        except EnvironmentFailedError as error:
            bench.notes.append(f"ram is left out: {error}")
    try:
        yield
    finally:
        if copied is not None:
            remove_copy(copied)


@contextlib.contextmanager
def _in_image(bench: _StorageBench, folder: Path) -> Iterator[None]:
    """Inside the `with`, the files are also in a SquashFS image that is mounted, where that is permitted."""
    with contextlib.ExitStack() as stack:
        if "squashfs" in bench.config.formats:
            bench.report_part("making and mounting a SquashFS image")
            try:
                image = make_image(
                    bench.places["files"], folder / f"set{IMAGE_SUFFIX}", expected_bytes=bench.config.size_bytes
                )
                page_cache.flush([image])
                bench.places["squashfs"] = stack.enter_context(mounted(image, folder / "squashfs"))
            except EnvironmentFailedError as error:
                bench.notes.append(f"squashfs is left out: {error}")
        yield


def _can_drop(bench: _StorageBench, folder: Path) -> bool:
    """Whether the cache drops the files that were written: otherwise nothing can be read cold."""
    files = _files(folder)
    page_cache.drop(files)
    checked = {path: path.stat().st_size for path in files[:: max(1, len(files) // NUM_CHECKED)]}
    try:
        cached = sum(page_cache.cached_frac(path) * size for path, size in checked.items())
        cached_frac = cached / max(sum(checked.values()), 1)
    except OSError as error:
        bench.notes.append(f"cold may be warm: the file system does not report its cache ({error.strerror})")
        return True
    if cached_frac > STILL_CACHED_FRAC:
        kind = file_system_type(folder) or "this file system"
        bench.notes.append(
            f"warm only: {cached_frac:.0%} of the files stay in memory on {kind}: its cache cannot be dropped"
        )
        return False
    bench.notes.append("cold: not in this machine's page cache; metadata, servers and disks may still cache")
    return True


def _points(bench: _StorageBench, can_drop: bool) -> list[ReadPattern]:
    """All points, those with the most processes first: a short budget still measures what jobs do."""
    config = bench.config
    caches = (True, False) if can_drop else (False,)
    free = min(memory_left_bytes(), default=0)
    if can_drop and config.size_bytes > free * WARM_MEMORY_FRAC:
        bench.notes.append(f"cold only: the set does not stay in {units.format(free, units.BYTES)} of free memory")
        caches = (True,)
    points = [
        ReadPattern(format=name, order=order, is_cold=is_cold, num_workers=num)
        for num in reversed(config.num_workers)
        for name in config.formats
        if name in bench.places
        for is_cold in (caches if name != "ram" else (False,))
        for order in ("random", "sequential")
    ]
    if "shards" in config.formats:
        points += [
            ReadPattern(format="shards", order="sequential", is_cold=is_cold, num_workers=1, read_bytes=size)
            for size in config.read_sizes_bytes
            for is_cold in caches
            if size != READ_BYTES or 1 not in config.num_workers
        ]
    return points


def _note_skipped(bench: _StorageBench, num_skipped: int, num_points: int) -> None:
    bench.notes.append(f"the budget ended before {num_skipped} of {num_points} points: give a longer --budget for them")


def _measure(bench: _StorageBench, point: ReadPattern, *, share_s: float) -> None:
    """Read in rounds within the point's share of the time, and add one row."""
    bench.report_part(str(point))
    ends_s = time.monotonic() + share_s
    path, readers = bench.places[point.format], bench.readers
    files = _files(path)
    if point.format == "squashfs":
        files.append(path.with_name(f"set{IMAGE_SUFFIX}"))  # squashfuse reads it, and it has a cache of its own
    if not point.is_cold:
        page_cache.fill(files)

    def once(shares: list[Share]) -> tuple[float, int]:
        if point.is_cold:
            readers.close()
            page_cache.drop(files)
        readers.open(path, num=point.num_workers, read_bytes=point.read_bytes)
        spans = readers.read(shares)
        return elapsed_s(spans), sum(span.num_bytes for span in spans)

    shares, last = _sized_round(bench.config, point, once, ends_s=ends_s)
    rounds = [last]
    while len(rounds) < MAX_ROUNDS and time.monotonic() < ends_s:
        if bench.stop.requested is not None:
            raise StopRequestedError
        rounds.append(once(shares))
    readers.close()
    bench.rows.append(_row(point, sum(len(share.indices) for share in shares), rounds))


def _sized_round(
    config: StorageRun, point: ReadPattern, once: Callable[[list[Share]], tuple[float, int]], *, ends_s: float
) -> tuple[list[Share], tuple[float, int]]:
    """Samples that take about a round to read, and the result of the last trial. Trials grow step by step, because the
    kernel reads ahead and a short trial predicts a long one badly.
    """
    num_samples = min(TRIAL_SAMPLES * point.num_workers, config.num_samples)
    while True:
        shares = _shares(config, point, num_samples)
        time_s, num_bytes = once(shares)
        is_long = time_s > 0.5 * ROUND_S or num_samples >= config.num_samples
        if is_long or time.monotonic() > ends_s:
            return shares, (time_s, num_bytes)
        growth = min(max(ROUND_S / max(time_s, 1e-9), 2.0), MAX_GROWTH)
        num_samples = min(math.ceil(num_samples * growth), config.num_samples)


def _shares(config: StorageRun, point: ReadPattern, num_samples: int) -> list[Share]:
    """Samples of each process: consecutive ones, far from the other processes'; or random ones, none twice."""
    num = point.num_workers
    if point.order == "random":
        drawn = np.random.default_rng(config.seed).permutation(config.num_samples)[:num_samples]
        return [Share(order="random", indices=tuple(int(i) for i in drawn[w::num])) for w in range(num)]
    edges = [config.num_samples * w // num for w in range(num + 1)]
    length = math.ceil(num_samples / num)
    return [
        Share(order="sequential", indices=tuple(range(edges[w], min(edges[w] + length, edges[w + 1]))))
        for w in range(num)
    ]


def _row(point: ReadPattern, num_samples: int, rounds: list[tuple[float, int]]) -> dict[str, Any]:
    times_s = [time_s for time_s, _ in rounds]
    median_s, num_bytes = statistics.median(times_s), rounds[0][1]
    return {
        "format": point.format,
        "order": point.order,
        "cache": "cold" if point.is_cold else "warm",
        "num_workers": point.num_workers,
        "num_samples": num_samples,
        "bytes": num_bytes,
        "time_s": median_s,
        "time_low_s": min(times_s),
        "time_high_s": max(times_s),
        "repeats": len(rounds),
        "samples_per_s": num_samples / median_s,
        "bytes_per_s": num_bytes / median_s,
        "io_bytes": point.read_bytes,
    }


def _metadata(bench: _StorageBench, folder: Path, num_workers: int) -> dict[str, Any]:
    """Operations per second on empty files, each process in its own folder."""
    bench.report_part(f"metadata, {num_workers} worker{'s' if num_workers > 1 else ''}")
    folders = [folder / f"metadata-{worker}" for worker in range(num_workers)]
    for own in folders:
        own.mkdir(exist_ok=True)
    num_files = bench.config.num_metadata_files
    rates: dict[str, float] = {
        op: num_files * num_workers / max(elapsed_s(bench.readers.handle(folders, op, num_files)), 1e-9)
        for op in METADATA_OPS
    }
    return {"num_workers": num_workers, "num_files": num_files * num_workers, **rates}


def _summary(rows: list[dict[str, Any]], metadata: list[dict[str, Any]], *, is_cold: bool) -> dict[str, Any]:
    """Figures for the cost models: rates of large reads, small files and metadata operations, cold if possible."""
    cache = "cold" if is_cold else "warm"

    def best(key: str, matches: Callable[[dict[str, Any]], bool]) -> float | None:
        return max((float(row[key]) for row in rows if row["cache"] == cache and matches(row)), default=None)

    return {
        "cache": cache,
        "read_bytes_per_s": best("bytes_per_s", lambda r: r["format"] == "shards" and r["order"] == "sequential"),
        "files_per_s": best("samples_per_s", lambda r: r["format"] == "files" and r["order"] == "random"),
        "metadata_per_s": {op: max(row[op] for row in metadata) for op in METADATA_OPS} if metadata else {},
        "metadata": metadata,
    }


def _row_order(row: dict[str, Any]) -> tuple[Any, ...]:
    return (
        row["io_bytes"] != READ_BYTES, FORMATS.index(row["format"]), row["cache"], row["order"] == "sequential",
        row["num_workers"], row["io_bytes"],
    )  # fmt: skip


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]
