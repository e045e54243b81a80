"""Keys of documents, sorted in each chunk, and the groups of equal keys over all chunks within a bound of memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalewright import units
from scalewright.data.text.cleaning.text_view import Hashes, Ints
from scalewright.data.text.execution.work_files import TaskFiles, mapped_array, whole_file

GROUP_MEMORY_BYTES = 256 * units.MIB
BYTES_PER_KEY = 48
"""Of a key while its group is looked for: key, document, order and copies."""
ROW_BITS = 32


def document_ids(chunk: int, rows: NDArray[np.generic]) -> Ints:
    """A number for each document of the whole input: in the order of the input."""
    return rows.astype(np.int64) + (np.int64(chunk) << np.int64(ROW_BITS))


def chunk_of(ids: Ints) -> Ints:
    return ids >> np.int64(ROW_BITS)


def row_of(ids: Ints) -> Ints:
    return ids & np.int64((1 << ROW_BITS) - 1)


def write_keys(files: TaskFiles, number: int, parts: Sequence[Hashes], num_tables: int) -> int:
    """Sort each table of keys and write it beside the rows that the keys came from; returns the number of documents.

    Parts have the shape (tables, documents). Tables are joined and sorted one after the other, so that the keys of a
    large task are in memory once.
    """
    num = sum(int(part.shape[1]) for part in parts)
    with (
        whole_file(files.path(number, "keys.npy")) as keys_path,
        whole_file(files.path(number, "rows.npy")) as rows_path,
        keys_path.open("wb") as keys_file,
        rows_path.open("wb") as rows_file,
    ):
        for file, kind in ((keys_file, np.dtype(np.uint64)), (rows_file, np.dtype(np.uint32))):
            header = {"descr": kind.str, "fortran_order": False, "shape": (num_tables, num)}
            np.lib.format.write_array_header_1_0(file, header)
        for table in range(num_tables):
            keys = np.concatenate([np.empty(0, np.uint64), *(part[table] for part in parts)])
            order = np.argsort(keys, kind="stable")
            keys[order].tofile(keys_file)
            order.astype(np.uint32).tofile(rows_file)
    return num


def num_partitions(num_keys: int, bytes_per_key: int = BYTES_PER_KEY) -> int:
    """Ranges of keys, such that the keys of one range fit in the memory for groups."""
    return max(1, -(-num_keys * bytes_per_key // GROUP_MEMORY_BYTES))


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRange:
    """One table, and one of `num_parts` equal ranges of its keys."""

    table: int
    part: int
    num_parts: int

    @property
    def first(self) -> np.uint64:
        """0 marks a document without a key."""
        return np.uint64(max(self.part * 2**64 // self.num_parts, 1))

    @property
    def last(self) -> np.uint64:
        return np.uint64((self.part + 1) * 2**64 // self.num_parts - 1)


class KeyGroups(NamedTuple):
    """Documents with a key that at least two of them have, by key, then by document."""

    ids: Ints
    is_first: NDArray[np.bool_]
    """Whether a document is the first of its group."""


def groups(files: TaskFiles, chunks: range, key_range: KeyRange, dropped: DropCodes | None = None) -> KeyGroups:
    """Groups of equal keys in a range. Dropped documents have no part in them."""
    all_keys, all_ids = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for chunk in chunks:
        keys = mapped_array(files.path(chunk, "keys.npy"))[key_range.table]
        start = int(np.searchsorted(keys, key_range.first, side="left"))
        stop = int(np.searchsorted(keys, key_range.last, side="right"))
        if start == stop:
            continue
        rows = mapped_array(files.path(chunk, "rows.npy"))[key_range.table, start:stop]
        part = np.array(keys[start:stop])
        if dropped is not None:
            stays = dropped.of_chunk(chunk)[rows] == 0
            rows, part = rows[stays], part[stays]
        all_keys.append(part)
        all_ids.append(document_ids(chunk, rows))
    merged_keys, ids = np.concatenate(all_keys), np.concatenate(all_ids)
    del all_keys, all_ids
    order = np.lexsort((ids, merged_keys))
    return grouped_keys(merged_keys[order], ids[order])


def grouped_keys(keys: Hashes, ids: Ints) -> KeyGroups:
    """Groups of equal keys, of keys in order."""
    same_as_before = np.zeros(len(ids), np.bool_)
    same_as_before[1:] = keys[1:] == keys[:-1]
    in_group = same_as_before.copy()
    in_group[:-1] |= same_as_before[1:]
    return KeyGroups(ids[in_group], ~same_as_before[in_group])


def leaders(grouped: KeyGroups) -> Ints:
    """Of each document, the first of its group."""
    if not len(grouped.ids):
        return grouped.ids
    return grouped.ids[np.maximum.accumulate(np.where(grouped.is_first, np.arange(len(grouped.ids)), 0))]


class DropCodes:
    """One byte for each document of the input, in a file: 0 if it is kept, else why not."""

    def __init__(self, path: Path, offsets: Ints) -> None:
        self.values = mapped_array(path) if offsets[-1] else np.empty(0, np.uint8)
        self.offsets = offsets

    def of_chunk(self, chunk: int) -> NDArray[np.uint8]:
        return self.values[self.offsets[chunk] : self.offsets[chunk + 1]]


def gathered(files: TaskFiles, kind: str, ids: Ints) -> NDArray[np.generic]:
    """Rows of a per-chunk array for documents of many chunks, in the order of `ids`."""
    parts: list[NDArray[np.generic]] = []
    order = np.argsort(ids, kind="stable")
    for chunk, rows in _by_chunk(ids[order]):
        parts.append(mapped_array(files.path(chunk, kind))[rows])
    joined = np.concatenate(parts)
    result = np.empty_like(joined)
    result[order] = joined
    return result


def _by_chunk(ids: Ints) -> Iterator[tuple[int, Ints]]:
    chunks = chunk_of(ids)
    edges = np.flatnonzero(np.diff(chunks)) + 1
    for part in np.split(ids, edges):
        if len(part):
            yield int(chunk_of(part[:1])[0]), row_of(part)
