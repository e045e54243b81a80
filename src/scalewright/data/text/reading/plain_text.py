"""Documents of plain text files: a file, a line or a paragraph each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from scalewright.data.text.pipeline_file import ReadStep
from scalewright.data.text.reading.aside import HEAD_BYTES
from scalewright.data.text.reading.documents import TOO_LONG, ReadTally, TextDocument, decoded
from scalewright.data.text.reading.streams import LongPiece, byte_unit, is_compressed, lines, opened


def read_plain_text(
    path: Path, step: ReadStep, tally: ReadTally, *, start: int = 0, stop: int | None = None
) -> Iterator[TextDocument]:
    """Documents of one file. `start` and `stop` are for documents that are lines."""
    if step.text_unit == "line":
        yield from _by_line(path, step, tally, start, stop)
    elif step.text_unit == "paragraph":
        yield from _by_paragraph(path, step, tally)
    else:
        with opened(path) as stream:
            content = stream.read(step.max_document + 1)
        if len(content) > step.max_document:
            num_bytes = len(content) if is_compressed(path) else path.stat().st_size
            tally.report(TOO_LONG, str(path), byte=0, content=content[:HEAD_BYTES], num_bytes=num_bytes)
            return
        tally.read_bytes += len(content)
        yield TextDocument(decoded(content, tally, str(path)), "", str(path))


def _by_line(path: Path, step: ReadStep, tally: ReadTally, start: int, stop: int | None) -> Iterator[TextDocument]:
    unit = byte_unit(path)
    with opened(path) as stream:
        for position, line in lines(stream, max_bytes=step.max_document, start=start, stop=stop):
            place = f"{path} at byte {position}{unit}"
            if isinstance(line, LongPiece):
                tally.report(TOO_LONG, place, byte=position, content=line.head, num_bytes=line.num_bytes)
                continue
            tally.read_bytes += len(line) + 1
            if line.strip():
                yield TextDocument(decoded(line, tally, place), "", place)


def _by_paragraph(path: Path, step: ReadStep, tally: ReadTally) -> Iterator[TextDocument]:
    """Paragraphs end at empty lines."""
    parts: list[bytes] = []
    first, num_bytes = 0, 0
    with opened(path) as stream:
        for position, line in lines(stream, max_bytes=step.max_document):
            if isinstance(line, LongPiece):
                _report_long(tally, path, position, line.head, line.num_bytes)
                parts, num_bytes = [], 0
                continue
            tally.read_bytes += len(line) + 1
            if num_bytes + len(line) > step.max_document:
                _report_long(tally, path, first, b"\n".join(parts)[:HEAD_BYTES], num_bytes + len(line))
                parts, num_bytes = [], 0
            elif line.strip():
                first = first if parts else position
                parts.append(line)
                num_bytes += len(line) + 1
            elif parts:
                yield _paragraph(parts, tally, path, first)
                parts, num_bytes = [], 0
    if parts:
        yield _paragraph(parts, tally, path, first)


def _paragraph(parts: list[bytes], tally: ReadTally, path: Path, first: int) -> TextDocument:
    place = f"{path} at byte {first}{byte_unit(path)}"
    return TextDocument(decoded(b"\n".join(parts), tally, place), "", place)


def _report_long(tally: ReadTally, path: Path, position: int, head: bytes, num_bytes: int) -> None:
    tally.report(
        TOO_LONG, f"{path} at byte {position}{byte_unit(path)}", byte=position, content=head, num_bytes=num_bytes
    )
