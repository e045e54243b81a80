"""Python tracebacks, of many ranks at once: the exception that came first, not the ones that it turned into.

A chain is read to its root: what was raised `from` it, what happened while it was handled, what a worker process or a
remote task raised in the first place, and the members of an exception group.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from scalewright import units
from scalewright.errors import QuantityError
from scalewright.observe.evidence.facts import Happening, Spot
from scalewright.observe.readers.reader import Item, LineReader
from scalewright.observe.readers.source import Line

TRACEBACK = "Traceback (most recent call last)"
_CAUSE = "The above exception was the direct cause of the following exception"
_CONTEXT = "During handling of the above exception, another exception occurred"
_IGNORED = "Exception ignored in"
_ALONE = ("Error: ", "Exception: ", 'Error")')
"""People cut logs to the line with the exception, and some launchers print no more."""
_HEADLESS = '", line '
"""Ray prints frames without the line above them."""
_BARE = re.compile(
    r"^(?:[\w.-]{1,64}: )?(?:\"(?:message|py_callstack)\": \")?"
    r"(?P<text>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)(?:\(\w+\))?: \S.*)"
)
"""Nothing but an exception; torchelastic's error handler quotes it in JSON."""
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<name>\S.*))?')
_RICH_FRAME = re.compile(r"^│\s+(?P<file>\S+\.py):(?P<line>\d+) in (?P<name>\S+)")
_EXCEPTION = re.compile(r"^(?P<name>[A-Za-z_][\w.]*(?:\([\w., ]+\))?)(?::(?:\s(?P<message>.*))?)?$")
_EXCEPTION_WORD = re.compile(
    r"(?:Error|Exception|Exit|Interrupt|Timeout|Failure|Fault|Warning|Empty|Full|Traceback|timeout|error)\b"
)
_GROUP_MARK = re.compile(r"^\s*(?:\+-+|[|+])\s?")
_MEMBER = re.compile(r"^\s*\+-[+-]*-+ \d+ -+$")
_LOG_WORDS = {"INFO", "WARNING", "ERROR", "DEBUG", "CRITICAL", "WARN", "FATAL", "NOTE", "Epoch", "Step", "step"}
_WRAPPERS = {"_RemoteTraceback", "RemoteTraceback"}
_CONTROL_FLOW = {
    "KeyError", "AttributeError", "StopIteration", "ImportError", "ModuleNotFoundError", "Empty", "IndexError",
    "LookupError", "NotImplementedError",
}  # fmt: skip
"""Exceptions that programs handle to go another way: what is raised while handling one is the real error."""
_SIGNALLED = re.compile(
    r"(?:\S{1,64} ){0,4}?(?:(?:received|got|caught)(?: the)?(?: signal)? (?:SIG[A-Z]+|Signals\.|\d{1,2}\b)"
    r"|sending process \d+ closing signal|(?:Terminated|Killed|Aborted|Segmentation fault|Bus error)\b[^:]*$)",
    re.IGNORECASE,
)
"""What happened to the program next: no part of the exception's message."""
_PATH = re.compile(r"(?:No such file or directory|Permission denied|No space left on device): ?'([^']+)'")
_OF_MEMORY = re.compile(r"out of memory", re.IGNORECASE)
_SIZE = r"([\d.]+) ?(bytes|B|[KMGT]i?B)"
_MEMORY = {
    "requested_bytes": re.compile(rf"[Tt]ried to allocate {_SIZE}"),
    "total_bytes": re.compile(rf"total capacity of {_SIZE}|{_SIZE} total capacity"),
    "free_bytes": re.compile(rf"of which {_SIZE} is free|{_SIZE} free"),
    "allocated_bytes": re.compile(rf"{_SIZE} is allocated by PyTorch|{_SIZE} already allocated"),
    "reserved_unallocated_bytes": re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated"),
}
"""Sentences of the allocators of PyTorch 1.x and 2.x."""
_LIBRARIES = ("site-packages", "dist-packages", "/lib/python", "<frozen", "<string>", "/torch/", "importlib")
MOST_OPEN_LINES = 400
"""A traceback without an exception after so many lines is cut."""
MOST_SILENT_LINES = 300
"""A rank that wrote nothing for so many lines of others has ended its traceback."""
MOST_MORE_LINES = 6
MOST_MESSAGE = 800
MOST_ALIKE = 64
"""Equal tracebacks of a file: a program that logs the same one for ever adds nothing."""


