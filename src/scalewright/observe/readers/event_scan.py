"""Read the events of a trace one by one from pieces of its JSON, so that memory does not grow with the file.

Kineto writes one object with `traceEvents` between other keys; Chrome's form is a bare list, also without its end.
An event that is no JSON (Kineto writes some: empty values, bare nan) is left out and counted, and reading goes on.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

EVENTS = "traceEvents"
MOST_EVENT_CHARS = 2**20
"""A longer event is no event."""
MOST_VALUE_CHARS = 2**23
"""A longer value beside the events is left out."""
_BETWEEN = re.compile(r"[\s,]*")
_SPACE = re.compile(r"[\s\ufeff]*")
_EVENT = re.compile(r'(?<=[,\[])\s*\{\s*"(?:ph|name|cat|pid|ts|args|tid)"\s*:')
"""The beginning of an event after another one."""
_FLOWS = re.compile(r'(?:[\s,]*+\{\s*+"ph": "[stf]"(?:[^{}"]++|"[^"\\{}]*+")*+\})++')
"""Arrows between events, several in a row. Nothing needs them, and a trace has two for each kernel."""
_EVENTS_KEY = re.compile(r'"traceEvents"\s*:\s*\[')
_BARE = re.compile(r":\s*(-?(?:nan|inf)(?:inity)?)?\s*(?=[,}\]])", re.IGNORECASE)


class BrokenJsonError(ValueError):
    """A value that is no JSON, or longer than the limit."""


@dataclass(slots=True, kw_only=True)
class ScanResult:
    """What a scan read beside the events, and what it could not read. It is complete when the scan has ended."""

    metadata: dict[str, Any] = field(default_factory=dict)
    """Values of the keys beside the events."""
    num_events: int = 0
    num_broken: int = 0
    """Events that are no JSON, also when repaired."""
    is_truncated: bool = False
    has_events_key: bool = False
    num_chars: int = 0
    left_out: list[str] = field(default_factory=list)
    """Keys whose value is no JSON or too long."""


class _Window:
    """The part of the text that is held: everything before `at` is done."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self.text, self.at, self.is_end, self.num_chars = "", 0, False, 0
        self._scan = json.JSONDecoder(strict=False).scan_once  # type: ignore[attr-defined]

    def more(self) -> bool:
        """Append the next piece; False where there is none."""
        if self.is_end:
            return False
        chunk = next(self._chunks, None)
        self.is_end = chunk is None
        piece = self._decode(chunk or b"", self.is_end)
        self.text, self.at = self.text[self.at :] + piece, 0
        self.num_chars += len(piece)
        return bool(piece) or not self.is_end

    def skip(self, pattern: re.Pattern[str]) -> str:
        """Go past what the pattern matches; the character after it, empty at the end."""
        while True:
            match = pattern.match(self.text, self.at)
            if match is not None:
                self.at = match.end()
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.more():
                return ""

    def value(self, *, most_chars: int) -> Any:
        """The JSON value that begins here."""
        while True:
            try:
                value, end = self._scan(self.text, self.at)
            except (StopIteration, ValueError, RecursionError) as error:
                if len(self.text) - self.at > most_chars or not self.more():
                    raise BrokenJsonError(str(error)) from None
                continue
            if end == len(self.text) and isinstance(value, int | float) and self.more():
                continue  # a number may go on in the next piece
            self.at = end
            return value

    def seek(self, pattern: re.Pattern[str], *, after: bool) -> bool:
        """Go to the next match, or past it; False if there is none."""
        keep = 64  # what a match may need of the text before
        while True:
            match = pattern.search(self.text, self.at)
            if match is not None:
                self.at = match.end() if after else match.start()
                return True
            self.at = max(len(self.text) - keep, self.at)
            if not self.more():
                self.at = len(self.text)
                return False


def scan_events(chunks: Iterable[bytes], result: ScanResult) -> Iterator[dict[str, Any]]:
    """Every event but the arrows between events, in the file's order. `result` gets the rest."""
    window = _Window(chunks)
    try:
        opening = window.skip(_SPACE)
        if opening == "[":
            window.at += 1
            result.has_events_key = True
            yield from _list_of_events(window, result)
        elif opening == "{":
            window.at += 1
            yield from _object(window, result)
        else:
            result.is_truncated = not opening
    finally:
        result.num_chars = window.num_chars


def _object(window: _Window, result: ScanResult) -> Iterator[dict[str, Any]]:
    """A whole trace: events beside other keys."""
    while True:
        opening = window.skip(_BETWEEN)
        if opening == "}":
            return
        if not opening:
            result.is_truncated = True
            return
        key: object = ""
        try:
            key = window.value(most_chars=MOST_EVENT_CHARS)
            if window.skip(_SPACE) == ":":
                window.at += 1
            if window.skip(_SPACE) == "[" and key == EVENTS:
                window.at += 1
                result.has_events_key = True
                yield from _list_of_events(window, result)
                if result.is_truncated:
                    return
                continue
            result.metadata[str(key)] = window.value(most_chars=MOST_VALUE_CHARS)
        except BrokenJsonError:
            if window.is_end and window.at + MOST_VALUE_CHARS > len(window.text) and result.has_events_key:
                result.is_truncated = True
                return
            result.left_out.append(str(key)[:80])
            if result.has_events_key or not window.seek(_EVENTS_KEY, after=True):
                result.is_truncated = window.is_end
                return
            result.has_events_key = True
            yield from _list_of_events(window, result)
            if result.is_truncated:
                return


def _list_of_events(window: _Window, result: ScanResult) -> Iterator[dict[str, Any]]:
    while True:
        if flows := _FLOWS.match(window.text, window.at):
            window.at = flows.end()
            result.num_events += flows.group().count("{")
        opening = window.skip(_BETWEEN)
        if opening == "]":
            window.at += 1
            return
        if not opening:
            result.is_truncated = True
            return
        try:
            event = window.value(most_chars=MOST_EVENT_CHARS)
        except BrokenJsonError:
            event = _repaired(window, result)
            if result.is_truncated:
                return
        if isinstance(event, dict):
            result.num_events += 1
            yield event


def _repaired(window: _Window, result: ScanResult) -> Any:
    """The broken event at this place with null for empty values, nan and inf, if that makes it JSON.

    The window is at the next event then, or at the end of the text.
    """
    start = window.at
    match = _EVENT.search(window.text, start + 1)
    if match is None and window.is_end:
        closing = re.compile(r"\}\s*\]").search(window.text, start)
        if closing is None:
            result.is_truncated = True
            window.at = len(window.text)
            return None
        end = closing.start() + 1
    else:
        end = len(window.text) if match is None else match.start()
    text = window.text[start:end].rstrip().rstrip(",").rstrip()
    result.num_broken += 1
    window.at = end
    if match is None and not window.is_end:
        window.seek(_EVENT, after=False)
        return None
    try:
        return json.loads(_BARE.sub(":null", text), strict=False)
    except (ValueError, RecursionError):
        return None
