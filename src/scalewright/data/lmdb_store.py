"""LMDB: all samples in one memory-mapped file, by number. Key: eight digits; value: label (4 bytes), then the image."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from scalewright.data.samples import Format, Sample, check_files, check_index, damaged, read_description
from scalewright.errors import DocumentError, EnvironmentFailedError, MissingExtraError

DATA_FILE = "data.mdb"
LABEL = struct.Struct("<i")
FIRST_MAP_BYTES = 2**28
AHEAD_BYTES = 2**20
"""What a sequential reader requests ahead of the sample it takes."""
COMMIT_EVERY = 256
"""Samples per transaction: a commit costs two writes of the root, however much it holds."""


_libc = ctypes.CDLL(None)


def lmdb_module() -> Any:
    try:
        import lmdb
    except ModuleNotFoundError as error:
        raise MissingExtraError("data", "lmdb") from error
    return lmdb


class LmdbSamples:
    """Samples of an LMDB folder that we wrote. The process that reads opens the map; a fork does not inherit it."""

    format: Format = "lmdb"

    def __init__(self, path: Path) -> None:
        self.path = path
        lmdb_module()
        description = read_description(path)
        if description is None:
            raise DocumentError(f"{path}: is an LMDB without dataset.json, made by another program; convert its images")
        check_files(path, description)  # a map of a file that is too short would end the process with SIGBUS
        self._num_samples, self.num_classes = description.num_samples, description.num_classes
        self._opened: tuple[_Environment, Any] | None = None
        self._open()

    def __len__(self) -> int:
        return self._num_samples

    def read(self, index: int) -> Sample:
        check_index(self, index)
        with self._naming_sample(index):
            value = self._open().get(_key(index))
        return self._sample(index, value)

    def stream(self, start: int, stop: int) -> Iterator[Sample]:
        """Samples are stored in the order of writing, so that the bytes ahead can be fetched in large blocks."""
        cursor = self._open().cursor()
        fetched = 0
        for index in range(start, stop):
            with self._naming_sample(index):
                is_there = cursor.set_key(_key(start)) if index == start else cursor.next()
                value = cursor.value() if is_there else None
            if value is not None:
                end = _address(value) + len(value)
                if end > fetched or end < fetched - AHEAD_BYTES:
                    fetched = end + AHEAD_BYTES
                    _fetch(_address(value), fetched - _address(value))
            yield self._sample(index, value)

    def where(self, index: int) -> str:
        return f"{self.path / DATA_FILE} (sample {index})"

    def run_starts(self) -> list[int]:
        return [0]

    def close(self) -> None:
        self._opened = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None}

    def _open(self) -> Any:
        """A read transaction of this process."""
        if self._opened is None or self._opened[0].pid != os.getpid():
            environment = _environment(self.path)
            self._opened = (environment, environment.env.begin(buffers=True))
        return self._opened[1]

    @contextmanager
    def _naming_sample(self, index: int) -> Iterator[None]:
        """LMDB refuses a damaged page of its tree: name the sample behind it."""
        try:
            yield
        except lmdb_module().Error as error:
            raise damaged(self, index, f"cannot be read ({error})") from error

    def _sample(self, index: int, value: Any) -> Sample:
        if value is None or len(value) < LABEL.size:
            raise damaged(self, index, "is not in the database")
        return bytes(value[LABEL.size :]), int(LABEL.unpack_from(value)[0])


def _address(value: memoryview) -> int:
    return int(np.frombuffer(value, dtype=np.uint8).ctypes.data)


def _fetch(address: int, num_bytes: int) -> None:
    """Ask the kernel for these bytes of the map at once: without it, every cold page is a separate read.

    It is only a hint: past the end of the map, or on some file systems, nothing happens.
    """
    start = address - address % mmap.PAGESIZE
    _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(address + num_bytes - start), mmap.MADV_WILLNEED)


class _Environment:
    """An open LMDB of this process, closed with its last reader; after a fork, the child opens its own."""

    def __init__(self, path: Path) -> None:
        lmdb = lmdb_module()
        self.pid = os.getpid()
        try:
            # Without locks: a data set does not change while it is read. Without readahead, which brings megabytes with
            # each random sample: good where the set stays in memory, waste where it does not (docs/decisions.md).
            self.env = lmdb.open(str(path), readonly=True, lock=False, readahead=False, meminit=False)
        except lmdb.Error as error:
            raise DocumentError(f"{path}: is not a whole LMDB ({error}); make or copy it again") from error
        if (self.env.info()["last_pgno"] + 1) * self.env.stat()["psize"] > (path / DATA_FILE).stat().st_size:
            self.env.close()
            raise DocumentError(f"{path / DATA_FILE}: was cut off; make or copy it again")

    def __del__(self) -> None:
        if getattr(self, "env", None) is not None and self.pid == os.getpid():
            self.env.close()


_environments: WeakValueDictionary[tuple[int, int], _Environment] = WeakValueDictionary()
"""LMDB refuses to open a file twice in one process, so its readers share it, by device and inode."""


def _environment(path: Path) -> _Environment:
    stats = (path / DATA_FILE).stat()
    key = (stats.st_dev, stats.st_ino)
    environment = _environments.get(key)
    if environment is not None and environment.pid != os.getpid():
        environment.env.close()  # the parent's map, which a child must not use; nothing is locked, so it may close it
        environment = None
    if environment is None:
        environment = _environments[key] = _Environment(path)
    return environment


class LmdbWriter:
    """Writes samples in order, in transactions of several samples; the map grows as it fills."""

    def __init__(self, folder: Path) -> None:
        self._lmdb, self._folder = lmdb_module(), folder
        self._map_bytes = FIRST_MAP_BYTES
        # No other process sees the folder before it has its name, so syncing once at the end is enough.
        self._env = self._lmdb.open(
            str(folder), map_size=self._map_bytes, sync=False, metasync=False, lock=False, meminit=False
        )
        self._waiting: list[tuple[bytes, bytes]] = []

    def add(self, index: int, content: bytes, label: int) -> None:
        self._waiting.append((_key(index), LABEL.pack(label) + content))
        if len(self._waiting) >= COMMIT_EVERY:
            self._commit()

    def finish(self) -> dict[str, int]:
        self._commit()
        try:
            self._env.sync(True)
        except self._lmdb.Error as error:
            raise _write_error(self._folder, error) from error
        self.close()
        return {DATA_FILE: (self._folder / DATA_FILE).stat().st_size}

    def close(self) -> None:
        self._env.close()

    def _commit(self) -> None:
        while self._waiting:
            try:
                with self._env.begin(write=True) as transaction:
                    for key, value in self._waiting:
                        transaction.put(key, value, append=True)
                self._waiting = []
            except self._lmdb.MapFullError:
                self._map_bytes *= 2
                self._env.set_mapsize(self._map_bytes)
            except self._lmdb.Error as error:
                raise _write_error(self._folder, error) from error


def _write_error(folder: Path, error: Exception) -> EnvironmentFailedError:
    return EnvironmentFailedError(f"{folder}: the LMDB cannot be written ({error}); free space or choose another place")


def _key(index: int) -> bytes:
    return b"%08d" % index
