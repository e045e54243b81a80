"""Documents of plain text files: a file, a line or a paragraph each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from scalewright.data.text.pipeline_file import ReadStep
from scalewright.data.text.reading.documents import TOO_LONG, ReadTally, TextDocument, decoded
from scalewright.data.text.reading.streams import lines, opened


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
            tally.report(TOO_LONG, str(path))
            return
        tally.read_bytes += len(content)
        yield TextDocument(decoded(content, tally, str(path)), "", str(path))


def _by_line(path: Path, step: ReadStep, tally: ReadTally, start: int, stop: int | None) -> Iterator[TextDocument]:
    with opened(path) as stream:
        for position, line in lines(stream, max_bytes=step.max_document, start=start, stop=stop):
            place = f"{path}:{position}"
            if line is None:
                tally.report(TOO_LONG, place)
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
            tally.read_bytes += 0 if line is None else len(line) + 1
            if line is None or num_bytes + len(line) > step.max_document:
                tally.report(TOO_LONG, f"{path}:{position}")
                parts, num_bytes = [], 0
            elif line.strip():
                first = first if parts else position
                parts.append(line)
                num_bytes += len(line) + 1
            elif parts:
                yield TextDocument(decoded(b"\n".join(parts), tally, f"{path}:{first}"), "", f"{path}:{first}")
                parts, num_bytes = [], 0
    if parts:
        yield TextDocument(decoded(b"\n".join(parts), tally, f"{path}:{first}"), "", f"{path}:{first}")
