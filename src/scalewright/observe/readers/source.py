"""A file as a stream of clean lines, whatever it is packed in.

Bytes are unpacked (gzip, bzip2, xz, by content), colours are removed, and redraws of a progress bar are dropped. That
happens for a block of megabytes at a time. A line is decoded, and its prefixes are read, when somebody looks at it.
"""

from __future__ import annotations

import bz2
import lzma
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal, Protocol

from scalewright import units
from scalewright.errors import DocumentError
from scalewright.observe.evidence.facts import MOST_EXCERPT, Spot
from scalewright.observe.readers.prefixes import Prefix, parsed_prefix, time_in
from scalewright.records.plain_file import open_plain

HEAD_BYTES = 64 * units.KIB
BLOCK_BYTES = 4 * units.MIB
MOST_LINE_BYTES = units.MIB
"""The rest of a longer line is left out."""
MOST_EXPANDED_BYTES = 16 * units.GIB
"""A packed file is read up to here."""
MOST_EXPANSION = 400
"""A packed file that grows more than this, over `LEAST_BOMB_BYTES`, is no log: text shrinks 5 to 100 times."""
LEAST_BOMB_BYTES = 256 * units.MIB

_COLOUR = re.compile(rb"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[()][0-9A-B])")
_BARE_COLOUR = re.compile(rb"(?:\^\[|\\u001b|\\x1b|\\033|\\e|\xef\xbf\xbd|\xe2\x90\x9b)?\[(?:\d{1,3}(?:;\d{1,3})*)?m")
"""A colour whose escape character was lost or spelled out when the log was copied."""
_LOST_ESCAPES = (b"[0m", b"[39m", b"[m")


class _Unpacker(Protocol):
    def decompress(self, data: bytes, max_length: int = ..., /) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHead:
    """The beginning of a file, as readers look at it to recognise it."""

    raw: bytes
    """At most `HEAD_BYTES`, unpacked."""
    size_bytes: int
    """Of the file as it lies on the disk."""
    name: str
    """For messages only."""

    @property
    def text(self) -> str:
        return self.raw.decode("utf-8", "replace")

    @property
    def is_text(self) -> bool:
        """Few control characters. Zero bytes in a row are holes that a crash left in a log: they do not count."""
        without = _HOLES.sub(b"", self.raw)
        if b"\0" in without or not without:
            return False
        odd = len(without.translate(None, _TEXT_BYTES))
        return odd <= len(without) // 50


_HOLES = re.compile(rb"\0{16,}")
_TEXT_BYTES = bytes(range(32, 256)) + b"\t\n\r\f\b\x1b\x07"


@dataclass(slots=True)
class SourceFile:
    """A file to read: where it is, what it is called in messages, and what was wrong with it."""

    path: Path
    name: str
    problems: list[str] = field(default_factory=list)
    num_lines: int = 0
    """Lines read so far."""

    def problem(self, sentence: str) -> None:
        """Note why a part of it could not be read, once."""
        if sentence not in self.problems:
            self.problems.append(sentence)

    def head(self) -> FileHead:
        """Its first bytes, unpacked. A file that cannot be opened has none, and a problem."""
        raw = next(self.chunks(HEAD_BYTES), b"")
        try:
            size_bytes = self.path.stat().st_size
        except OSError:
            size_bytes = 0
        return FileHead(raw=raw[:HEAD_BYTES], size_bytes=size_bytes, name=self.name)

    def chunks(self, num_bytes: int = BLOCK_BYTES) -> Iterator[bytes]:
        """Its bytes, unpacked, in pieces. What is wrong with them becomes a problem, never an exception."""
        try:
            with open_plain(self.path) as file:
                yield from _unpacked(file, num_bytes, self)
        except OSError as error:
            self.problem(f"cannot be read: {error.strerror or error}")
        except DocumentError as error:
            self.problem(str(error).removeprefix(f"{self.path}: "))

    def lines(self) -> Iterator[LogLine]:
        """Every line, clean. Readers that take single lines get them from the line pass instead, which is faster."""
        for block in self.blocks():
            start = 0
            while start < len(block.data):
                end = block.end_of(start)
                if end > start:
                    yield block.line(start, end)
                start = end + 1

    def blocks(self) -> Iterator[LineBlock]:
        """Whole lines in pieces of some megabytes, without colours and covered redraws."""
        num_lines = 0
        for data in _whole_lines(self.chunks(), self):
            block = LineBlock(self, _clean(data), num_lines)
            num_lines += block.num_lines
            self.num_lines = num_lines
            yield block


