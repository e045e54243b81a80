"""Reads dumps of PyTorch's flight recorder: pickles, which are never executed, and JSON."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.readers.flight.dump import dump_from
from scalewright.observe.readers.flight.plain_pickle import MOST_BYTES, PlainPickleError, plain_value, starts_as_pickle
from scalewright.observe.readers.source import Head, Source
from scalewright.records.documents import finite_float

_MARKS = (b"entries", b"pg_config", b"pg_status", b"profiling_name", b"collective_seq_id", b"record_id")
LEAST_MARKS = 2
"""Names that a dump has and hardly another pickle or document."""


class FlightReader:
    """One dump is one rank. An empty or broken one is kept as such, because its rank may be the one that stalled."""

    kind: ClassVar[str] = "flight recorder dump"

    def sees(self, head: Head) -> float:
        start = head.raw.lstrip()[:1]
        num_marks = sum(mark in head.raw for mark in _MARKS)
        if starts_as_pickle(head.raw):
            return 0.98 if num_marks >= LEAST_MARKS or b"pg_config" in head.raw else 0.0
        is_json = start in (b"{", b"[") and b'"traceEvents"' not in head.raw
        return 0.95 if is_json and num_marks >= LEAST_MARKS else 0.0

    def read(self, source: Source, into: Evidence) -> None:
        pieces: list[bytes] = []
        for piece in source.chunks():
            pieces.append(piece)
            if sum(map(len, pieces)) > MOST_BYTES:
                source.problem(f"more than {MOST_BYTES} bytes: a dump of this size is not read")
                return
        document, problem = _document(b"".join(pieces))
        if problem:
            source.problem(problem)
        dump = dump_from(document, name=source.name, problem=problem)
        if dump.library_version:
            into.versions.setdefault("NCCL", dump.library_version)
        into.flight_dumps.append(dump)


def _document(data: bytes) -> tuple[Any, str]:
    """The value, and why it is not whole."""
    if starts_as_pickle(data):
        try:
            return plain_value(data), ""
        except PlainPickleError as error:
            return error.partial, str(error)
    try:
        return json.loads(data, parse_float=finite_float, parse_constant=finite_float), ""
    except (ValueError, RecursionError) as error:
        return None, f"not JSON: {error}"
