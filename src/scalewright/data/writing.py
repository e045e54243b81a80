"""Write a data set in any format, from any source of samples: many processes read, one writes, whole or not at all."""

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
    read_description,
    unseen,
    write_description,
)
from scalewright.data.shards import ShardWriter
from scalewright.data.sizing import plan_shards
from scalewright.data.whole import held_for_making, made_whole
from scalewright.errors import ConfigError

CHUNK = 16
"""Samples that a process reads for one answer."""
AHEAD = 4
"""Answers per process that wait to be written."""
CONVERSION_SEED = 0


class Source(Protocol):
    """Where samples come from: a data set, or a generator of one."""

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
    on_progress: Progress = unseen,
) -> Path:
    """The data set at `source` in another format at `target`, in an order shuffled once.

    Class folders come sorted by class, and a shard of one class would teach nothing but that class. A target that was
    made from this source is kept; any other is refused.
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
    source: Source,
    target: Path,
    *,
    to: Format,
    order: list[int],
    classes: tuple[str, ...],
    origin: dict[str, Any],
    shard_bytes: int,
    expected_bytes: int,
    num_workers: int = 1,
    on_progress: Progress = unseen,
) -> Path:
    """Write samples of `source`, in that order, as a data set; one of the same origin that is there is kept."""
    if to not in get_args(Format):
        raise ConfigError(f"format {to!r} is not known: choose {', '.join(get_args(Format))}")
    if num_workers < 1:
        raise ConfigError(f"{num_workers} workers: writing a data set needs 1 or more")
    if to == "lmdb":
        lmdb_module()  # a missing extra is said before an hour of work
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
    found = read_description(target) if target.is_dir() else None
    if found is None:
        raise ConfigError(f"{target}: is there and is no data set that we made; choose another place")
    if found.format != to or found.origin != origin:
        raise ConfigError(f"{target}: holds another data set ({found.format}, {found.origin}); choose another place")
    return True


def _write_all(source: Source, writer: Writer, order: list[int], num_workers: int, on_progress: Progress) -> int:
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


def _read_all(source: Source, order: list[int], num_workers: int) -> Iterator[Sample]:
    """Samples in that order; with several workers, processes read a few answers ahead."""
    if num_workers == 1:
        yield from (source.read(index) for index in order)
        return
    # Not forked: the caller may have threads (torch has), and a lock held by one at that moment stays locked forever.
    pool = ProcessPoolExecutor(num_workers, mp_context=get_context("spawn"), initializer=_begin, initargs=(source,))
    try:
        waiting: deque[Future[list[Sample]]] = deque()
        for first in range(0, len(order), CHUNK):
            waiting.append(pool.submit(_read_some, order[first : first + CHUNK]))
            if len(waiting) >= AHEAD * num_workers:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_source: list[Source] = []
"""What a process of the pool reads from; sent once, not with every question."""


def _begin(source: Source) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends the pool
    _source[:] = [source]


def _read_some(indices: list[int]) -> list[Sample]:
    return [_source[0].read(index) for index in indices]


def _class_names(samples: Samples) -> tuple[str, ...]:
    if isinstance(samples, FolderSamples):
        return samples.classes
    description = read_description(samples.path)
    if description is not None:
        return description.classes
    return tuple(f"class-{number:04d}" for number in range(samples.num_classes))


def _data_bytes(samples: Samples) -> int:
    """Size of all samples, by asking for sizes where nobody wrote them down."""
    description = read_description(samples.path)
    if description is not None:
        return description.data_bytes
    if isinstance(samples, FolderSamples):
        return sum(samples.file(index).stat().st_size for index in range(len(samples)))
    return sum(os.stat(found).st_size for found in samples.path.glob("*.tar"))  # noqa: PTH116
