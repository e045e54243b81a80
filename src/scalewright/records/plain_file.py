"""The one way to open a file that somebody else wrote: an ordinary file of a sensible size, opened without waiting.

A pipe without a writer keeps a reader for ever, and a device such as /dev/zero never ends. Both are refused before a
byte is read. Readers of text, JSON and TOML are in `documents` and `loader`; all of them begin here.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from scalewright import units
from scalewright.errors import DocumentError

MOST_TEXT_BYTES = 256 * units.MIB
"""Of a document that is read as a whole. The largest that we write (results of a study) has some megabytes."""
_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISSOCK, "a socket"),
)


def open_plain(path: Path, *, most_bytes: int | None = None, buffering: int = -1) -> BinaryIO:
    """The file, open for reading. Anything but an ordinary file of at most `most_bytes` raises DocumentError.

    The handle is what is checked, so that nobody can put another file in its place meanwhile. OSError is not caught.
    """
    handle = open_plain_handle(path, most_bytes=most_bytes)
    try:
        return os.fdopen(handle, "rb", buffering)
    except BaseException:
        os.close(handle)
        raise


def open_plain_handle(path: Path, *, most_bytes: int | None = None) -> int:
    """Likewise, as a handle of the operating system."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except ValueError as error:  # a name with a zero byte
        raise DocumentError(f"{str(path)!r}: is not the name of a file: {error}") from error
    try:
        _check(path, os.fstat(handle), most_bytes)
    except BaseException:
        os.close(handle)
        raise
    return handle


def check_plain(path: Path, *, most_bytes: int | None = None) -> None:
    """The same check for a file that a library opens by its name. OSError is not caught."""
    _check(path, path.stat(), most_bytes)


def read_plain(path: Path, *, most_bytes: int = MOST_TEXT_BYTES) -> bytes:
    """All bytes of a file. OSError is not caught."""
    with open_plain(path, most_bytes=most_bytes) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:  # a file of /proc says that it is empty, and a file may grow
        raise _too_large(path, len(content), most_bytes)
    return content


def _check(path: Path, status: os.stat_result, most_bytes: int | None) -> None:
    mode = status.st_mode
    if stat.S_ISDIR(mode):
        raise DocumentError(f"{path}: is a folder; name a file in it")
    if not stat.S_ISREG(mode):
        kind = next((words for is_kind, words in _KINDS if is_kind(mode)), "not a file")
        raise DocumentError(f"{path}: is {kind}, not an ordinary file; write the content to a file and name that")
    if most_bytes is not None and status.st_size > most_bytes:
        raise _too_large(path, status.st_size, most_bytes)


def _too_large(path: Path, size_bytes: int, most_bytes: int) -> DocumentError:
    return DocumentError(
        f"{path}: has {size_bytes:,} bytes, where at most {most_bytes:,} are expected; check that it is the right file"
    )
