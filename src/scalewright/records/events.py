"""Metric events as JSON lines: appended whole; readers never take a torn line for data.

A writer appends with one write() per batch to a file opened with O_APPEND. A writer that is killed can leave a part of
a line at the end. The next writer starts on a new line, and readers skip lines that are not whole. Each attempt of a
run starts with a line that only has the schema, so a newer format is refused before any of its lines is read.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from scalewright.errors import DocumentError, EnvironmentFailedError, shortened
from scalewright.records.documents import check_schema, finite_float, schema
from scalewright.records.plain_file import open_plain

KIND = "events"
MOST_LINE_BYTES = 1 << 20
"""A longer line is not one of ours, and is skipped."""
LARGEST_TIME_S = 1e11
"""Seconds since 1970: the year 5138."""
LARGEST_COUNT = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One measured number, or one thing that happened."""

    time: float
    """Seconds since 1970, UTC."""
    job: str
    rank: int
    """-1 if the event is of a node, not of a rank."""
    host: str
    step: int
    """-1 if the event belongs to no step."""
    name: str
    value: float | None
    """None: not finite; `detail` then says which (nan, inf, -inf)."""
    unit: str
    detail: str = ""
    """What happened, in words; or which device or port the number is of."""


class EventLine:
    """Formats events of one job, rank and host. Most of a line is prepared once, because training waits for it."""

    __slots__ = ("_middle", "_names")

    def __init__(self, *, job: str, rank: int, host: str) -> None:
        self._middle = f'"job":{json.dumps(job)},"rank":{rank:d},"host":{json.dumps(host)},"step":'
        self._names: dict[tuple[str, str], str] = {}

    def format(self, *, time_s: float, step: int, name: str, value: float, unit: str, detail: str = "") -> str:
        key = (name, unit)
        words = self._names.get(key)
        if words is None:
            words = self._names[key] = f',"name":{json.dumps(name)},"unit":{json.dumps(unit)},"value":'
        number = float(value)
        if not math.isfinite(number):
            text, detail = "null", detail or repr(number)
        else:
            text = repr(number)
        end = f',"detail":{json.dumps(detail)}}}\n' if detail else "}\n"
        return f'{{"time":{time_s:.6f},{self._middle}{step:d}{words}{text}{end}'


class LineWriter:
    """Appends lines to one file. Not for several threads at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            self._torn = _ends_inside_a_line(path)
        except OSError as error:
            raise EnvironmentFailedError(
                f"{path}: events cannot be written: {error.strerror}; choose another --run-dir"
            ) from error

    def append(self, lines: str) -> None:
        """Write whole lines. After an error the next call starts on a fresh line."""
        data = (("\n" if self._torn else "") + lines).encode("utf-8")
        self._torn = True
        while data:
            try:
                done = os.write(self._handle, data)
            except OSError as error:
                next_step = (
                    "free space or choose another --run-dir" if error.errno == errno.ENOSPC else "check the disk"
                )
                raise EnvironmentFailedError(
                    f"{self._path}: events cannot be written: {error.strerror}; {next_step}"
                ) from error
            data = data[done:]
        self._torn = False

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


class EventWriter(LineWriter):
    """Appends events. Each attempt starts with the schema."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.append(json.dumps({"schema": schema(KIND)}) + "\n")


def _ends_inside_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size == 0:
            return False
        file.seek(size - 1)
        return file.read(1) != b"\n"


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file of lines; a line that a kill tore is skipped."""
    try:
        with open_plain(path) as file:
            yield from whole_rows(short_lines(file))
    except OSError as error:
        raise DocumentError(f"{path}: cannot be read: {error.strerror}; check the path") from error


def short_lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file; of a line that is too long only the beginning, so that it is never held as a whole."""
    while line := file.readline(MOST_LINE_BYTES):
        yield line
        while len(line) == MOST_LINE_BYTES and not line.endswith(b"\n"):
            line = file.readline(MOST_LINE_BYTES)


def whole_rows(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The JSON objects of lines. What a kill tore, what is not UTF-8, and numbers that are not finite are no data."""
    for line in lines:
        try:
            row = _DECODER.decode(line.decode("utf-8"))
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            yield row


def _refuse_constant(name: str) -> float:
    raise ValueError(name)


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=finite_float)


class EventTail:
    """Reads what has been appended since the last call; an unfinished line waits for its end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def skip_to_end(self) -> None:
        self._offset = self._path.stat().st_size if self._path.exists() else 0

    def read(self) -> list[Event]:
        try:
            with open_plain(self._path) as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        return list(_events(data[:whole].split(b"\n"), where=str(self._path)))


def read_events(path: Path) -> Iterator[Event]:
    """The events of a file, in the order in which they were written; torn lines are skipped."""
    try:
        with open_plain(path) as file:
            yield from _events(short_lines(file), where=str(path))
    except FileNotFoundError as error:
        raise DocumentError(f"{path}: no such file; check the path") from error
    except OSError as error:
        raise DocumentError(f"{path}: cannot be read: {error.strerror}") from error


def _events(lines: Iterable[bytes], *, where: str) -> Iterator[Event]:
    for row in whole_rows(lines):
        if "schema" in row:
            check_schema(row["schema"], KIND, where=where)
            continue
        yield _event(row, where=where)


def _event(row: dict[str, Any], *, where: str) -> Event:
    try:
        value = row["value"]
        event = Event(
            time=float(row["time"]),
            job=str(row["job"]),
            rank=_whole(row["rank"]),
            host=str(row["host"]),
            step=_whole(row["step"]),
            name=str(row["name"]),
            value=None if value is None else float(value),
            unit=str(row["unit"]),
            detail=str(row.get("detail", "")),
        )
    except KeyError as error:
        raise DocumentError(f"{where}: an event lacks {error}; the file was not written by scalewright") from error
    except (TypeError, ValueError, OverflowError) as error:
        raise DocumentError(
            f"{where}: an event holds a wrong value ({error}); the file was not written by scalewright"
        ) from error
    if not 0.0 <= event.time <= LARGEST_TIME_S:
        raise DocumentError(f"{where}: an event has the time {event.time:g}; times are seconds since 1970")
    return event


def _whole(value: object) -> int:
    """A rank or a step: -1 or above, and no text, no fraction."""
    if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value <= LARGEST_COUNT:
        raise ValueError(f"{shortened(repr(value))} is no whole number from -1")
    return value
