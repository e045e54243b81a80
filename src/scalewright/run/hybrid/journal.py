"""Journal: what the controller has promised, on disk before it answers.

`journal.jsonl` has one line for each operation, `["CHECKSUM",OPERATION]`, appended only. The first line says the number
of the operation that follows it. `snapshot.json` has one such line: the state after all operations below its `next`.
To compact, the snapshot is written first and the journal is begun anew second, each to a temporary name and renamed.
After a kill between the two, the old journal's operations below `next` are skipped.

A kill can tear the last line: it was not acknowledged, and is cut off. A damaged line with whole lines after it is not
the work of a kill, and is refused.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scalewright.errors import EnvironmentFailedError
from scalewright.records.documents import check_schema, schema, write_bytes

JOURNAL, SNAPSHOT = "controller-journal", "controller-snapshot"
LEAST_COMPACTED_BYTES = 1 << 20
"""A shorter journal is replayed faster than a snapshot is written."""


def line_of(body: bytes) -> bytes:
    """One line of a journal. The body is JSON without line breaks."""
    return b'["%08x",%b]\n' % (zlib.crc32(body), body)


def body_of(line: bytes) -> dict[str, Any] | None:
    """The operation of a line; None if the line is not whole."""
    if len(line) < 14 or line[:2] != b'["' or line[10:12] != b'",' or line[-2:] != b"]\n":
        return None
    body = line[12:-2]
    if line[2:10] != b"%08x" % zlib.crc32(body):
        return None
    operation = json.loads(body)
    return operation if isinstance(operation, dict) else None


class Journal:
    """One controller's journal. `append` and `take` are for one thread; `write` may run in another meanwhile."""

    def __init__(self, path: Path, snapshot: Path, *, is_synced: bool = True) -> None:
        self.path, self.snapshot_path = path, snapshot
        self._is_synced = is_synced
        self.next = 0
        """Number of the next operation."""
        self.num_bytes = 0
        """Of the operations since the snapshot."""
        self._snapshot_bytes = 0
        self._lines: list[bytes] = []
        self._handle = -1

    def open(self) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
        """The last snapshot, if any, and the operations after it. What a kill tore is cut off; then append."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            state = self._read_snapshot()
            operations, whole_bytes = self._read_operations(self.next)
            if whole_bytes == 0:
                self._begin_file()
            else:
                self._handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
                os.ftruncate(self._handle, whole_bytes)
                self._sync()
        except OSError as error:
            raise self._failed(error) from error
        self.next += len(operations)
        return state, operations

    def append(self, body: bytes) -> int:
        """Put an operation in the row. It is on disk when `write` has written up to the number that is returned."""
        self._lines.append(line_of(body))
        self.next += 1
        return self.next

    def take(self) -> list[bytes]:
        """Lines that wait to be written."""
        lines, self._lines = self._lines, []
        return lines

    def write(self, lines: list[bytes]) -> None:
        """Write and sync. Only then may anything that these lines say be acknowledged."""
        content = memoryview(b"".join(lines))
        try:
            self.num_bytes += len(content)
            while content:
                content = content[os.write(self._handle, content) :]
            self._sync()
        except OSError as error:
            raise self._failed(error) from error

    @property
    def is_long(self) -> bool:
        """Worth a snapshot: so a byte of state is written a bounded number of times."""
        return self.num_bytes > max(LEAST_COMPACTED_BYTES, 2 * self._snapshot_bytes)

    def compact(self, state: dict[str, Any]) -> None:
        """Replace the operations by the state they led to. Nothing may wait to be written."""
        assert not self._lines
        body = json.dumps({"schema": schema(SNAPSHOT), "next": self.next, "state": state}, separators=(",", ":"))
        content = line_of(body.encode())
        try:
            write_bytes(self.snapshot_path, content)
            self._sync_folder()
            os.close(self._handle)
            self._begin_file()
        except OSError as error:
            raise self._failed(error) from error
        self._snapshot_bytes, self.num_bytes = len(content), 0

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1

    def _read_snapshot(self) -> dict[str, Any] | None:
        try:
            content = self.snapshot_path.read_bytes()
        except FileNotFoundError:
            return None
        body = body_of(content)
        if body is None:
            raise EnvironmentFailedError(
                f"{self.snapshot_path}: is damaged, and no kill can do that: restore it, or use another --run-dir"
            )
        check_schema(body["schema"], SNAPSHOT, where=str(self.snapshot_path))
        self.next, self._snapshot_bytes = int(body["next"]), len(content)
        state: dict[str, Any] = body["state"]
        return state

    def _read_operations(self, first: int) -> tuple[list[dict[str, Any]], int]:
        """Operations from number `first` on, and the bytes of the file up to its last whole line."""
        operations: list[dict[str, Any]] = []
        number = -1
        whole_bytes = 0
        for count, (line, body) in enumerate(_lines(self.path), start=1):
            if body is None:
                self._check_last(whole_bytes + len(line), count)
                break
            if number < 0:
                check_schema(body.get("schema"), JOURNAL, where=str(self.path))
                number = int(body["next"])
                if number > first:
                    raise EnvironmentFailedError(
                        f"{self.path}: begins with operation {number}, and the snapshot ends before {first}: restore "
                        f"{self.snapshot_path.name}, or start in another run directory"
                    )
            else:
                if number >= first:
                    operations.append(body)
                    self.num_bytes += len(line)
                number += 1
            whole_bytes += len(line)
        if 0 <= number < first:  # all of it is in the snapshot: begin a new one
            return [], 0
        return operations, whole_bytes

    def _check_last(self, after: int, count: int) -> None:
        with self.path.open("rb") as file:
            file.seek(after)
            if any(body_of(line) is not None for line in file):
                raise EnvironmentFailedError(
                    f"{self.path}: line {count} is damaged and whole lines follow it, and no kill can do that: restore "
                    "the file, or start in another run directory from the last checkpoint"
                )

    def _begin_file(self) -> None:
        head = json.dumps({"schema": schema(JOURNAL), "next": self.next}, separators=(",", ":"))
        write_bytes(self.path, line_of(head.encode()))
        self._sync_folder()
        self._handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def _sync(self) -> None:
        if self._is_synced:
            os.fdatasync(self._handle)

    def _sync_folder(self) -> None:
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _failed(self, error: OSError) -> EnvironmentFailedError:
        return EnvironmentFailedError(
            f"{self.path}: the journal cannot be written: {error.strerror}; free space or mend the disk, then start "
            "again: all that was acknowledged is kept"
        )


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    try:
        with path.open("rb") as file:
            for line in file:
                yield line, body_of(line)
    except FileNotFoundError:
        return
