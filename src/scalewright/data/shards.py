"""Tar shards, as WebDataset names them: `shard-000000.tar` with NUMBER.jpg and NUMBER.cls for each sample.

Our own have an index, so that a sample is one read. Shards made elsewhere are indexed when they are opened, from their
headers only.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalewright.data.array_file import mapped_array
from scalewright.data.folder import IMAGE_SUFFIXES
from scalewright.data.samples import Format, Sample, check_files, check_index, damaged, read_description
from scalewright.errors import DocumentError
from scalewright.records.plain_file import open_plain, open_plain_handle

INDEX = "index.npy"
INDEX_TYPE = np.dtype([("shard", "<u4"), ("offset", "<u8"), ("size", "<u8"), ("label", "<i4")])
BLOCK_BYTES = tarfile.BLOCKSIZE
READ_BYTES = 2**20
"""Default size of a sequential read."""
LABEL_SUFFIX = ".cls"
MOST_LABEL_BYTES = 64
LARGEST_LABEL = 2**31 - 1
Index = NDArray[np.void]


class ShardSamples:
    """Samples of a folder of tar files, in their order in the files."""

    format: Format = "shards"

    def __init__(self, path: Path, *, io_bytes: int = READ_BYTES) -> None:
        self.path, self._io_bytes = path, io_bytes
        self._shards = sorted(file.name for file in path.glob("*.tar"))
        description = read_description(path)
        if description is None:
            self._index = _scan(path, self._shards)
            self.num_classes = int(self._index["label"].max()) + 1
        else:
            check_files(path, description)
            self._index = _load_index(path, description.num_samples, self._shards)
            self.num_classes = description.num_classes
        self._handles: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._index)

    def read(self, index: int) -> Sample:
        check_index(self, index)
        shard, offset, size, label = (int(value) for value in self._index[index])
        member = os.pread(self._handle(shard), BLOCK_BYTES + size, offset - BLOCK_BYTES)
        self._check(index, member, len(member) - BLOCK_BYTES, size)
        return member[BLOCK_BYTES:], label

    def stream(self, start: int, stop: int) -> Iterator[Sample]:
        """Reads each shard from front to back in large blocks."""
        rows = self._index[start:stop]
        for shard in np.unique(rows["shard"]):
            # A separate handle: one with the hint for sequential reads would read too far ahead for random ones.
            with open_plain(self.path / self._shards[shard], buffering=0) as file:
                blocks = _Blocks(file.fileno(), self._io_bytes)
                for row in np.flatnonzero(rows["shard"] == shard):
                    _, offset, size, label = (int(value) for value in rows[row])
                    header, content = blocks.take(offset - BLOCK_BYTES, BLOCK_BYTES), blocks.take(offset, size)
                    self._check(start + int(row), header, len(content), size)
                    yield content, label

    def where(self, index: int) -> str:
        return f"{self.path / self._shards[int(self._index['shard'][index])]} (sample {index})"

    def run_starts(self) -> list[int]:
        return [int(first) for first in np.unique(self._index["shard"], return_index=True)[1]]

    def close(self) -> None:
        for handle in self._handles.values():
            os.close(handle)
        self._handles = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_handles": {}}

    def _handle(self, shard: int) -> int:
        """A handle of a shard. Reads carry their offset, so forked workers may share it."""
        if shard not in self._handles:
            path = self.path / self._shards[shard]
            try:
                self._handles[shard] = open_plain_handle(path)
            except OSError as error:
                raise DocumentError(f"{path}: cannot be read: {error.strerror}; check the data set") from error
        return self._handles[shard]

    def _check(self, index: int, header: bytes, num_bytes: int, size: int) -> None:
        """A sample must be whole, and the tar header before it must have its size."""
        if num_bytes < size:
            raise damaged(self, index, "the shard was cut off")
        if _octal(header[124:136]) != size:
            raise damaged(self, index, "the tar header before it is damaged")


class _Blocks:
    """A file read in large blocks into one buffer, from which pieces are copied once."""

    def __init__(self, handle: int, block_bytes: int) -> None:
        self._handle = handle
        self._buffer = memoryview(bytearray(block_bytes))
        self._start = self._end = 0
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def take(self, offset: int, size: int) -> bytes:
        """The bytes at `offset`; fewer at the end of the file."""
        parts = []
        while size > 0:
            if not self._start <= offset < self._end:
                self._start = offset
                self._end = offset + os.preadv(self._handle, [self._buffer], offset)
                if self._end == offset:
                    break
            part = bytes(self._buffer[offset - self._start : min(offset + size, self._end) - self._start])
            parts.append(part)
            offset, size = offset + len(part), size - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


class ShardWriter:
    """Fills shards one after the other, each up to `shard_bytes`."""

    def __init__(self, folder: Path, shard_bytes: int) -> None:
        self._folder, self._shard_bytes = folder, shard_bytes
        self._rows: list[tuple[int, int, int, int]] = []
        self._tar: tarfile.TarFile | None = None
        self._files: dict[str, int] = {}

    def add(self, index: int, content: bytes, label: int) -> None:
        suffix = ".png" if content.startswith(b"\x89PNG") else ".jpg"
        tar = self._with_room_for(len(content))
        text = str(label).encode()
        _add_member(tar, f"{index:08d}{LABEL_SUFFIX}", text)
        offset = _add_member(tar, f"{index:08d}{suffix}", content)
        self._rows.append((len(self._files), offset, len(content), label))

    def finish(self) -> dict[str, int]:
        """Close the last shard and write the index. Returns names and sizes of all files."""
        self._end_shard()
        np.save(self._folder / INDEX, np.array(self._rows, dtype=INDEX_TYPE))
        return self._files | {INDEX: (self._folder / INDEX).stat().st_size}

    def close(self) -> None:
        if self._tar is not None:
            self._tar.fileobj.close()
            self._tar = None

    def _with_room_for(self, num_bytes: int) -> tarfile.TarFile:
        if self._tar is not None and self._tar.offset + num_bytes + 4 * BLOCK_BYTES > self._shard_bytes:
            self._end_shard()
        if self._tar is None:
            path = self._folder / shard_name(len(self._files))
            self._tar = tarfile.open(path, "w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115
        return self._tar

    def _end_shard(self) -> None:
        if self._tar is None:
            return
        path = self._folder / shard_name(len(self._files))
        self._tar.close()
        self._tar = None
        with path.open("rb") as file:
            os.fsync(file.fileno())
        self._files[path.name] = path.stat().st_size


def shard_name(number: int) -> str:
    return f"shard-{number:06d}.tar"


def _add_member(tar: tarfile.TarFile, name: str, content: bytes) -> int:
    """Add a file whose header has no date, user or host. Returns the offset of its content."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    offset = tar.offset + BLOCK_BYTES
    tar.addfile(info, io.BytesIO(content))
    return offset


