"""Documents of WARC and WET files: texts of a crawl, and pages of which only the text is kept."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import BinaryIO

from scalewright.data.text.pipeline_file import ReadStep
from scalewright.data.text.reading.aside import HEAD_BYTES
from scalewright.data.text.reading.documents import CUT_OFF, TOO_LONG, ReadTally, TextDocument, decoded
from scalewright.data.text.reading.streams import BLOCK_BYTES, LongPiece, opened

MAX_HEADER_BYTES = 65_536
HIDDEN = frozenset({"script", "style", "noscript", "template", "svg", "head"})
BLOCKS = frozenset(
    "p div br li ul ol h1 h2 h3 h4 h5 h6 tr table section article header footer blockquote pre dd dt".split()  # noqa: SIM905
)
VOID = frozenset({"br", "hr", "img", "input", "link", "meta", "wbr"})


def read_warc(path: Path, step: ReadStep, tally: ReadTally) -> Iterator[TextDocument]:
    """The text of each conversion record (WET) and of each HTML page of a response record (WARC)."""
    with opened(path) as stream:
        number = 0
        while (header := _header(stream)) is not None:
            number += 1
            place = f"{path} record {number}"
            length = header.get("content-length", "")
            if not length.isdigit():
                tally.report(CUT_OFF, place, error="a record without Content-Length")
                return
            body = _body(stream, int(length), step.max_document)
            if isinstance(body, LongPiece):
                tally.report(TOO_LONG, place, content=body.head, num_bytes=body.num_bytes)
                continue
            tally.read_bytes += len(body)
            document = _document(header, body, tally, place)
            if document is not None:
                yield document


def _header(stream: BinaryIO) -> dict[str, str] | None:
    """The named fields of the next record; None at the end."""
    line = stream.readline(MAX_HEADER_BYTES)
    while line in (b"\r\n", b"\n"):
        line = stream.readline(MAX_HEADER_BYTES)
    if not line:
        return None
    fields: dict[str, str] = {}
    while (line := stream.readline(MAX_HEADER_BYTES)) not in (b"\r\n", b"\n", b""):
        name, _, value = line.decode("utf-8", errors="replace").partition(":")
        fields[name.strip().lower()] = value.strip()
    return fields


def _body(stream: BinaryIO, num_bytes: int, max_bytes: int) -> bytes | LongPiece:
    if num_bytes <= max_bytes:
        return stream.read(num_bytes)
    head, left = stream.read(HEAD_BYTES), num_bytes - HEAD_BYTES
    while left > 0:
        block = stream.read(min(left, BLOCK_BYTES))
        if not block:
            break
        left -= len(block)
    return LongPiece(head, num_bytes)


def _document(header: dict[str, str], body: bytes, tally: ReadTally, place: str) -> TextDocument | None:
    url = header.get("warc-target-uri", "").strip("<>")
    kind = header.get("warc-type", "")
    if kind == "conversion":
        return TextDocument(decoded(body, tally, place), url, place)
    if kind != "response":
        return None
    head, _, content = body.partition(b"\r\n\r\n")
    media = re.search(rb"^content-type:\s*([^\r\n]*)", head, re.IGNORECASE | re.MULTILINE)
    words = media.group(1).decode("latin-1").lower() if media else ""
    if "html" not in words and "text/plain" not in words:
        return None
    charset = re.search(r"charset=([\w-]+)", words)
    try:
        page = content.decode(charset.group(1)) if charset else decoded(content, tally, place)
    except (LookupError, UnicodeDecodeError):
        page = decoded(content, tally, place)
    return TextDocument(text_of_page(page) if "html" in words else page, url, place)


class _TextOfPage(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.hidden: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002  its signature
        if tag == "body":
            self.hidden.clear()  # many pages do not close their head
        elif tag in HIDDEN:
            self.hidden.append(tag)
        elif tag in BLOCKS:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in self.hidden:
            del self.hidden[self.hidden.index(tag) :]
        elif tag in BLOCKS and tag not in VOID:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.parts.append(data)


def text_of_page(page: str) -> str:
    """The visible text of an HTML page: a line for each block, without scripts and styles."""
    parser = _TextOfPage()
    parser.feed(page)
    parser.close()
    rows = (" ".join(row.split()) for row in "".join(parser.parts).split("\n"))
    return "\n".join(row for row in rows if row)
