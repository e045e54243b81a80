"""The one pass over a text: every line reader gets the lines that have one of its hints.

Hints are searched in blocks of megabytes, so that lines without any cost almost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from scalewright.observe.evidence.evidence import Evidence, SourceFact
from scalewright.observe.readers.hints import HintTable
from scalewright.observe.readers.reader import LineReader, add_items
from scalewright.observe.readers.source import Block, Line, Source

UNKNOWN_TEXT = "unknown text"


UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What values that no program writes can raise in a reader: the line is left out, and counted as a problem."""
MOST_READ_CHARACTERS = 32_000
"""Longer lines are no reports of programs: only readers of JSON get them, since expressions would take minutes."""


def _taken(reader: LineReader, line: Line, into: Evidence) -> int:
    """Give a line to a reader; how many facts it has. Content never raises."""
    if line.end - line.start > MOST_READ_CHARACTERS and not reader.takes_long_lines:
        return 0
    try:
        return add_items(reader.take(line), into)
    except UNREADABLE as error:
        line.source.problem(f"line {line.number} could not be read as {reader.kind}: {type(error).__name__}: {error}")
        return 0


class LinePass:
    """Feeds the lines of one log, which may be several rotated files, to line readers."""

    def __init__(self, readers: Sequence[LineReader]) -> None:
        self.readers = readers
        hints: dict[bytes, list[int]] = {}
        for index, reader in enumerate(readers):
            for hint in dict.fromkeys(reader.hints):
                hints.setdefault(hint.encode(), []).append(index)
        self._hints = HintTable({hint: tuple(indexes) for hint, indexes in hints.items()})
        self._counts = [0] * len(readers)
        self._open: set[int] = set()

    def read(self, source: Source, into: Evidence) -> None:
        """One file of the log; its `SourceFact` names the readers that understood something."""
        before = list(self._counts)
        for block in source.blocks():
            self._read_block(block, into)
        self._note(source, into, before)

    def end(self, into: Evidence) -> None:
        """What readers still hold after the last file."""
        for index, reader in enumerate(self.readers):
            num = self._end_of(reader, into)
            self._counts[index] += num
            if num and into.sources:
                self._amend(into, reader.kind, num)

    def _end_of(self, reader: LineReader, into: Evidence) -> int:
        try:
            return add_items(reader.end(), into)
        except UNREADABLE as error:
            into.notes.append(f"the end of a {reader.kind} could not be read: {type(error).__name__}: {error}")
            return 0

    def _read_block(self, block: Block, into: Evidence) -> None:
        position = 0
        for start, end, indexes in self._hints.lines(block):
            self._follow(block, position, start, into)
            self._take(block.line(start, end), indexes, into)
            position = end + 1
        self._follow(block, position, len(block.data), into)

    def _follow(self, block: Block, position: int, until: int, into: Evidence) -> None:
        """Lines without hints go to readers that are in the middle of a record."""
        while self._open and position < until:
            end = block.end_of(position)
            self._take(block.line(position, end), set(), into)
            position = end + 1

    def _take(self, line: Line, indexes: set[int], into: Evidence) -> None:
        """Give one line to these readers and to open ones, in their order."""
        for index in sorted(indexes | self._open):
            reader = self.readers[index]
            if reader.is_fallback and line.is_taken:
                continue
            num = _taken(reader, line, into)
            if num:
                line.is_taken = True
                self._counts[index] += num
            if reader.is_open:
                self._open.add(index)
            else:
                self._open.discard(index)

    def _note(self, source: Source, into: Evidence, before: list[int]) -> None:
        gained = {
            reader.kind: count - old
            for reader, count, old in zip(self.readers, self._counts, before, strict=True)
            if count > old
        }
        kinds = sorted(gained, key=lambda kind: -gained[kind])
        into.sources.append(SourceFact(
            file=source.name, kind=" + ".join(kinds) or UNKNOWN_TEXT, num_lines=source.num_lines,
            num_facts=sum(gained.values()), problem="; ".join(source.problems),
        ))  # fmt: skip

    def _amend(self, into: Evidence, kind: str, num: int) -> None:
        last = into.sources[-1]
        kinds = [] if last.kind == UNKNOWN_TEXT else last.kind.split(" + ")
        into.sources[-1] = SourceFact(
            file=last.file, kind=" + ".join(dict.fromkeys([*kinds, kind])), num_lines=last.num_lines,
            num_facts=last.num_facts + num, problem=last.problem,
        )  # fmt: skip
