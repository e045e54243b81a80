"""Tasks over all chunks that find duplicates, and the marks of the documents that go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalewright.data.text.cleaning.text_view import Hashes, Ints, mixed
from scalewright.data.text.duplicates.clusters import connect
from scalewright.data.text.duplicates.key_tables import (
    DropCodes,
    KeyGroups,
    KeyRange,
    chunk_of,
    gathered,
    groups,
    leaders,
    num_partitions,
    row_of,
)
from scalewright.data.text.duplicates.minhash import doubt, estimated_jaccard, exact_jaccard
from scalewright.data.text.execution.job import read_job
from scalewright.data.text.execution.texts import TextLookup
from scalewright.data.text.execution.work_files import TaskFiles, mapped_array, read_array, whole_file, write_array
from scalewright.data.text.pipeline_file import DeduplicateStep, NearDuplicates

EXACT, URL, NEAR, VERIFY = "exact", "url", "near", "verify"
CODES = {EXACT: 1, URL: 2, NEAR: 3}
CLEAN = "clean"
PAIRS_AT_ONCE = 16_384
PAIRS_PER_TASK = 50_000
TEXTS_AT_ONCE_BYTES = 2_000_000
EXAMPLE_BYTES = 400
NO_PAIRS = np.empty((0, 2), np.int64)


def kinds_of(step: DeduplicateStep | None) -> list[str]:
    """The kinds of duplicates that a pipeline looks for, in order."""
    if step is None:
        return []
    return [kind for kind, on in ((EXACT, step.exact), (URL, step.url), (NEAR, step.near is not None)) if on]


def offsets_of(work: Path) -> Ints:
    """Documents in front of each chunk, and the number of all."""
    return np.asarray(read_array(work / "offsets.npy"), np.int64)


def num_group_tasks(step: DeduplicateStep, kind: str, num_documents: int) -> int:
    tables = step.near.bands if kind == NEAR and step.near is not None else 1
    return tables * num_partitions(num_documents)


def _key_range(step: DeduplicateStep, kind: str, number: int, num_documents: int) -> KeyRange:
    parts = num_partitions(num_documents)
    first = {EXACT: 0, URL: int(step.exact), NEAR: int(step.exact) + int(step.url)}[kind]
    return KeyRange(table=first + number // parts, part=number % parts, num_parts=parts)


def drops_before(work: Path, step: DeduplicateStep, kind: str, offsets: Ints) -> DropCodes | None:
    """Marks of the kinds that come before this one."""
    earlier = kinds_of(step)[: kinds_of(step).index(kind)]
    return DropCodes(work / f"drops-{earlier[-1]}.npy", offsets) if earlier else None


def group_task(work: Path, kind: str, number: int) -> dict[str, Any]:
    """Look at one range of keys: write documents that go, or pairs that are near duplicates or may be."""
    job, files, clean = read_job(work), TaskFiles(work, kind), TaskFiles(work, CLEAN)
    step = job.pipeline.deduplicate
    assert step is not None
    offsets = offsets_of(work)
    key_range = _key_range(step, kind, number, int(offsets[-1]))
    grouped = groups(clean, range(len(job.chunks)), key_range, drops_before(work, step, kind, offsets))
    if kind == NEAR:
        assert step.near is not None
        edges, doubtful, num_pairs = _near_pairs(clean, grouped, step.near)
        write_array(files.path(number, "edges.npy"), edges)
        write_array(files.path(number, "doubtful.npy"), doubtful)
        return {"num_pairs": num_pairs, "num_edges": len(edges), "num_doubtful": len(doubtful)}
    others = grouped.ids[~grouped.is_first]
    if kind == EXACT and len(others):
        firsts = leaders(grouped)[~grouped.is_first]
        others = others[gathered(clean, "checks.npy", others) == gathered(clean, "checks.npy", firsts)]
    write_array(files.path(number, "drops.npy"), others)
    return {"num_drops": len(others)}


def _near_pairs(clean: TaskFiles, grouped: KeyGroups, near: NearDuplicates) -> tuple[Ints, Ints, int]:
    """Pairs of a document with the first of its group and with the one before it, by the estimate of their likeness."""
    later = np.flatnonzero(~grouped.is_first)
    with_first = np.stack([leaders(grouped)[later], grouped.ids[later]], axis=1)
    with_previous = np.stack([grouped.ids[later - 1], grouped.ids[later]], axis=1)
    is_other = with_first[:, 0] != with_previous[:, 0]
    pairs = np.concatenate([with_first, with_previous[is_other]])
    margin, edges, doubtful = doubt(near), [NO_PAIRS], [NO_PAIRS]
    for start in range(0, len(pairs), PAIRS_AT_ONCE):
        block = pairs[start : start + PAIRS_AT_ONCE]
        likeness = estimated_jaccard(*(_signatures(clean, block[:, side], near) for side in (0, 1)))
        is_sure = likeness >= min(near.jaccard + margin, 1.0)
        edges.append(block[is_sure])
        doubtful.append(block[~is_sure & (likeness >= near.jaccard - margin)])
    return np.concatenate(edges), np.concatenate(doubtful), len(pairs)


def _signatures(clean: TaskFiles, ids: Ints, near: NearDuplicates) -> NDArray[np.uint32]:
    num = near.bands * near.rows
    rows = np.empty((len(ids), num), np.uint32)
    chunks = chunk_of(ids)
    for chunk in np.unique(chunks):
        at = np.flatnonzero(chunks == chunk)
        stored_rows = np.memmap(clean.path(int(chunk), "signatures"), np.uint32, "r").reshape(-1, num)
        rows[at] = stored_rows[row_of(ids[at])]
    return rows


def num_verify_tasks(work: Path, num_near_tasks: int) -> int:
    near = TaskFiles(work, NEAR)
    num = sum(int(near.summary(number)["num_doubtful"]) for number in range(num_near_tasks))
    return max(1, -(-num // PAIRS_PER_TASK))


def verify_task(work: Path, number: int, *, num_near_tasks: int, num_tasks: int) -> dict[str, Any]:
    """Compare the texts of the pairs that the estimate leaves in doubt."""
    job, near_files = read_job(work), TaskFiles(work, NEAR)
    assert job.pipeline.deduplicate is not None
    near = job.pipeline.deduplicate.near
    assert near is not None
    mine = [NO_PAIRS]
    for task in range(num_near_tasks):
        pairs = read_array(near_files.path(task, "doubtful.npy"))
        keys: Hashes = mixed(
            pairs[:, 0].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + pairs[:, 1].astype(np.uint64)
        )
        mine.append(pairs[keys % np.uint64(num_tasks) == np.uint64(number)])
    pairs = np.unique(np.concatenate(mine), axis=0)
    lookup = TextLookup(TaskFiles(work, CLEAN))
    is_near = np.zeros(len(pairs), np.bool_)
    texts: list[bytes] = []
    start = 0
    for row, (one, two) in enumerate(pairs.tolist()):
        texts += [lookup.text(one), lookup.text(two)]
        if sum(map(len, texts)) >= TEXTS_AT_ONCE_BYTES or row == len(pairs) - 1:
            is_near[start : row + 1] = exact_jaccard(texts, near) >= near.jaccard
            texts, start = [], row + 1
    write_array(TaskFiles(work, VERIFY).path(number, "edges.npy"), pairs[is_near])
    return {"num_pairs": len(pairs), "num_edges": int(is_near.sum())}


def mark_drops(work: Path, kind: str, *, num_tasks: int, num_verify: int = 0) -> dict[str, Any]:
    """Write one byte for each document: those of the kinds before, and those that this kind drops."""
    job = read_job(work)
    step = job.pipeline.deduplicate
    assert step is not None
    offsets = offsets_of(work)
    before = drops_before(work, step, kind, offsets)
    with whole_file(work / f"drops-{kind}.npy") as hidden:
        if not offsets[-1]:
            with hidden.open("wb") as file:
                np.save(file, np.empty(0, np.uint8), allow_pickle=False)
            return {"num_drops": 0}
        codes = np.lib.format.open_memmap(hidden, "w+", np.uint8, (int(offsets[-1]),))
        if before is not None:
            codes[:] = before.values
        files = TaskFiles(work, kind)
        if kind == NEAR:
            paths = [files.path(number, "edges.npy") for number in range(num_tasks)]
            paths += [TaskFiles(work, VERIFY).path(number, "edges.npy") for number in range(num_verify)]
            summary = connect(work, paths, offsets, codes, CODES[NEAR])
            summary["largest"] = _with_texts(summary["largest"], work)
        else:
            num = 0
            for number in range(num_tasks):
                ids = read_array(files.path(number, "drops.npy"))
                codes[offsets[chunk_of(ids)] + row_of(ids)] = CODES[kind]
                num += len(ids)
            summary = {"num_drops": num}
        codes.flush()
        del codes
    return summary


def _with_texts(clusters: list[dict[str, int]], work: Path) -> list[dict[str, Any]]:
    """Clusters with the place and the beginning of the text that stays."""
    lookup = TextLookup(TaskFiles(work, CLEAN))
    return [
        {
            "size": one["size"], "origin": lookup.origin(one["id"]),
            "text": lookup.text(one["id"])[:EXAMPLE_BYTES].decode("utf-8", errors="replace"),
        }
        for one in clusters
    ]  # fmt: skip


def kept_bytes(work: Path, kind: str | None) -> int:
    """Bytes of text that are left."""
    offsets, clean = offsets_of(work), TaskFiles(work, CLEAN)
    codes = None if kind is None else DropCodes(work / f"drops-{kind}.npy", offsets)
    total = 0
    for chunk in range(len(offsets) - 1):
        if offsets[chunk] == offsets[chunk + 1]:
            continue
        lengths = mapped_array(clean.path(chunk, "lengths.npy"))
        total += int(lengths.sum() if codes is None else lengths[codes.of_chunk(chunk) == 0].sum())
    return total