class LineBlock:
    """Clean lines of a source: `data` has a line break for every `\\n` and `\\r`; numbers count only `\\n`."""

    __slots__ = ("_counted", "_numbered", "data", "first", "num_lines", "source")

    def __init__(self, source: SourceFile, data: bytes, first: int) -> None:
        """Of lines after the `first` ones."""
        self.source = source
        self.first = first
        self.num_lines = data.count(b"\n")
        self._numbered = data
        self._counted = (0, first + 1)
        """A position and the number of its line, from which on line breaks are counted."""
        self.data = data.replace(b"\r", b"\n") if b"\r" in data else data

    def start_of(self, position: int) -> int:
        """Where the line at this position begins."""
        return self.data.rfind(b"\n", 0, position) + 1

    def end_of(self, position: int) -> int:
        """Where the line at this position ends."""
        end = self.data.find(b"\n", position)
        return end if end >= 0 else len(self.data)

    def line(self, start: int, end: int) -> LogLine:
        return LogLine(self, start, end)

    def number(self, position: int) -> int:
        """The number of the line at this position, from 1."""
        start, number = self._counted
        if position >= start:
            number += self._numbered.count(b"\n", start, position)
        else:
            number -= self._numbered.count(b"\n", position, start)
        self._counted = (position, number)
        return number


class LogLine:
    """One line, clean: decoded, and freed of prefixes, when somebody looks."""

    __slots__ = ("_at_s", "_number", "_prefix", "_text", "block", "end", "is_taken", "start")

    def __init__(self, block: LineBlock, start: int, end: int) -> None:
        self.block = block
        self.start = start
        self.end = end
        self.is_taken = False
        """Whether a reader understood it."""
        self._number = 0
        self._at_s: float | Literal[False] | None = False
        self._text: str | None = None
        self._prefix: Prefix | None = None

    @property
    def source(self) -> SourceFile:
        return self.block.source

    @property
    def number(self) -> int:
        if not self._number:
            self._number = self.block.number(self.start)
        return self._number

    @property
    def data(self) -> bytes:
        """Its bytes, clean, with prefixes."""
        return self.block.data[self.start : self.end]

    @property
    def raw(self) -> str:
        """The line with its prefixes; wrong UTF-8 is replaced."""
        if self._text is None:
            self._text = self.data.decode("utf-8", "replace")
        return self._text

    @property
    def prefix(self) -> Prefix:
        if self._prefix is None:
            self._prefix = parsed_prefix(self.raw)
        return self._prefix

    @property
    def text(self) -> str:
        """Without prefixes of launchers: ranks, Ray's actors, container runtimes. Logger prefixes stay."""
        length = self.prefix.length
        return self.raw[length:] if length else self.raw

    @property
    def message(self) -> str:
        """Without logger prefixes as well: times, levels, module names."""
        return self.prefix.message(self.raw)

    @property
    def rank(self) -> int | None:
        """Of the launcher's prefix. Some launchers number the ranks of a node, not those of the job."""
        return self.prefix.rank

    @property
    def host(self) -> str:
        return self.prefix.host

    @property
    def actor(self) -> str:
        """Ray's name of the process, such as `TaskRunner`."""
        return self.prefix.actor

    @property
    def at_s(self) -> float | None:
        """The time in the line's beginning; without a zone it is read as UTC."""
        if self._at_s is False:
            self._at_s = time_in(self.raw)
        return self._at_s

    @property
    def spot(self) -> Spot:
        return Spot(file=self.source.name, line=self.number, text=self.raw[:MOST_EXCERPT].rstrip())


def _unpacked(file: BinaryIO, num_bytes: int, source: SourceFile) -> Iterator[bytes]:
    start = file.read(6)
    file.seek(0)
    if start[:2] == b"\x1f\x8b":
        yield from _expanded(file, num_bytes, source, "gzip")
    elif start[:3] == b"BZh":
        yield from _expanded(file, num_bytes, source, "bzip2")
    elif start == b"\xfd7zXZ\0":
        yield from _expanded(file, num_bytes, source, "xz")
    elif start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        yield from _from_utf16(file, num_bytes)
    else:
        while data := file.read(num_bytes):
            yield data


def _unpacker(form: str) -> _Unpacker:
    if form == "gzip":
        return zlib.decompressobj(wbits=31)
    return bz2.BZ2Decompressor() if form == "bzip2" else lzma.LZMADecompressor()


