"""Write a data set in any format from any source. Many processes read, one writes; the set is whole or not there."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol, cast, get_args

import numpy as np

from scalewright.data.folder import FolderSamples, FolderWriter
from scalewright.data.lmdb_store import LmdbWriter, lmdb_module
from scalewright.data.opening import open_samples
from scalewright.data.room import check_room
from scalewright.data.samples import (
    Description,
    Format,
    Progress,
    Sample,
    Samples,
    damaged,
    image_problem,
    no_progress,
    read_description,
    write_description,
)
from scalewright.data.shards import ShardWriter
from scalewright.data.sizing import plan_shards
from scalewright.data.whole import held_for_making, made_whole
from scalewright.errors import ConfigError

CHUNK = 16
"""Samples that a process reads at a time."""
AHEAD = 4
"""Chunks per process that may wait to be written."""
CONVERSION_SEED = 0


class SampleSource(Protocol):
    """Anything with samples by number: a data set, or a generator of one."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> Sample: ...


class Writer(Protocol):
    def add(self, index: int, content: bytes, label: int) -> None: ...

    def finish(self) -> dict[str, int]: ...

    def close(self) -> None: ...


def convert(
    source: Path,
    target: Path,
    *,
    to: Format,
    num_consumers: int = 1,
    num_workers: int = 1,
    on_progress: Progress = no_progress,
) -> Path:
    """The data set at `source` in another format at `target`, in an order shuffled once.

    Class folders are sorted by class, and shards of one class each would train badly. A target that was made from this
    source is kept; any other is refused.
    """
    samples = open_samples(source)
    total_bytes = _data_bytes(samples)
    order = np.random.default_rng(CONVERSION_SEED).permutation(len(samples))
    origin = {
        "converted_from": str(source.resolve()),
        "num_samples": len(samples),
        "data_bytes": total_bytes,
        "seed": CONVERSION_SEED,
    }
    plan = plan_shards(data_bytes=total_bytes, num_samples=len(samples), num_consumers=num_consumers)
    return write_samples(
        samples,
        target,
        to=to,
        order=[int(index) for index in order],
        classes=_class_names(samples),
        origin=origin,
        shard_bytes=plan.shard_bytes,
        expected_bytes=total_bytes,
        num_workers=num_workers,
        on_progress=on_progress,
    )


def write_samples(
    source: SampleSource,
    target: Path,
    *,
    to: Format,
    order: list[int],
    classes: tuple[str, ...],
    origin: dict[str, Any],
    shard_bytes: int,
    expected_bytes: int,
    num_workers: int = 1,
    on_progress: Progress = no_progress,
) -> Path:
    """Write samples of `source`, in that order, as a data set. An existing one of the same origin is kept."""
    if to not in get_args(Format):
        raise ConfigError(f"format {to!r} is not known: choose {', '.join(get_args(Format))}")
    if num_workers < 1:
        raise ConfigError(f"{num_workers} workers: writing a data set needs 1 or more")
    if to == "lmdb":
        lmdb_module()  # a missing extra is reported before an hour of work
    origin = origin | ({"shard_bytes": shard_bytes} if to == "shards" else {})
    with held_for_making(target):
        if _is_made(target, to, origin):
            return target
        check_room(target, num_bytes=expected_bytes, num_files=len(order) + len(classes) if to == "folder" else 16)
        with made_whole(target) as hidden:
            writer = _writer(hidden, to, classes, shard_bytes)
            try:
                num_bytes = _write_all(source, writer, order, num_workers, on_progress)
                files = writer.finish()
            finally:
                writer.close()
            description = Description(
                format=to,
                num_samples=len(order),
                num_classes=len(classes),
                data_bytes=num_bytes,
                classes=classes,
                files=files,
                origin=origin,
            )
            write_description(hidden, description)
    return target


def _writer(folder: Path, to: Format, classes: tuple[str, ...], shard_bytes: int) -> Writer:
    if to == "folder":
        return FolderWriter(folder, classes)
    return ShardWriter(folder, shard_bytes) if to == "shards" else LmdbWriter(folder)


def _is_made(target: Path, to: Format, origin: dict[str, Any]) -> bool:
    if not target.exists():
        return False
    existing = read_description(target) if target.is_dir() else None
    if existing is None:
        raise ConfigError(f"{target}: exists and is not a data set that we made; choose another place")
    if existing.format != to or existing.origin != origin:
        raise ConfigError(
            f"{target}: holds another data set ({existing.format}, {existing.origin}); choose another place"
        )
    return True


def _write_all(source: SampleSource, writer: Writer, order: list[int], num_workers: int, on_progress: Progress) -> int:
    total_bytes = 0
    on_progress(0, len(order))
    for number, (index, (content, label)) in enumerate(
        zip(order, _read_all(source, order, num_workers), strict=True), start=1
    ):
        problem = image_problem(content)
        if problem is not None:
            raise damaged(cast(Samples, source), index, problem)
        writer.add(number - 1, content, label)
        total_bytes += len(content)
        on_progress(number, len(order))
    return total_bytes


def _read_all(source: SampleSource, order: list[int], num_workers: int) -> Iterator[Sample]:
    """Samples in that order; with several workers, processes read some chunks ahead."""
    if num_workers == 1:
        yield from (source.read(index) for index in order)
        return
    # Not forked: the caller may have threads (torch has), and a lock held by one at that moment stays locked forever.
    pool = ProcessPoolExecutor(num_workers, mp_context=get_context("spawn"), initializer=_begin, initargs=(source,))
    try:
        waiting: deque[Future[list[Sample]]] = deque()
        for first in range(0, len(order), CHUNK):
            waiting.append(pool.submit(_read_chunk, order[first : first + CHUNK]))
            if len(waiting) >= AHEAD * num_workers:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_source: list[SampleSource] = []
"""The source of a process in the pool: sent once, not with every chunk."""


def _begin(source: SampleSource) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends the pool
    _source[:] = [source]


def _read_chunk(indices: list[int]) -> list[Sample]:
    return [_source[0].read(index) for index in indices]


def _class_names(samples: Samples) -> tuple[str, ...]:
    if isinstance(samples, FolderSamples):
        return samples.classes
    description = read_description(samples.path)
    if description is not None:
        return description.classes
    return tuple(f"class-{number:04d}" for number in range(samples.num_classes))


def _data_bytes(samples: Samples) -> int:
    """Size of all samples: from the description, else from the sizes of the files."""
    description = read_description(samples.path)
    if description is not None:
        return description.data_bytes
    if isinstance(samples, FolderSamples):
        return sum(samples.file(index).stat().st_size for index in range(len(samples)))
    return sum(os.stat(file).st_size for file in samples.path.glob("*.tar"))  # noqa: PTH116
