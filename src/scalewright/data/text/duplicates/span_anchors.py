"""Runs of words that occur twice, first step: places that any two equal runs have in common, and the pairs to compare.

A window of words is an anchor if its hash is the smallest among its neighbours (winnowing: Schleimer et al. 2003).
Which windows those are depends on the words alone. So two equal runs of `spans` words have an anchor in common,
wherever they are, and only a few windows in every `spans` words are kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from scalewright.data.text.cleaning.text_view import BASE, INVERSE_BASE, Hashes, Ints, TextView, mixed, power_table
from scalewright.data.text.duplicates.key_tables import (
    DropCodes,
    KeyGroups,
    KeyRange,
    document_ids,
    grouped_keys,
    num_partitions,
)
from scalewright.data.text.execution.work_files import TaskFiles, read_array, whole_file, write_array
from scalewright.data.text.pipeline_file import SpanUnit

SPANS = "spans"
KEYS, PLACES, RUN_ENDS = "span-keys", "span-places", "span-runs.npy"
RUN_ANCHORS = 4_000_000
"""Of one run: 64 MB, and as much again for sorting."""
NO_PAIRS = np.empty((0, 4), np.int64)
BYTES_PER_ANCHOR = 64 + 3 * 32 * 5
"""While pairs are looked for: key, place, order and copies; five pairs of four numbers, and two copies of them."""
NUM_BEFORE = 4
"""Places before a place that it is compared with, besides the first: each may agree with it for another length."""
NEIGHBOUR_FRAC = 0.25
"""Of a span: the windows among which an anchor is the smallest. The rest is the length of a window."""


class RunUnits(NamedTuple):
    """What runs are made of, words or bytes: a hash of each, where it is in the buffer, and its document."""

    hashes: Hashes
    starts: Ints
    ends: Ints
    documents: Ints


def run_units(view: TextView, unit: SpanUnit) -> RunUnits:
    """Words without regard to case; for languages that write without spaces, bytes that are no space."""
    if unit == "word":
        return RunUnits(view.word_hashes, *view.words)
    at = np.flatnonzero(view.buffer > 32)
    return RunUnits(mixed(view.buffer[at].astype(np.uint64) + np.uint64(1)), at, at + 1, view.document_of(at))


def _window_hashes(hashes: Hashes, length: int) -> Hashes:
    """A hash of every `length` units in a row, from prefix sums."""
    prefix = np.zeros(len(hashes) + 1, np.uint64)
    np.cumsum(hashes * power_table(BASE, len(hashes)), out=prefix[1:])
    sums = prefix[length:] - prefix[:-length]
    return np.maximum(mixed(sums * power_table(INVERSE_BASE, len(sums))), np.uint64(1))


def anchors(units: RunUnits, least: int) -> tuple[Hashes, Ints]:
    """Keys of the anchors, and the number of the first unit of each. Equal runs of `least` units share one."""
    num_neighbours = int(least * NEIGHBOUR_FRAC) + 1
    length = least - num_neighbours + 1
    if len(units.hashes) < least:
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    keys = _window_hashes(units.hashes, length)
    smallest = sliding_window_view(keys, num_neighbours).argmin(axis=1) + np.arange(len(keys) - num_neighbours + 1)
    is_inside = units.documents[least - 1 :] == units.documents[: len(smallest)]
    first = np.unique(smallest[is_inside])
    return keys[first], first


class SpanCollector:
    """Anchors of the documents of a chunk: key, document, number of the unit in its document.

    They are written in runs, each sorted by key, so that those of a large task are never in memory together.
    """

    def __init__(self, least: int, unit: SpanUnit, files: TaskFiles, number: int) -> None:
        self.least, self.unit, self.files, self.number = least, unit, files, number
        self.keys: list[Hashes] = []
        self.places: list[NDArray[np.uint32]] = []
        self.num_pending, self.num_documents = 0, 0
        self.run_ends = [0]
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._keys_file, self._places_file = (
            self._stack.enter_context(
                self._stack.enter_context(whole_file(self.files.path(self.number, kind))).open("wb")
            )
            for kind in (KEYS, PLACES)
        )
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def add(self, view: TextView) -> None:
        units = run_units(view, self.unit)
        keys, first = anchors(units, self.least)
        owners = units.documents[first]
        begins = np.searchsorted(units.documents, np.arange(view.num_documents))
        self.keys.append(keys)
        self.places.append(np.stack([owners + self.num_documents, first - begins[owners]], axis=1).astype(np.uint32))
        self.num_documents += view.num_documents
        self.num_pending += len(keys)
        if self.num_pending >= RUN_ANCHORS:
            self._write_run()

    def finish(self) -> int:
        """Write what is left; returns how many anchors there are."""
        if self.num_pending:
            self._write_run()
        write_array(self.files.path(self.number, RUN_ENDS), np.array(self.run_ends, np.int64))
        return self.run_ends[-1]

    def _write_run(self) -> None:
        keys, places = np.concatenate(self.keys), np.concatenate(self.places)
        order = np.argsort(keys, kind="stable")
        keys[order].tofile(self._keys_file)
        places[order].tofile(self._places_file)
        self.run_ends.append(self.run_ends[-1] + len(keys))
        self.keys, self.places, self.num_pending = [], [], 0


def _runs(files: TaskFiles, number: int) -> Iterator[tuple[Hashes, NDArray[np.uint32]]]:
    """Keys in order, and the document and unit of each."""
    ends = read_array(files.path(number, RUN_ENDS))
    if not ends[-1]:
        return
    keys = np.memmap(files.path(number, KEYS), np.uint64, "r")
    places = np.memmap(files.path(number, PLACES), np.uint32, "r").reshape(-1, 2)
    for start, stop in pairwise(ends.tolist()):
        yield keys[start:stop], places[start:stop]


def num_span_tasks(num_anchors: int) -> int:
    """Ranges of keys, such that the anchors of one range and their pairs fit in the memory for groups."""
    return num_partitions(num_anchors, BYTES_PER_ANCHOR)


def span_task(work: Path, number: int, *, num_tasks: int, num_chunks: int, dropped: DropCodes | None) -> dict[str, Any]:
    """Pairs of places with the same anchor in one range of keys: each with the first and the few before it."""
    clean, key_range = TaskFiles(work, "clean"), KeyRange(table=0, part=number, num_parts=num_tasks)
    all_keys, all_ids, all_units = [np.empty(0, np.uint64)], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for chunk in range(num_chunks):
        for run_keys, run_places in _runs(clean, chunk):
            start = int(np.searchsorted(run_keys, key_range.first, side="left"))
            stop = int(np.searchsorted(run_keys, key_range.last, side="right"))
            if start == stop:
                continue
            part, places = np.array(run_keys[start:stop]), run_places[start:stop]
            if dropped is not None:
                stays = dropped.of_chunk(chunk)[places[:, 0]] == 0
                part, places = part[stays], places[stays]
            all_keys.append(part)
            all_ids.append(document_ids(chunk, places[:, 0]))
            all_units.append(places[:, 1].astype(np.int64))
    keys, ids, units = np.concatenate(all_keys), np.concatenate(all_ids), np.concatenate(all_units)
    order = np.lexsort((units, ids, keys))
    pairs = _pairs(grouped_keys(keys[order], np.arange(len(order))), ids[order], units[order])
    pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 3], pairs[:, 2], pairs[:, 0]))]
    write_array(TaskFiles(work, SPANS).path(number, "pairs.npy"), pairs)
    return {"num_pairs": len(pairs)}


def _pairs(grouped: KeyGroups, ids: Ints, units: Ints) -> Ints:
    """Rows of: later document and unit, earlier document and unit."""
    at = np.arange(len(grouped.ids))
    first = np.maximum.accumulate(np.where(grouped.is_first, at, 0))
    columns = [(at[at > first], first[at > first])]
    for back_by in range(1, NUM_BEFORE + 1):
        later = at[at - back_by > first]
        columns.append((later, later - back_by))
    one, two = (grouped.ids[np.concatenate(places)] for places in zip(*columns, strict=True))
    return np.stack([ids[one], units[one], ids[two], units[two]], axis=1)
