"""The kernel's cache of files: empty it for some files, and tell how much of a file it holds."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)


def flush(folder: Path) -> None:
    """Write out what the file system of a folder has in memory: only clean pages can be dropped."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        if _libc.syncfs(handle) != 0:
            os.sync()
    finally:
        os.close(handle)


def drop(files: Iterable[Path]) -> None:
    """Ask the kernel to forget these files; a RAM disk cannot, and some file systems do not."""
    for path in files:
        handle = os.open(path, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


def cached_frac(path: Path) -> float:
    """Share of a file's pages that are in memory (mincore(2))."""
    size = path.stat().st_size
    if size == 0:
        return 0.0
    num_pages = -(-size // mmap.PAGESIZE)
    seen = (ctypes.c_ubyte * num_pages)()
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as pages:
        first = ctypes.c_char.from_buffer(pages)
        try:
            failed = _libc.mincore(ctypes.byref(first), ctypes.c_size_t(size), seen)
        finally:
            del first  # the map cannot be closed while something points into it
        if failed:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    return sum(page & 1 for page in seen) / num_pages
