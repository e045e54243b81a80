"""A folder for a benchmark on the storage that it measures. It is removed however the benchmark ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from scalewright.data.whole import writing
from scalewright.errors import EnvironmentFailedError

PREFIX = "scalewright-bench-"
LOCK = "in-use"


@contextlib.contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """A new folder in `parent`, which must exist. Folders of killed benchmarks are removed first."""
    if not parent.is_dir():
        raise EnvironmentFailedError(f"{parent}: no such folder to measure in; make it, or give another --path")
    _remove_abandoned(parent)
    with writing(parent):
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: abandoned folders stay
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with writing(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def _remove_abandoned(parent: Path) -> None:
    """Remove folders whose lock is free: their benchmark was killed, and the kernel freed its lock."""
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            handle = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(handle)