@dataclass(slots=True)
class _Link:
    """One exception of a chain, and how it follows from the one before."""

    relation: str = "first"
    name: str = ""
    message: list[str] = field(default_factory=list)
    places: list[tuple[str, str, str]] = field(default_factory=list)
    spot: Spot | None = None
    """The line that names the exception."""

    @property
    def text(self) -> str:
        message = " ".join(part.strip() for part in self.message if part.strip())
        return f"{self.name}: {message}"[:MOST_MESSAGE] if message else self.name

    @property
    def place(self) -> str:
        """The innermost line of the user's own code; the innermost of all if there is none."""
        own = [place for place in self.places if not any(part in place[0] for part in _LIBRARIES)]
        file, line, name = (own or self.places or [("", "", "")])[-1]
        return f"{file}:{line} in {name}" if file else ""


@dataclass(slots=True)
class _TracebackRecord:
    """A traceback that is being read."""

    spot: Spot
    rank: int | None
    host: str
    at_s: float | None
    is_benign: bool = False
    links: list[_Link] = field(default_factory=lambda: [_Link()])
    num_lines: int = 0
    last_line: int = 0
    num_more: int = 0
    """Lines after an exception line."""
    is_group: bool = False
    has_ended: bool = False
    """Its exception line was seen; more lines may belong to the message, or continue the chain."""

    @property
    def last(self) -> _Link:
        return self.links[-1]


class TracebackReader(LineReader):
    """Reads tracebacks, one for every rank at a time."""

    kind: ClassVar[str] = "python traceback"
    hints: ClassVar[tuple[str, ...]] = (TRACEBACK, _IGNORED, _HEADLESS, *_ALONE)

    def __init__(self) -> None:
        self._open: dict[int | str | None, _TracebackRecord] = {}
        self._ignored_at: dict[int | str | None, int] = {}
        self._alike: Counter[tuple[str, str]] = Counter()

    def take(self, line: Line) -> Iterable[Item]:
        key = line.rank if line.rank is not None else line.actor or None
        text = line.text.rstrip()
        if _IGNORED in text and TRACEBACK not in text:
            self._ignored_at[key] = line.number
            return
        record = self._open.get(key)
        if record is not None and not self._continues(record, text, line):
            yield from self._closed(key)
            record = None
        for other in [
            one for one, open_one in self._open.items() if line.number - open_one.last_line > MOST_SILENT_LINES
        ]:
            yield from self._closed(other)
        if record is None and TRACEBACK in text:
            self._open[key] = self._begun(line, text, is_benign=line.number - self._ignored_at.get(key, -9) <= 1)
        elif record is None and (bare := _bare_text(line)):
            self._open[key] = self._begun(line, text, is_benign=False)
            _name(self._open[key], bare, line)
        elif record is None and (frame := _FRAME.match(text)):
            self._open[key] = self._begun(line, text, is_benign=False)
            self._open[key].last.places.append((frame["file"], frame["line"], frame["name"] or "?"))
        self.is_open = bool(self._open)

    def end(self) -> Iterable[Item]:
        for key in list(self._open):
            yield from self._closed(key)

    def _begun(self, line: Line, text: str, *, is_benign: bool) -> _TracebackRecord:
        return _TracebackRecord(
            spot=line.spot, rank=line.rank, host=line.host, at_s=line.at_s, is_benign=is_benign,
            is_group="Exception Group Traceback" in text, last_line=line.number,
        )  # fmt: skip

    def _continues(self, record: _TracebackRecord, text: str, line: Line) -> bool:
        """Add a line to a record; False if the record ended before this line."""
        record.num_lines += 1
        if record.num_lines > MOST_OPEN_LINES:
            return False
        record.last_line = line.number
        if record.is_group:
            if text.lstrip()[:1] not in ("|", "+"):
                return False
            if _MEMBER.match(text):
                record.links.append(_Link(relation="member"))
                record.has_ended = False
                return True
            text = _GROUP_MARK.sub("", text)
        if record.has_ended:
            return self._follows(record, text)
        if TRACEBACK in text:
            return not record.last.places and not record.last.name  # a second header without frames between
        frame = _FRAME.match(text) or _RICH_FRAME.match(text)
        if frame:
            record.last.places.append((frame["file"], frame["line"], frame["name"] or "?"))
        elif _is_exception(text) and (record.last.places or record.num_lines > 1 or record.is_group):
            _name(record, text, line)
        return True

    def _follows(self, record: _TracebackRecord, text: str) -> bool:
        """After an exception line: a chain, a remote traceback, or more of the message."""
        relation = _relation(text, record)
        if relation:
            if record.last.name or relation != "traceback":
                record.links.append(_Link(relation="original" if relation == "traceback" else relation))
            record.has_ended = False
            record.num_more = 0
            frame = _FRAME.match(text)
            if frame:
                record.last.places.append((frame["file"], frame["line"], frame["name"] or "?"))
            return True
        record.num_more += 1
        if record.num_more > MOST_MORE_LINES or TRACEBACK in text:
            return False
        if text.strip() in ("", '"""', "'''"):
            return True
        is_more = record.num_more <= MOST_MORE_LINES // 2 or text.startswith((" ", "\t"))
        if is_more and not _looks_logged(text) and not _SIGNALLED.match(text):
            if _is_exception(text) and not text.startswith("nccl"):
                return False
            record.last.message.append(text)
            return True
        return False

    def _closed(self, key: int | str | None) -> Iterator[Happening]:
        record = self._open.pop(key)
        self.is_open = bool(self._open)
        links = [link for link in record.links if link.name and link.name.rsplit(".", 1)[-1] not in _WRAPPERS]
        if not links:
            return
        for root in _roots(links, is_group=record.is_group):
            place = root.place
            self._alike[root.text, place] += 1
            if self._alike[root.text, place] > MOST_ALIKE:
                continue
            values: dict[str, float | str] = {"exception": root.name}
            if place:
                values["place"] = place
            if links[-1] is not root:
                values["final"] = links[-1].text[:200]
            memory = memory_values(root.text)
            if path := _PATH.search(root.text):
                values["path"] = path[1]
            yield Happening(
                kind="device_out_of_memory" if memory else "traceback", spot=root.spot or record.spot,
                message=root.text, at_s=record.at_s, rank=record.rank, host=record.host, values=values | memory,
                is_benign=record.is_benign,
            )  # fmt: skip


