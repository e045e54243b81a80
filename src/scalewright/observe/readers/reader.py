"""What a reader consists of: one for whole files, one for lines; and what they yield beside facts.

A whole-file reader (`Reader`) takes files whose content it recognises: JSON, XML, pickles, tables.
A line reader (`LineReader`) takes single lines of any text file. One pass feeds all of them, since a job's log holds
several dialects at once. To add either, put its class into `registry.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from scalewright.observe.evidence.evidence import Evidence, Fact
from scalewright.observe.evidence.facts import Happening, Spot, StepFact
from scalewright.observe.readers.source import Head, Line, Source


@dataclass(frozen=True, slots=True)
class Stated:
    """A setting, a version, a variable of the environment or a remark that a line states."""

    name: str
    value: str
    spot: Spot
    room: str = "settings"
    """settings, versions, environment or notes (where `value` is the sentence)."""


Item = Fact | Stated


class Reader(Protocol):
    """Reads whole files of one kind."""

    kind: ClassVar[str]
    """What it reads, such as `kineto trace`."""

    def sees(self, head: Head) -> float:
        """From 0 to 1: how sure it is that the file is of its kind; the surest of all readers above 0.5 takes it."""
        ...

    def read(self, source: Source, into: Evidence) -> None:
        """Stream it, and add facts and settings; what cannot be read goes into `source.problem(...)`."""
        ...


class FolderReader(Protocol):
    """Reads folders that are one thing, such as our run directories."""

    kind: ClassVar[str]

    def sees(self, folder: Path) -> bool:
        """Whether the folder is of its kind: by the content of a file in it."""
        ...

    def read(self, folder: Path, into: Evidence) -> set[Path]:
        """Add what it says; the files below it that nobody else has to read."""
        ...


class LineReader(ABC):
    """Reads lines of one dialect. An instance lives for one file, or for the rotated files of one log."""

    kind: ClassVar[str]
    """What it reads, such as `megatron log`."""
    hints: ClassVar[tuple[str, ...]]
    """Lines with one of these substrings, of four bytes or more, are given to `take`. Rare ones keep the pass fast."""
    is_fallback: ClassVar[bool] = False
    """True: it gets only lines that no other reader took."""
    takes_long_lines: ClassVar[bool] = False
    """True: it also gets lines of more than 32,000 characters, such as JSON documents in one line."""
    is_open: bool = False
    """While true, every line is given to `take`: for records of several lines, such as tracebacks."""

    @abstractmethod
    def take(self, line: Line) -> Iterable[Item]:
        """Facts of this line, or of a record that this line completes. A reader that holds a line's values until
        another line sets `line.is_taken`."""

    def end(self) -> Iterable[Item]:
        """Facts that were still held when the file ended."""
        return ()


_ROOMS: dict[type, str] = {StepFact: "steps", Happening: "happenings"}
"""The most frequent facts, put away without a detour."""


def add_items(items: Iterable[Item], into: Evidence) -> int:
    """Put facts and statements where they belong; how many there were. The first statement of a setting is kept."""
    num = 0
    for item in items:
        num += 1
        room = _ROOMS.get(type(item))
        if room is not None:
            getattr(into, room).append(item)
        elif not isinstance(item, Stated):
            into.add((item,))
        elif item.room == "settings":
            into.settings.setdefault(item.name, (item.value, item.spot))
        elif item.room == "notes":
            if item.value not in into.notes:
                into.notes.append(item.value)
        else:
            texts = into.versions if item.room == "versions" else into.environment
            texts.setdefault(item.name, item.value)
    return num
