"""The kernel's page cache: fill it or empty it for some files, and measure how much of a file it holds."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
FILL_BYTES = 2**20
START_WRITING, WRITE_AND_WAIT = 2, 1 | 2 | 4
"""Flags of sync_file_range(2)."""


def flush(files: Iterable[Path]) -> None:
    """Write these files' pages to disk: only clean pages can be dropped. Other files are not touched."""
    files = list(files)
    for flags in (START_WRITING, WRITE_AND_WAIT):  # start all before waiting for the first
        for path in files:
            handle = os.open(path, os.O_RDONLY)
            try:
                if _libc.sync_file_range(handle, ctypes.c_int64(0), ctypes.c_int64(0), ctypes.c_uint(flags)) != 0:
                    os.fsync(handle)
            finally:
                os.close(handle)


def drop(files: Iterable[Path]) -> None:
    """Ask the kernel to drop these files from its cache. A RAM disk cannot, and some file systems do not."""
    for path in files:
        handle = os.open(path, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


def fill(files: Iterable[Path]) -> None:
    """Bring these files into the cache, from front to back, which is the fastest way."""
    buffer = bytearray(FILL_BYTES)
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def cached_frac(path: Path) -> float:
    """Share of a file's pages that are in memory (mincore(2))."""
    size = path.stat().st_size
    if size == 0:
        return 0.0
    num_pages = -(-size // mmap.PAGESIZE)
    flags = (ctypes.c_ubyte * num_pages)()
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as pages:
        first = ctypes.c_char.from_buffer(pages)
        try:
            failed = _libc.mincore(ctypes.byref(first), ctypes.c_size_t(size), flags)
        finally:
            del first  # the map cannot be closed while something points into it
        if failed:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    return sum(page & 1 for page in flags) / num_pages
