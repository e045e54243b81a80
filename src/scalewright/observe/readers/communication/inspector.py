"""Lines of NCCL's inspector plugin: JSON lines of collectives, and Prometheus samples of bus bandwidth."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, ClassVar

from scalewright import units
from scalewright.observe.evidence.facts import Collective
from scalewright.observe.readers.reader import Item, LineReader
from scalewright.observe.readers.source import Line

_SAMPLE = re.compile(
    r"nccl_(?P<what>bus_bandwidth_gbs|collective_exec_time\w*)\{(?P<labels>[^}]*)\}\s+(?P<value>[-\d.e+]+)"
)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")


def operation_name(name: str) -> str:
    """`AllReduce` and `ALLREDUCE` as `all_reduce`."""
    words = _CAMEL.sub("_", name).lower()
    return {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter"}.get(words, words)


class InspectorReader(LineReader):
    kind: ClassVar[str] = "nccl inspector"
    takes_long_lines: ClassVar[bool] = True
    hints: ClassVar[tuple[str, ...]] = ('"coll_perf"', "nccl_bus_bandwidth_gbs{")

    def take(self, line: Line) -> Iterable[Item]:
        if sample := _SAMPLE.search(line.raw):
            return self._sample(line, sample)
        start = line.raw.find("{")
        try:
            document = json.loads(line.raw[start:])
        except (ValueError, RecursionError):
            return ()
        return self._document(line, document)

    def _document(self, line: Line, document: Any) -> Iterable[Item]:
        perf = document.get("coll_perf") if isinstance(document, dict) else None
        if not isinstance(perf, dict):
            return ()
        header = document.get("header")
        header = header if isinstance(header, dict) else {}
        bus, time_us = _number(perf.get("coll_busbw_gbs")), _number(perf.get("coll_exec_time_us"))
        rank, sequence = _number(header.get("rank")), _number(perf.get("coll_sn"))
        return (Collective(
            name=operation_name(str(perf.get("coll", "unknown"))[:60]), spot=line.spot,
            rank=int(rank) if rank is not None else None,
            group=str(header.get("comm_name") or header.get("id") or "")[:80],
            sequence=int(sequence) if sequence is not None else None,
            num_bytes=_number(perf.get("coll_msg_size_bytes")), state="completed",
            time_s=time_us * units.MICRO if time_us is not None else None,
            bytes_per_s=bus * units.GIGA if bus is not None else None,
        ),)  # fmt: skip

    def _sample(self, line: Line, sample: re.Match[str]) -> Iterable[Item]:
        labels = dict(_LABEL.findall(sample["labels"]))
        value = _number(sample["value"])
        if sample["what"] != "bus_bandwidth_gbs" or value is None:
            return ()
        rank = labels.get("rank", "")
        return (Collective(
            name=operation_name(labels.get("collective", "unknown")), spot=line.spot, state="completed",
            rank=int(rank) if rank.isdecimal() else None, group=labels.get("comm_name", ""),
            bytes_per_s=value * units.GIGA,
        ),)  # fmt: skip


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if abs(number) < 1e30 else None
