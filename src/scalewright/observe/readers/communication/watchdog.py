"""Lines of PyTorch's watchdogs and barriers: which collective ran out of time, and how far the rank came."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import ClassVar

from scalewright import units
from scalewright.observe.evidence.facts import Happening, HappeningKind
from scalewright.observe.readers.reader import Item, LineReader
from scalewright.observe.readers.source import Line

_WHO = re.compile(
    r"\[(?:PG (?:ID )?(?P<group>[^\]]*?) )?(?:GUID (?P<guid>\S+) )?Rank (?P<rank>\d{1,15})\]"
)  # [Rank 4], [PG 1 Rank 0], [PG ID 0 PG GUID 0(default_pg) Rank 2]
_WORK = re.compile(
    r"Work(?:NCCL|Gloo|\w+)\((?P<fields>(?:[^()]|\([^()]*\))*)\)"
    r"(?: (?:ran|is running) for (?P<ms>\d{1,15}) milliseconds)?"
)
_FIELD = re.compile(r"(SeqNum|OpType|NumelIn|NumelOut|TensorShape|Timeout\(ms\))=(\[[^\]]*\]|[^,)]+)")
_LAST = {
    "sequence": re.compile(r"(?:watchdog at work|at work sequence id|Timeout at NCCL work|at NCCL work): (\d{1,15})"),
    "last_enqueued": re.compile(r"[Ll]ast enqueued (?:NCCL )?work: (-?\d{1,15})"),
    "last_completed": re.compile(r"[Ll]ast completed (?:NCCL )?work: (-?\d{1,15})"),
}
_DESYNC = re.compile(
    r"^\s*-? ?\[(?P<rank>\d{1,15})\] (?P<what>(?:finished|joined|not (?:yet )?)[^#]*collective #(?P<number>\d{1,15}).*)"
)
_BARRIER = re.compile(r"Ranks? (?P<ranks>[\d, ]+) failed to pass monitoredBarrier in (?P<ms>\d{1,15}) ms")
_STUCK = re.compile(r"watchdog got stuck for (\d{1,15}) seconds|Heartbeat monitor timed out")
_NAMES = {
    "ALLREDUCE": "all_reduce", "ALLREDUCE_COALESCED": "all_reduce", "ALLGATHER": "all_gather",
    "_ALLGATHER_BASE": "all_gather", "ALLGATHER_COALESCED": "all_gather", "REDUCE_SCATTER": "reduce_scatter",
    "_REDUCE_SCATTER_BASE": "reduce_scatter", "ALLTOALL": "all_to_all", "ALLTOALL_BASE": "all_to_all",
    "BROADCAST": "broadcast", "BARRIER": "barrier", "SEND": "send", "RECV": "recv", "REDUCE": "reduce",
    "GATHER": "gather", "SCATTER": "scatter", "COALESCED": "coalesced", "RECVANYSOURCE": "recv",
}  # fmt: skip


class WatchdogReader(LineReader):
    """A timeout is kept once for each rank and collective, although the watchdog says it several times."""

    kind: ClassVar[str] = "pytorch watchdog"
    hints: ClassVar[tuple[str, ...]] = (
        "atchdog", "monitoredBarrier", "collective #", "Detected mismatch between collectives", "Timeout at NCCL work",
        "due to a collective timeout", "taking the entire process down", "Heartbeat monitor timed out",
    )  # fmt: skip

    def __init__(self) -> None:
        self._seen: set[tuple[object, ...]] = set()
        self._held: tuple[Line, str] | None = None

    def take(self, line: Line) -> Iterable[Item]:
        if self._held is not None:
            (begun, start), self._held, self.is_open = self._held, None, False
            if _WHO.search(line.raw) is None:
                return self._of(begun, start + line.text)
            return (*self._of(begun, start), *self.take(line))
        if _is_wrapped(line.raw):
            self._held, self.is_open = (line, line.raw), True
            return ()
        return self._of(line, line.raw)

    def end(self) -> Iterable[Item]:
        held, self._held = self._held, None
        return () if held is None else self._of(*held)

    def _of(self, line: Line, raw: str) -> Iterable[Item]:
        text = line.message if raw is line.raw else line.prefix.message(raw)
        who = _WHO.search(raw)
        rank = int(who["rank"]) if who else line.rank
        values: dict[str, float | str] = {}
        if who and (who["group"] or who["guid"]):
            values["group"] = (who["guid"] or who["group"]).replace("PG GUID ", "").strip()
        kind = _kind(raw, text, values)
        if kind is None:
            return ()
        if (match := _DESYNC.match(text)) and kind == "stalled":
            rank = int(match["rank"])
            values["sequence"] = float(match["number"])
        key = (kind, rank, values.get("sequence"), values.get("group"), "last_enqueued" in values)
        if rank is not None and key in self._seen:
            return ()
        self._seen.add(key)
        return (Happening(
            kind=kind, spot=line.spot, message=text[:800], at_s=line.at_s, rank=rank, host=line.host, values=values,
        ),)  # fmt: skip


def _is_wrapped(raw: str) -> bool:
    """Whether a terminal or a pager broke the line: the rest stands in the next one."""
    if "caught collective operation timeout" in raw:
        return "milliseconds" not in raw
    return raw.rstrip().endswith(("timeout) detected", "timeout) detected by watchdog at"))


def _kind(text: str, message: str, values: dict[str, float | str]) -> HappeningKind | None:
    """What the line is; its numbers go into `values`."""
    for name, pattern in _LAST.items():
        if match := pattern.search(text):
            values[name] = float(match[1])
    if "ollective operation timeout" in text and (work := _WORK.search(text)):
        values.update(_work_values(work))
        return "collective_timeout"
    if barrier := _BARRIER.search(text):
        values["missing_ranks"] = ",".join(re.findall(r"\d+", barrier["ranks"]))
        values["timeout_s"] = float(barrier["ms"]) * units.MILLI
        values["collective"] = "barrier"
        return "collective_timeout"
    if "Detected mismatch between collectives" in text:
        values["mismatch"] = "yes"
        return "collective_abort"
    if stuck := _STUCK.search(text):
        values.update({"waited_s": float(stuck[1])} if stuck[1] else {})
        return "stalled"
    if _DESYNC.match(message):
        return "stalled" if "but didn't join" in text else "collective_abort"
    if "due to a collective timeout" in text or "Timeout at NCCL work" in text:
        return "collective_timeout" if "sequence" in values else "collective_abort"
    if "last_enqueued" in values or "taking the entire process down" in text:
        return "collective_abort"
    return _kind_of_exception(text)


def _kind_of_exception(text: str) -> HappeningKind | None:
    """`Process group watchdog thread terminated with exception: ...`, by what it names."""
    if "terminated with exception" not in text:
        return None
    lower = text.lower()
    if "cuda error" in lower or "hip error" in lower:
        return "device_out_of_memory" if "out of memory" in lower else "device_error"
    return "connection_lost" if "remote process" in lower or "network error" in lower else "collective_abort"


def _work_values(work: re.Match[str]) -> dict[str, float | str]:
    fields = dict(_FIELD.findall(work["fields"]))
    values: dict[str, float | str] = {"waited_s": float(work["ms"]) * units.MILLI} if work["ms"] else {}
    operation = fields.get("OpType", "").strip()
    if operation:
        values["collective"] = _NAMES.get(operation, operation.lower())
    for name, field, factor in (
        ("sequence", "SeqNum", 1.0), ("num_elements", "NumelIn", 1.0), ("timeout_s", "Timeout(ms)", units.MILLI),
    ):  # fmt: skip
        if fields.get(field, "").strip().isdigit():
            values[name] = float(fields[field]) * factor
    return values