def _bare_text(line: Line) -> str:
    """The exception that a line consists of, without quotes and levels; empty if there is none."""
    if not any(hint in line.raw for hint in _ALONE):
        return ""
    match = _BARE.match(line.text.strip()) or _BARE.match(line.message.removeprefix("ERROR: ").strip())
    return match["text"].rstrip('",') if match else ""


def memory_values(text: str) -> dict[str, float | str]:
    """Sizes that an allocator names; empty if the text is not about a device without memory."""
    if not _OF_MEMORY.search(text) or not re.search(r"CUDA|HIP|XPU|NPU|GPU|cuda|OutOfMemoryError", text):
        return {}
    values: dict[str, float | str] = {}
    for name, pattern in _MEMORY.items():
        if match := pattern.search(text):
            number, unit = [group for group in match.groups() if group][:2]
            unit = unit if "i" in unit or unit in ("bytes", "B") else f"{unit[0]}iB"  # PyTorch's MB are MiB
            with contextlib.suppress(ValueError, QuantityError):
                values[name] = units.parse(f"{number.rstrip('.')} {unit}", units.BYTES)
    return values or {"of": "device"}


def _is_exception(text: str) -> bool:
    match = _EXCEPTION.match(text)
    if match is None:
        return False
    last = match["name"].split("(")[0].rsplit(".", 1)[-1]
    if last in _LOG_WORDS or "/" in match["name"]:
        return False
    return bool(_EXCEPTION_WORD.search(match["name"])) or (
        last[:1].isupper() and ("." in match["name"] or len(text) < 60)
    )


def _name(record: _TracebackRecord, text: str, line: Line) -> None:
    match = _EXCEPTION.match(text)
    assert match is not None
    record.last.name = match["name"]
    record.last.message = [match["message"] or ""]
    record.last.spot = line.spot
    record.has_ended = True
    record.at_s = record.at_s if record.at_s is not None else line.at_s


def _relation(text: str, record: _TracebackRecord) -> str:
    """How the next exception of a chain follows; empty if this line begins none."""
    if _CAUSE in text:
        return "cause"
    if _CONTEXT in text:
        return "context"
    if "Original Traceback (most recent call last)" in text:
        return "original"
    if TRACEBACK in text:
        is_pending = not record.last.name and len(record.links) > 1
        is_quoted = record.last.name.rsplit(".", 1)[-1] in _WRAPPERS
        return "traceback" if is_pending or is_quoted else ""
    is_remote = "(" in record.last.name or "ray::" in " ".join(record.last.message)
    return "original" if is_remote and _FRAME.match(text) else ""


def _looks_logged(text: str) -> bool:
    return bool(
        re.match(r".*%\||\s*(?:\[|\d{4}-\d\d|[EWIF]\d{4} |(?:INFO|WARNING|ERROR|DEBUG)\b|srun:|slurmstepd:)", text)
    )


def _roots(links: list[_Link], *, is_group: bool) -> list[_Link]:
    """The exceptions that came first."""
    if is_group:
        members = [link for link in links if "Group" not in link.name]
        return members or links[:1]
    original = [link for link in links if link.relation == "original"]
    if original:
        return original[-1:]
    first = links[0]
    name = first.name.rsplit(".", 1)[-1]
    if len(links) > 1 and links[1].relation == "context" and name in _CONTROL_FLOW:
        return _roots(links[1:], is_group=False)
    return [first]
