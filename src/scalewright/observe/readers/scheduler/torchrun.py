"""Lines of torchrun and torchelastic: which rank failed first, with which exit code, and who was stopped after it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import ClassVar

from scalewright.observe.evidence.facts import Happening, HappeningKind, Spot
from scalewright.observe.readers.prefixes import time_in
from scalewright.observe.readers.reader import Item, LineReader
from scalewright.observe.readers.source import Line

_FIELD = re.compile(r"^\s+(?P<name>time|host|rank|exitcode|error_file|traceback)\s*: ?(?P<value>.*)$")
_FAILED = re.compile(
    r"failed \(exitcode: (?P<code>-?\d{1,15})\) local_rank: (?P<rank>\d{1,15}) \(pid: (?P<pid>\d{1,15})\)"
)
_CLOSING = re.compile(r"Sending process (?P<pid>\d{1,15}) closing signal (?P<signal>SIG\w+)")
_RECEIVED = re.compile(r"Signal (?P<number>-?\d{1,15}) \((?P<name>SIG\w+)\) received by PID (?P<pid>\d{1,15})")
_GOT = re.compile(
    r"[Rr]eceived (?:signal )?(?P<signal>SIG(?:TERM|INT|USR1|USR2|HUP))\b(?::? \(?(?P<number>\d{1,3})\)?)?"
    r"|Received (?:Signals\.(?P<name>SIG\w+)|(?P<death>\d{1,3})) death signal"
)
"""Lightning's handler, programs that say it themselves, and torchelastic's agent."""
_ROOT = "Root Cause (first observed failure)"
_BLOCK_END = re.compile(r"^\s*={10,}\s*$")
_FATAL = re.compile(r"Fatal Python error: (?P<what>.+)|\*\*\* Process received signal \*\*\*")
_SIGNAL_WORDS = {
    "Segmentation fault": 11,
    "Aborted": 6,
    "Bus error": 7,
    "Floating point exception": 8,
    "Illegal instruction": 4,
}


class TorchrunReader(LineReader):
    """The summary's first cause is marked with `is_first`; its times are those of the agent."""

    kind: ClassVar[str] = "torchrun"
    hints: ClassVar[tuple[str, ...]] = (
        _ROOT, "Failures:", "failed (exitcode:", "closing signal", "Fatal Python error", "eceived SIG",
        "eceived signal SIG", "death signal",
    )  # fmt: skip

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}
        self._spot: Spot | None = None
        self._is_root = False

    def take(self, line: Line) -> Iterable[Item]:
        text = line.text
        if match := _FAILED.search(text):
            yield self._exit(line.spot, int(match["code"]), at_s=line.at_s, values={
                "local_rank": float(match["rank"]), "pid": float(match["pid"]),
            }, message=match[0])  # fmt: skip
        elif match := _CLOSING.search(text):
            yield Happening(
                kind="signal", spot=line.spot, message=match[0], at_s=line.at_s,
                values={"signal": match["signal"], "pid": float(match["pid"])},
            )  # fmt: skip
        elif match := _GOT.search(text):
            yield Happening(
                kind="signal", spot=line.spot, message=match[0], at_s=line.at_s, rank=line.rank,
                values={"signal": match["signal"] or match["name"] or match["death"]},
            )  # fmt: skip
        elif match := _FATAL.search(text):
            word = next((word for word in _SIGNAL_WORDS if word in (match["what"] or "")), "")
            values: dict[str, float | str] = {"signal": float(_SIGNAL_WORDS[word])} if word else {}
            yield Happening(
                kind="killed" if word else "exited", spot=line.spot, message=match[0], at_s=line.at_s, rank=line.rank,
                values=values,
            )  # fmt: skip
        elif text.strip() in (f"{_ROOT}:", "Failures:"):
            yield from self._flushed()
            self.is_open, self._is_root = True, text.strip() != "Failures:"
        elif self.is_open:
            yield from self._in_block(line, text)

    def end(self) -> Iterable[Item]:
        return self._flushed()

    def _in_block(self, line: Line, text: str) -> Iterator[Happening]:
        if match := _FIELD.match(text):
            if not self._fields:
                self._spot = line.spot
            self._fields[match["name"]] = match["value"].strip()
        elif re.match(r"^\s*\[\d+\]:\s*$", text):
            yield from self._flushed()
        elif _BLOCK_END.match(text):
            yield from self._flushed()
            self.is_open = False

    def _flushed(self) -> Iterator[Happening]:
        fields, spot = self._fields, self._spot
        self._fields = {}
        if spot is None or "exitcode" not in fields:
            return
        code = re.match(r"-?\d{1,9}", fields["exitcode"])
        rank = re.match(r"\d{1,9}", fields.get("rank", ""))
        words = fields.get("traceback", "")
        words = "" if words.startswith("To enable traceback") else words
        values: dict[str, float | str] = {"is_first": 1.0} if self._is_root else {}
        if signal := _RECEIVED.search(words):
            values["signal"] = float(abs(int(signal["number"])))
        yield self._exit(
            spot, int(code[0]) if code else None, at_s=time_in(fields.get("time", "").replace("_", " ")),
            rank=int(rank[0]) if rank else None, host=fields.get("host", ""), values=values,
            message=words or f"exitcode {fields['exitcode']}",
        )  # fmt: skip

    def _exit(
        self, spot: Spot, code: int | None, *, message: str, values: dict[str, float | str], at_s: float | None = None,
        rank: int | None = None, host: str = "",
    ) -> Happening:  # fmt: skip
        kind: HappeningKind = "exited"
        if code is not None:
            values["exit_code"] = float(code)
            if code < 0:
                values.setdefault("signal", float(-code))
                kind = "killed"
        return Happening(kind=kind, spot=spot, message=message, at_s=at_s, rank=rank, host=host, values=values)