def _expanded(file: BinaryIO, num_bytes: int, source: SourceFile, form: str) -> Iterator[bytes]:
    """Unpacked pieces of at most `num_bytes`, of several members one after another, within the limits."""
    unpacker = _unpacker(form)
    packed = total = 0
    data = b""
    while True:
        if not data:
            data = file.read(256 * units.KIB)
            packed += len(data)
            if not data:
                if not getattr(unpacker, "eof", True):
                    source.problem(f"the {form} data ends in the middle")
                return
        try:
            piece, data = _one_piece(unpacker, data, num_bytes)
        except (zlib.error, OSError, lzma.LZMAError, EOFError, ValueError) as error:
            source.problem(f"broken {form} data after {total} bytes: {error}")
            return
        total += len(piece)
        if total > MOST_EXPANDED_BYTES or (total > LEAST_BOMB_BYTES and total > MOST_EXPANSION * packed):
            source.problem(
                f"the {form} data grows {total // max(1, packed)} times: reading stopped after {total} bytes"
            )
            return
        if piece:
            yield piece
        if getattr(unpacker, "eof", False):
            data = data.lstrip(b"\0") or file.read(256 * units.KIB)
            packed += len(data)
            if not data:
                return
            unpacker = _unpacker(form)


def _one_piece(unpacker: _Unpacker, data: bytes, num_bytes: int) -> tuple[bytes, bytes]:
    """What the next bytes unpack to, and the bytes that were not used yet."""
    piece = unpacker.decompress(data, num_bytes)
    if getattr(unpacker, "eof", False):
        return piece, getattr(unpacker, "unused_data", b"")
    if hasattr(unpacker, "unconsumed_tail"):
        return piece, unpacker.unconsumed_tail
    rest = b""
    while not getattr(unpacker, "needs_input", True) and len(piece) < num_bytes:
        more = unpacker.decompress(b"", num_bytes - len(piece))
        if not more:
            break
        piece += more
    return piece, rest


def _from_utf16(file: BinaryIO, num_bytes: int) -> Iterator[bytes]:
    import codecs

    decoder = codecs.getincrementaldecoder("utf-16")("replace")
    while data := file.read(num_bytes):
        yield decoder.decode(data).encode("utf-8", "replace")


def _whole_lines(chunks: Iterator[bytes], source: SourceFile) -> Iterator[bytes]:
    """Pieces that end with a line break; lines over the limit are cut."""
    rest = b""
    is_cut = False
    for data in chunks:
        if is_cut:
            end = data.find(b"\n")
            if end < 0:
                continue
            whole, is_cut = rest + data[end:], False
        else:
            whole = rest + data
        end = whole.rfind(b"\n") + 1
        rest = whole[end:]
        if end:
            yield _cut(whole[:end], source)
        if len(rest) > MOST_LINE_BYTES:
            source.problem(f"lines of more than {MOST_LINE_BYTES} bytes are cut")
            # Without its line break: the next piece begins with the one that ends the line.
            rest, is_cut = rest[:MOST_LINE_BYTES], True
    if rest:
        yield _cut(rest + b"\n", source)


def _cut(data: bytes, source: SourceFile) -> bytes:
    """Without the ends of lines over the limit."""
    if len(data) <= MOST_LINE_BYTES:
        return data
    pieces = []
    start = 0
    while start < len(data):
        # The last line break within the limit: everything before it is short enough to be skipped at once.
        end = data.rfind(b"\n", start, start + MOST_LINE_BYTES + 1)
        if end >= 0:
            pieces.append(data[start : end + 1])
            start = end + 1
            continue
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        source.problem(f"lines of more than {MOST_LINE_BYTES} bytes are cut")
        pieces.append(data[start : start + MOST_LINE_BYTES] + b"\n")
        start = end + 1
    return b"".join(pieces)


def _clean(data: bytes) -> bytes:
    """Without colours and without covered redraws; `\\r\\n` becomes `\\n`."""
    if b"\x1b" in data:
        data = _COLOUR.sub(b"", data)
    if any(mark in data for mark in _LOST_ESCAPES):
        data = _BARE_COLOUR.sub(b"", data)
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n")
        if b"\r" in data:
            data = _without_covered(data)
    if b"\b" in data or b"\0" in data:
        data = data.replace(b"\b", b"").replace(b"\0", b"")
    return data


def _without_covered(data: bytes) -> bytes:
    """Without drawings of a progress bar that the next drawing covers, unless they have values (`{` or `=`)."""
    first, *others = data.split(b"\r")
    pieces = [first]
    for piece in others:
        if b"%|" in piece:
            head, _, _ = piece.partition(b"\n")
            cut = pieces[-1].rfind(b"\n") + 1
            covered = pieces[-1][cut:]
            if b"%|" in head and b"{" not in head and b"{" not in covered and b"=" not in covered:
                pieces[-1] = pieces[-1][:cut]
                pieces.append(piece)
                continue
        pieces.append(b"\r")
        pieces.append(piece)
    return b"".join(pieces)


# Short names for readers. The long ones keep the names of classes apart across the project.
Source = SourceFile
Line = LogLine
Head = FileHead
Block = LineBlock
