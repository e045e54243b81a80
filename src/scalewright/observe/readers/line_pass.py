"""The one pass over a text: every line reader gets the lines that have one of its hints.

Hints are searched in blocks of megabytes, so that lines without any cost almost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from scalewright.observe.evidence.evidence import Evidence, SourceFact
from scalewright.observe.readers.reader import LineReader, add_items
from scalewright.observe.readers.source import Block, Source

UNKNOWN_TEXT = "unknown text"


class LinePass:
    """Feeds the lines of one log, which may be several rotated files, to line readers."""

    def __init__(self, readers: Sequence[LineReader]) -> None:
        self.readers = readers
        hints: dict[bytes, list[int]] = {}
        for index, reader in enumerate(readers):
            for hint in dict.fromkeys(reader.hints):
                hints.setdefault(hint.encode(), []).append(index)
        self._hints = [(hint, tuple(indexes)) for hint, indexes in hints.items()]
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
            num = add_items(reader.end(), into)
            self._counts[index] += num
            if num and into.sources:
                self._amend(into, reader.kind, num)

    def _read_block(self, block: Block, into: Evidence) -> None:
        hits = self._hits(block)
        starts = sorted(hits)
        position = 0
        for start in starts:
            self._follow(block, position, start, into)
            position = self._take(block, start, hits[start], into)
        self._follow(block, position, len(block.data), into)

    def _hits(self, block: Block) -> dict[int, set[int]]:
        """Readers by the start of a line that has one of their hints."""
        data = block.data
        hits: dict[int, set[int]] = {}
        for hint, indexes in self._hints:
            position = data.find(hint)
            while position >= 0:
                start = data.rfind(b"\n", 0, position) + 1
                known = hits.get(start)
                if known is None:
                    hits[start] = set(indexes)
                else:
                    known.update(indexes)
                end = data.find(b"\n", position)
                position = data.find(hint, end) if end >= 0 else -1
        return hits

    def _follow(self, block: Block, position: int, until: int, into: Evidence) -> None:
        """Lines without hints go to readers that are in the middle of a record."""
        while self._open and position < until:
            position = self._take(block, position, (), into)

    def _take(self, block: Block, start: int, indexes: set[int] | tuple[int, ...], into: Evidence) -> int:
        """Give one line to these readers and to open ones; where the next line starts."""
        end = block.end_of(start)
        line = block.line(start, end)
        for index in sorted(self._open.union(indexes)) if self._open else indexes:
            reader = self.readers[index]
            items = reader.take(line)
            if items:
                self._counts[index] += add_items(items, into)
            if reader.is_open:
                self._open.add(index)
            else:
                self._open.discard(index)
        return end + 1

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
