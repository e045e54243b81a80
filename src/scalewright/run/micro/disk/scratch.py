"""A folder of a benchmark's own on the storage it measures: checked before it is filled, removed whatever happens."""

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
    """A new folder in `parent`, which must exist; those that killed benchmarks left there are removed first."""
    if not parent.is_dir():
        raise EnvironmentFailedError(f"{parent}: no such folder to measure in; make it, or give another --path")
    _remove_left(parent)
    with writing(parent):
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: nobody can tell who left it
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with writing(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def _remove_left(parent: Path) -> None:
    """Folders whose lock nobody holds: their benchmark was killed. Locks of an ended process are free."""
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            handle = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(handle)
