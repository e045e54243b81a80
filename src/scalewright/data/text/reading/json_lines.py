"""Documents of JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scalewright.data.text.pipeline_file import ReadStep
from scalewright.data.text.reading.documents import NO_TEXT, NOT_JSON, TOO_LONG, ReadTally, TextDocument, decoded
from scalewright.data.text.reading.streams import lines, opened


def read_json_lines(
    path: Path, step: ReadStep, tally: ReadTally, *, start: int = 0, stop: int | None = None
) -> Iterator[TextDocument]:
    """Documents whose lines begin between `start` and `stop`."""
    with opened(path) as stream:
        for position, line in lines(stream, max_bytes=step.max_document, start=start, stop=stop):
            place = f"{path}:{position}"
            if line is None:
                tally.report(TOO_LONG, place)
                continue
            tally.read_bytes += len(line) + 1
            if line.strip():
                document = from_json(line, step, tally, place)
                if document is not None:
                    yield document


def from_json(content: bytes, step: ReadStep, tally: ReadTally, place: str) -> TextDocument | None:
    """The document of one JSON object; None, and counted, where there is none."""
    try:
        row: Any = json.loads(content)
    except UnicodeDecodeError:
        row = _parsed(decoded(content, tally, place), tally, place)
    except (ValueError, RecursionError):
        row = None
        tally.report(NOT_JSON, place)
    if row is None:
        return None
    text = row.get(step.text_field) if isinstance(row, dict) else None
    if not isinstance(text, str):
        tally.report(NO_TEXT, place)
        return None
    url = row.get(step.url_field)
    return TextDocument(_without_surrogates(text, tally, place), url if isinstance(url, str) else "", place)


def _parsed(text: str, tally: ReadTally, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        tally.report(NOT_JSON, place)
        return None


def _without_surrogates(text: str, tally: ReadTally, place: str) -> str:
    """JSON may hold halves of a character (\\ud83d), which no UTF-8 file can."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return decoded(text.encode("utf-8", errors="surrogatepass"), tally, place)
    return text
