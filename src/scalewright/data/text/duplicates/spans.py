"""Paragraphs that an earlier document has: found over all chunks by their hashes, and cut out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalewright.data.text.cleaning.text_view import Hashes, Ints, TextView
from scalewright.data.text.duplicates.key_tables import DropCodes, KeyRange, document_ids, num_partitions
from scalewright.data.text.execution.work_files import TaskFiles, mapped_array, write_array

SPANS = "spans"
NO_CUTS = np.empty((0, 3), np.int64)


class SpanCollector:
    """Long paragraphs of the documents of a chunk: hash, document, first and last byte."""

    def __init__(self, least_words: int) -> None:
        self.least_words = least_words
        self.keys: list[Hashes] = [np.empty(0, np.uint64)]
        self.places: list[NDArray[np.uint32]] = [np.empty((0, 3), np.uint32)]
        self.num_documents = 0

    def add(self, view: TextView) -> None:
        paragraphs = view.paragraphs
        first, last = (np.searchsorted(view.words.starts, edge) for edge in (paragraphs.starts, paragraphs.ends))
        is_long = last - first >= self.least_words
        starts, ends, owners = (part[is_long] for part in paragraphs)
        places = [owners + self.num_documents, starts - view.starts[owners], ends - view.starts[owners]]
        self.keys.append(np.maximum(view.hashes(starts, ends), np.uint64(1)))
        self.places.append(np.stack(places, axis=1).astype(np.uint32))
        self.num_documents += view.num_documents

    def write(self, files: TaskFiles, number: int) -> int:
        """Sorted by hash; returns how many there are."""
        keys, places = np.concatenate(self.keys), np.concatenate(self.places)
        order = np.argsort(keys, kind="stable")
        write_array(files.path(number, "spans.npy"), keys[order])
        write_array(files.path(number, "span-places.npy"), places[order])
        return len(keys)


def num_span_tasks(num_spans: int) -> int:
    return num_partitions(num_spans)


def span_task(work: Path, number: int, *, num_tasks: int, num_chunks: int, dropped: DropCodes | None) -> dict[str, Any]:
    """Write the paragraphs of one range of hashes that are not the first of their kind."""
    clean, key_range = TaskFiles(work, "clean"), KeyRange(table=0, part=number, num_parts=num_tasks)
    all_keys, all_places = [np.empty(0, np.uint64)], [NO_CUTS]
    for chunk in range(num_chunks):
        keys = mapped_array(clean.path(chunk, "spans.npy"))
        start = int(np.searchsorted(keys, key_range.first, side="left"))
        stop = int(np.searchsorted(keys, key_range.last, side="right"))
        if start == stop:
            continue
        part, places = np.array(keys[start:stop]), mapped_array(clean.path(chunk, "span-places.npy"))[start:stop]
        if dropped is not None:
            stays = dropped.of_chunk(chunk)[places[:, 0]] == 0
            part, places = part[stays], places[stays]
        all_keys.append(part)
        all_places.append(
            np.stack(
                [document_ids(chunk, places[:, 0]), places[:, 1].astype(np.int64), places[:, 2].astype(np.int64)], 1
            )
        )
    merged_keys, cuts = np.concatenate(all_keys), np.concatenate(all_places)
    order = np.lexsort((cuts[:, 1], cuts[:, 0], merged_keys))
    merged_keys, cuts = merged_keys[order], cuts[order]
    is_later = np.zeros(len(cuts), np.bool_)
    is_later[1:] = merged_keys[1:] == merged_keys[:-1]
    cuts = cuts[is_later]
    write_array(TaskFiles(work, SPANS).path(number, "cuts.npy"), cuts[np.lexsort((cuts[:, 1], cuts[:, 0]))])
    return {"num_cuts": len(cuts)}


class ChunkCuts:
    """What is cut from the documents of one chunk."""

    def __init__(self, work: Path, chunk: int, num_tasks: int) -> None:
        first, last = document_ids(chunk, np.array([0])), document_ids(chunk + 1, np.array([0]))
        parts: list[Ints] = [NO_CUTS]
        for number in range(num_tasks):
            cuts = mapped_array(TaskFiles(work, SPANS).path(number, "cuts.npy"))
            start, stop = (int(np.searchsorted(cuts[:, 0], edge)[0]) for edge in (first, last))
            parts.append(np.array(cuts[start:stop]))
        joined = np.concatenate(parts)
        self.rows: dict[int, list[tuple[int, int]]] = {}
        for one, start, stop in joined[np.lexsort((joined[:, 1], joined[:, 0]))].tolist():
            self.rows.setdefault(one - int(first[0]), []).append((start, stop))

    def applied(self, row: int, text: bytes) -> bytes:
        """The text without its repeated paragraphs."""
        places = self.rows.get(row)
        if places is None:
            return text
        parts, at = [], 0
        for start, stop in places:
            parts.append(text[at:start].rstrip(b"\n"))
            at = stop
        parts.append(text[at:].lstrip(b"\n") if at else text)
        return b"\n\n".join(part.strip(b"\n") for part in parts if part.strip())
