"""Documents of JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scalewright.data.text.pipeline_file import ReadStep
from scalewright.data.text.reading.documents import NO_TEXT, NOT_JSON, TOO_LONG, ReadTally, TextDocument, decoded
from scalewright.data.text.reading.streams import LongPiece, byte_unit, lines, opened


def read_json_lines(
    path: Path, step: ReadStep, tally: ReadTally, *, start: int = 0, stop: int | None = None
) -> Iterator[TextDocument]:
    """Documents whose lines begin between `start` and `stop`."""
    unit = byte_unit(path)
    with opened(path) as stream:
        for position, line in lines(stream, max_bytes=step.max_document, start=start, stop=stop):
            place = f"{path} at byte {position}{unit}"
            if isinstance(line, LongPiece):
                tally.report(TOO_LONG, place, byte=position, content=line.head, num_bytes=line.num_bytes)
                continue
            tally.read_bytes += len(line) + 1
            if line.strip():
                document = from_json(line, step, tally, place, byte=position)
                if document is not None:
                    yield document


def from_json(
    content: bytes, step: ReadStep, tally: ReadTally, place: str, *, byte: int | None = None
) -> TextDocument | None:
    """The document of one JSON object; None, and counted, where there is none."""
    try:
        row = _parsed(content, tally, place)
    except (ValueError, RecursionError) as error:
        tally.report(NOT_JSON, place, byte=byte, content=content, error=str(error))
        return None
    text = row.get(step.text_field) if isinstance(row, dict) else None
    if not isinstance(text, str):
        tally.report(NO_TEXT, place, byte=byte, content=content)
        return None
    url = row.get(step.url_field)
    return TextDocument(_without_surrogates(text, tally, place), url if isinstance(url, str) else "", place)


def _parsed(content: bytes, tally: ReadTally, place: str) -> Any:
    try:
        return json.loads(content)
    except UnicodeDecodeError:
        return json.loads(decoded(content, tally, place))


def _without_surrogates(text: str, tally: ReadTally, place: str) -> str:
    """JSON may hold halves of a character (\\ud83d), which no UTF-8 file can."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return decoded(text.encode("utf-8", errors="surrogatepass"), tally, place)
    return text