def _octal(field: bytes) -> int:
    try:
        return int(field.rstrip(b"\0 ") or b"0", 8)
    except ValueError:
        return -1


def _load_index(path: Path, num_samples: int, shards: list[str]) -> Index:
    again = "make or copy the data set again"
    try:
        index: Index = np.array(mapped_array(path / INDEX, next_step=again))
    except OSError as error:
        raise DocumentError(f"{path / INDEX}: cannot be read: {error.strerror or error}; {again}") from error
    if index.dtype != INDEX_TYPE or index.shape != (num_samples,) or not num_samples:
        raise DocumentError(f"{path / INDEX}: does not belong to these shards; {again}")
    lengths = np.array([(path / name).stat().st_size for name in shards], dtype=np.uint64)
    is_inside = int(index["shard"].max()) < len(shards) and int(index["label"].min()) >= 0
    if is_inside:
        length = lengths[index["shard"]]
        offset, size = index["offset"], index["size"]
        is_inside = bool(((offset >= BLOCK_BYTES) & (offset <= length) & (size <= length - offset)).all())
    if not is_inside:
        raise DocumentError(f"{path / INDEX}: names places outside these shards; {again}")
    return index


@dataclass(slots=True)
class _Parts:
    """Members of one sample in a shard made elsewhere."""

    offset: int = -1
    size: int = 0
    label: int | None = None


def _scan(path: Path, shards: list[str]) -> Index:
    """An index for shards that have none."""
    rows = [row for number, name in enumerate(shards) for row in _scan_shard(path / name, number)]
    if not rows:
        raise DocumentError(f"{path}: its tar files hold no samples; a sample is KEY.jpg beside KEY{LABEL_SUFFIX}")
    return np.array(rows, dtype=INDEX_TYPE)


def _scan_shard(path: Path, number: int) -> list[tuple[int, int, int, int]]:
    parts_of_key: dict[str, _Parts] = {}
    try:
        with open_plain(path) as file, tarfile.open(fileobj=file, mode="r:") as tar:
            size_bytes = os.fstat(file.fileno()).st_size
            for member in tar:
                if not member.isfile():
                    continue
                folder, _, name = member.name.rpartition("/")
                key, _, suffix = name.partition(".")
                parts = parts_of_key.setdefault(f"{folder}/{key}", _Parts())
                if member.offset_data + member.size > size_bytes:
                    raise DocumentError(f"{path}: was cut off in {member.name}; copy it again")
                if f".{suffix}".lower() in IMAGE_SUFFIXES:
                    parts.offset, parts.size = member.offset_data, member.size
                elif f".{suffix}" == LABEL_SUFFIX:
                    content = tar.extractfile(member).read(MOST_LABEL_BYTES)  # type: ignore[union-attr]
                    parts.label = _label(path, member.name, content)
    except (tarfile.TarError, OSError, ValueError, OverflowError) as error:  # numbers in headers may be anything
        raise DocumentError(f"{path}: is not a whole tar file ({error}); copy it again") from error
    for key, parts in parts_of_key.items():
        if parts.offset < 0 or parts.label is None:
            lacks = "image" if parts.offset < 0 else LABEL_SUFFIX
            raise DocumentError(
                f"{path}: sample {key.lstrip('/')} has no {lacks}; each needs KEY.jpg and KEY{LABEL_SUFFIX}"
            )
    return [(number, p.offset, p.size, p.label or 0) for p in parts_of_key.values()]


def _label(path: Path, name: str, content: bytes) -> int:
    try:
        label = int(content)
    except ValueError:
        label = -1
    if not 0 <= label <= LARGEST_LABEL:
        raise DocumentError(f"{path}: {name} holds {content[:20]!r}; a label is the number of a class, such as 17")
    return label
