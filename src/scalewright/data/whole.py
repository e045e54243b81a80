"""Folders that appear whole or not at all: made under a hidden name, then renamed, by one process at a time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from scalewright.errors import EnvironmentFailedError

FULL = (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def held_for_making(path: Path) -> Iterator[None]:
    """Hold the right to make `path`. A second process waits, and then uses what the first has made."""
    lock = path.with_name(f".{path.name}.lock")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = _locked(lock)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(handle)


@contextlib.contextmanager
def made_whole(path: Path) -> Iterator[Path]:
    """A hidden folder to fill, which becomes `path` at the end; after any failure, nothing of it remains."""
    for remnant in path.parent.glob(f".{path.name}.making-*"):
        shutil.rmtree(remnant, ignore_errors=True)  # of a killed process: we hold the right to make it
    hidden = path.with_name(f".{path.name}.making-{socket.gethostname()}-{os.getpid()}")
    try:
        with writing(path):
            hidden.mkdir()
            yield hidden
            hidden.rename(path)
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the error of a disk that is full, over its quota or read-only into one sentence."""
    try:
        yield
    except OSError as error:
        next_step = "free space or choose another place" if error.errno in FULL else "choose another place"
        raise EnvironmentFailedError(f"{path}: cannot be written: {error.strerror}; {next_step}") from error


def _locked(lock: Path) -> int:
    while True:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            with contextlib.suppress(OSError):  # a file system without locks: the rename still decides who was first
                fcntl.flock(handle, fcntl.LOCK_EX)
            if lock.exists() and os.path.samestat(os.fstat(handle), lock.stat()):
                return handle
        except FileNotFoundError:
            pass  # the process that held it removed it meanwhile
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
