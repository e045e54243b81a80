"""Runs of words that occur twice, second step: how far two places agree, and what is cut from the later one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from scalewright.data.text.cleaning.text_view import Ints, TextView
from scalewright.data.text.duplicates.key_tables import document_ids
from scalewright.data.text.duplicates.span_anchors import NO_PAIRS, SPANS, RunUnits, run_units
from scalewright.data.text.duplicates.tasks import offsets_of
from scalewright.data.text.execution.texts import TextLookup
from scalewright.data.text.execution.work_files import TaskFiles, mapped_array, read_array, write_array
from scalewright.data.text.pipeline_file import SpanUnit

CUTS = "cuts"
CLEAN = "clean"
STEP_UNITS = 256
MAX_KEPT_UNITS = 4_000_000
"""Words of documents that are kept for the next pair: 32 bytes each."""
MAX_PAIRS = 1_000_000
"""That are sorted and compared at a time, about: 32 bytes each, and two copies."""
NO_CUTS = np.empty((0, 3), np.int64)
SPACES = b" \t\n\r\x0b\x0c"


class _Units:
    """Words of single documents, the last ones kept."""

    def __init__(self, work: Path, unit: SpanUnit) -> None:
        self.lookup, self.unit = TextLookup(TaskFiles(work, CLEAN)), unit
        self.kept: OrderedDict[int, RunUnits] = OrderedDict()
        self.num_kept = 0

    def of(self, document: int) -> RunUnits:
        units = self.kept.pop(document, None)
        if units is None:
            units = run_units(TextView([self.lookup.text(document)]), self.unit)
            self.num_kept += len(units.hashes)
        self.kept[document] = units
        while self.num_kept > MAX_KEPT_UNITS and len(self.kept) > 1:
            self.num_kept -= len(self.kept.popitem(last=False)[1].hashes)
        return units


def cut_task(work: Path, chunk: int, *, num_span_tasks: int, least: int, unit: SpanUnit) -> dict[str, Any]:
    """Write what is cut from the documents of a chunk: document, first byte, byte after the last."""
    units, cuts, num_checked = _Units(work, unit), [NO_CUTS], 0
    for pairs in _pairs_of(work, chunk, num_span_tasks):
        edges = np.flatnonzero(np.diff(pairs[:, 0])) + 1
        for rows in np.split(pairs, edges) if len(pairs) else []:
            later = int(rows[0, 0])
            runs, num = _runs(rows, units, least)
            num_checked += num
            own = units.of(later)
            places = [(later, own.starts[start], own.ends[end - 1]) for start, end in joined(runs)]
            cuts.append(np.array(places, np.int64).reshape(-1, 3))
    joined_cuts = np.concatenate(cuts)
    write_array(TaskFiles(work, CUTS).path(chunk, "cuts.npy"), joined_cuts)
    return {"num_cuts": len(joined_cuts), "num_checked": num_checked}


def _runs(rows: Ints, units: _Units, least: int) -> tuple[list[tuple[int, int]], int]:
    """Runs of one document that earlier places have, and how many comparisons it took."""
    runs: list[tuple[int, int]] = []
    num_checked = 0
    for earlier, places in groupby(rows.tolist(), key=itemgetter(2)):
        one, two = units.of(int(rows[0, 0])), units.of(earlier)
        done: dict[int, int] = {}  # of each distance between the two places, how far it was compared
        for _, here, _, there in places:
            if here < done.get(here - there, 0):
                continue
            num_checked += 1
            start, end = matching_run(one, two, here, there)
            done[here - there] = end
            if end - start >= least:
                runs.append((start, end))
    return runs, num_checked


def _pairs_of(work: Path, chunk: int, num_span_tasks: int) -> Iterator[Ints]:
    """Pairs whose later place is in a chunk, by later document, earlier document, and place; some at a time."""
    tables = [mapped_array(TaskFiles(work, SPANS).path(number, "pairs.npy")) for number in range(num_span_tasks)]
    num_documents = int(np.diff(offsets_of(work))[chunk])
    first, last = document_ids(chunk, np.array([0, num_documents])).tolist()
    num_pairs = sum(int(np.diff(np.searchsorted(table[:, 0], (first, last)))[0]) for table in tables)
    num_parts = max(1, -(-num_pairs // MAX_PAIRS))
    edges = np.linspace(first, last, num_parts + 1).astype(np.int64)
    places = [np.searchsorted(table[:, 0], edges) for table in tables]
    for part in range(num_parts):
        rows = [table[at[part] : at[part + 1]] for table, at in zip(tables, places, strict=True)]
        pairs = np.concatenate([NO_PAIRS, *rows])
        yield pairs[np.lexsort((pairs[:, 3], pairs[:, 1], pairs[:, 2], pairs[:, 0]))]


def matching_run(one: RunUnits, two: RunUnits, here: int, there: int) -> tuple[int, int]:
    """First unit of the run around two places in which both documents agree, and the one after its last."""
    after = _num_equal(one.hashes[here:], two.hashes[there:])
    before = _num_equal(one.hashes[:here][::-1], two.hashes[:there][::-1])
    return here - before, here + after


def _num_equal(one: Any, two: Any) -> int:
    num, at = min(len(one), len(two)), 0
    while at < num:
        stop = min(at + STEP_UNITS, num)
        differs = np.flatnonzero(one[at:stop] != two[at:stop])
        if len(differs):
            return at + int(differs[0])
        at = stop
    return num


def joined(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Runs in order, those that touch as one."""
    result: list[tuple[int, int]] = []
    for start, end in sorted(runs):
        if result and start <= result[-1][1]:
            result[-1] = result[-1][0], max(end, result[-1][1])
        else:
            result.append((start, end))
    return result


class ChunkCuts:
    """What is cut from the documents of one chunk."""

    def __init__(self, work: Path, chunk: int) -> None:
        first = int(document_ids(chunk, np.array([0]))[0])
        self.rows: dict[int, list[tuple[int, int]]] = {}
        for document, start, stop in read_array(TaskFiles(work, CUTS).path(chunk, "cuts.npy")).tolist():
            self.rows.setdefault(document - first, []).append((start, stop))

    def applied(self, row: int, text: bytes) -> bytes:
        """The text without what earlier places have. Of the spaces around a cut, the side with more lines stays."""
        places = self.rows.get(row)
        if places is None:
            return text
        edges = [(_character_end(text, start), _character_end(text, stop)) for start, stop in places]
        left, at = text[: edges[0][0]], edges[0][1]
        for start, stop in edges[1:]:
            left, at = _attached(left, text[at:start]), stop
        return _attached(left, text[at:])


def _attached(left: bytes, right: bytes) -> bytes:
    """Two texts with a cut between them."""
    kept, rest = left.rstrip(SPACES), right.lstrip(SPACES)
    if not kept or not rest:
        return kept or rest
    before, after = left[len(kept) :], right[: len(right) - len(rest)]
    return kept + (max(before, after, key=lambda space: space.count(b"\n")) or b" ") + rest


def _character_end(text: bytes, at: int) -> int:
    """The end of the character that a place is in: runs of bytes may begin and end inside one."""
    while at < len(text) and text[at] & 0xC0 == 0x80:
        at += 1
    return at
