"""Files as streams of decompressed bytes and of lines, with a bound on the memory that one line takes."""

from __future__ import annotations

import contextlib
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from scalewright import units
from scalewright.data.text.pyarrow_module import pyarrow
from scalewright.data.text.reading.aside import HEAD_BYTES
from scalewright.errors import EnvironmentFailedError
from scalewright.records.plain_file import check_plain

BLOCK_BYTES = units.MIB
COMPRESSED_BLOCK_BYTES = 64 * units.KIB
"""At most this much in front of the end of a file that was cut off is lost."""
GZIP_SUFFIXES, ZSTD_SUFFIXES = (".gz", ".gzip"), (".zst", ".zstd")
GZIP_START, ZSTD_START = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile)


class DamagedInputError(Exception):
    """A compressed file that ends early or holds something else; what came before was read."""


def plain_name(path: Path) -> str:
    """The file's name without the ending of a compression."""
    return path.stem if path.suffix in GZIP_SUFFIXES + ZSTD_SUFFIXES else path.name


def is_compressed(path: Path) -> bool:
    return path.suffix in GZIP_SUFFIXES + ZSTD_SUFFIXES


def byte_unit(path: Path) -> str:
    """What is said after the byte where a line begins: a compressed file is counted as it reads."""
    return " of its text" if is_compressed(path) else ""


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The decompressed bytes of a file. Damage is raised as DamagedInputError."""
    try:
        with _decompressing(path) as stream:
            yield stream
    except DAMAGED as error:
        raise DamagedInputError(str(error)) from error
    except PermissionError as error:
        raise EnvironmentFailedError(f"{path}: cannot be read: {error.strerror}; ask its owner") from error
    except OSError as error:
        if not is_compressed(path):
            raise EnvironmentFailedError(f"{path}: cannot be read: {error.strerror or error}") from error
        raise DamagedInputError(str(error)) from error  # as pyarrow reports a damaged zstd file


@contextlib.contextmanager
def _decompressing(path: Path) -> Iterator[BinaryIO]:
    check_plain(path)
    if path.suffix in ZSTD_SUFFIXES:
        pa: Any = pyarrow()
        with pa.OSFile(str(path)) as file, pa.CompressedInputStream(file, "zstd") as stream:
            yield cast(BinaryIO, stream)
    elif path.suffix in GZIP_SUFFIXES:
        with gzip.open(path) as stream:
            yield cast(BinaryIO, stream)
    else:
        with path.open("rb") as stream:
            yield stream


def _block(stream: Any) -> bytes:
    """The next bytes. A damaged file gives what is whole before it raises."""
    if isinstance(stream, gzip.GzipFile):
        return bytes(stream.read1(BLOCK_BYTES))
    return bytes(stream.read(BLOCK_BYTES if isinstance(stream, io.BufferedReader) else COMPRESSED_BLOCK_BYTES))


def blocks(stream: BinaryIO) -> Iterator[bytes]:
    """All of a stream, piece by piece."""
    while block := _block(stream):
        yield block


class LongPiece(NamedTuple):
    """The beginning of a line or a record that is too long to hold."""

    head: bytes
    num_bytes: int


def lines(
    stream: BinaryIO, *, max_bytes: int, start: int = 0, stop: int | None = None
) -> Iterator[tuple[int, bytes | LongPiece]]:
    """Lines with the byte where each begins. Of a line longer than `max_bytes` only its beginning is held.

    With `start` and `stop`, the lines that begin in that range of the stream; every line of a file is in one range.
    """
    position = start
    if start:
        stream.seek(start - 1)
        position = start - 1
    is_inside, is_long = start == 0, False  # in the line before the range, until its end is seen
    parts: list[bytes] = []
    part_bytes, line_start = 0, position
    while block := _block(stream):
        begin = 0
        while (end := block.find(b"\n", begin)) >= 0:
            if is_inside:
                num_bytes = part_bytes + end - begin
                whole = b"".join(parts) if is_long else b"".join([*parts, block[begin:end]])
                yield line_start, whole if num_bytes <= max_bytes else LongPiece(whole[:HEAD_BYTES], num_bytes)
            parts, part_bytes, is_long, is_inside = [], 0, False, True
            begin = end + 1
            line_start = position + begin
            if stop is not None and line_start >= stop:
                return
        if is_inside and begin < len(block):
            part_bytes += len(block) - begin
            if not is_long:
                parts.append(block[begin:])
                is_long = part_bytes > max_bytes
                parts = [b"".join(parts)[:HEAD_BYTES]] if is_long else parts
        position += len(block)
        if stop is not None and not is_inside and position >= stop:
            return  # one long line covers the whole range
    if is_inside and (parts or is_long):
        yield line_start, LongPiece(parts[0], part_bytes) if is_long else b"".join(parts)
