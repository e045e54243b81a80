"""Copy a data set to RAM or to a node's own disk: space is checked first, the copy appears whole, once per node."""

from __future__ import annotations

import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from scalewright.data.room import check_room
from scalewright.data.samples import Progress, no_progress
from scalewright.data.whole import held_for_making, made_whole
from scalewright.errors import ConfigError, DocumentError
from scalewright.records.documents import digest, document, write_document

RAM_FOLDER = Path("/dev/shm")
COPIED_FILE = "copied.json"
NUM_THREADS = 8
BLOCK_BYTES = 4096
"""Disk space of the smallest file."""
CHUNK = 64
"""Files that a thread copies at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Contents:
    """What is copied. The time of the newest change is part of it, so that a changed source is copied again."""

    source: str
    num_files: int
    num_folders: int
    disk_bytes: int
    newest_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedSet:
    path: Path
    num_files: int
    num_bytes: int
    time_s: float
    """Time of copying, or of waiting for the process that copied."""
    is_new: bool
    """Copied by this call; the process that copied removes it."""


def copy_set(
    source: Path, folder: Path = RAM_FOLDER, *, num_threads: int = NUM_THREADS,
    on_progress: Progress = no_progress,
) -> CopiedSet:  # fmt: skip
    """A copy of `source` inside `folder`. All processes of a node may call this: one copies, the others wait."""
    started_s = time.perf_counter()
    if not source.is_dir():
        raise ConfigError(f"{source}: no such data set; check the path")
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder to copy the data set to; name a RAM disk or a node-local disk")
    try:
        contents, files = _contents(source)
    except OSError as error:
        raise DocumentError(f"{error.filename}: cannot be read: {error.strerror}; repair the data set") from error
    target = folder / f"scalewright-{os.getuid()}-{source.resolve().name}-{digest(asdict(contents))}"
    with held_for_making(target):
        is_new = not target.exists()
        if is_new:
            check_room(target, num_bytes=contents.disk_bytes, num_files=contents.num_files + contents.num_folders + 2)
            with made_whole(target) as hidden:
                _copy_all(source, hidden, files, num_threads, on_progress)
                write_document(hidden / COPIED_FILE, document("copied", asdict(contents)))
    return CopiedSet(
        path=target,
        num_files=contents.num_files,
        num_bytes=contents.disk_bytes,
        time_s=time.perf_counter() - started_s,
        is_new=is_new,
    )


def remove_copy(copied: CopiedSet) -> None:
    """Remove a copy. It is renamed first, so that no process opens half of it."""
    dying = copied.path.with_name(f".{copied.path.name}.removing-{os.getpid()}")
    try:
        copied.path.rename(dying)
    except FileNotFoundError:
        return
    shutil.rmtree(dying, ignore_errors=True)


def _contents(source: Path) -> tuple[_Contents, list[str]]:
    files: list[str] = []
    num_folders, disk_bytes, newest_ns = 0, 0, 0
    for root, folders, names in os.walk(source, followlinks=True):
        num_folders += len(folders)
        for name in names:
            path = os.path.join(root, name)  # noqa: PTH118  a Path for each of a million files takes a minute
            stats = os.stat(path)  # noqa: PTH116
            disk_bytes += -(-stats.st_size // BLOCK_BYTES) * BLOCK_BYTES
            newest_ns = max(newest_ns, stats.st_mtime_ns)
            files.append(os.path.relpath(path, source))
    contents = _Contents(
        source=str(source.resolve()),
        num_files=len(files),
        num_folders=num_folders,
        disk_bytes=disk_bytes,
        newest_ns=newest_ns,
    )
    return contents, files


def _copy_all(source: Path, target: Path, files: list[str], num_threads: int, on_progress: Progress) -> None:
    for name in sorted({os.path.dirname(file) for file in files}):  # noqa: PTH120
        (target / name).mkdir(parents=True, exist_ok=True)
    chunks = [files[first : first + CHUNK] for first in range(0, len(files), CHUNK)]
    pool = ThreadPoolExecutor(num_threads)
    try:
        done = 0
        for num_copied in pool.map(lambda names: _copy_chunk(source, target, names), chunks):
            done += num_copied
            on_progress(done, len(files))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _copy_chunk(source: Path, target: Path, names: list[str]) -> int:
    for name in names:
        try:
            shutil.copyfile(source / name, target / name)
        except OSError as error:
            if error.filename == str(source / name):  # else the target failed, which the caller reports
                raise DocumentError(f"{source / name}: cannot be read: {error.strerror}; repair it") from error
            raise
    return len(names)
