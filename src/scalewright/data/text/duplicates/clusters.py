"""Clusters of near duplicates: pairs joined through a table on disk, so that memory does not grow with the input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalewright.data.text.cleaning.text_view import Ints
from scalewright.data.text.duplicates.key_tables import chunk_of, document_ids, row_of
from scalewright.data.text.execution.work_files import read_array

BLOCK = 1_000_000
MOST_CLUSTERS = 10
SIZE_EDGES = (2, 3, 4, 6, 11, 101, 1001)
"""Sizes at which the bins of the histogram begin."""


def connect(work: Path, edge_paths: list[Path], offsets: Ints, codes: NDArray[np.uint8], code: int) -> dict[str, Any]:
    """Mark all documents of a cluster but the first with `code`. Returns counts and the largest clusters."""
    num = int(offsets[-1])
    parent_path, size_path = work / "parents.i64", work / "sizes.u32"
    parents = np.memmap(parent_path, np.int64, "w+", shape=(num,))
    for start in range(0, num, BLOCK):
        parents[start : start + BLOCK] = np.arange(start, min(start + BLOCK, num))
    for path in edge_paths:
        edges = read_array(path)
        for start in range(0, len(edges), BLOCK):
            block = edges[start : start + BLOCK]
            _join(parents, offsets[chunk_of(block)] + row_of(block))
    sizes = np.memmap(size_path, np.uint32, "w+", shape=(num,))
    num_drops = 0
    for start in range(0, num, BLOCK):
        own = np.arange(start, min(start + BLOCK, num))
        roots = _roots(parents, own)
        later = own[roots != own]
        np.add.at(sizes, roots[roots != own], 1)
        codes[later] = code
        num_drops += len(later)
    summary = {"num_drops": num_drops, **_histogram(sizes, offsets)}
    del parents, sizes
    parent_path.unlink()
    size_path.unlink()
    return summary


def _roots(parents: NDArray[np.int64], nodes: Ints) -> Ints:
    roots = np.asarray(parents[nodes])
    while True:
        above = np.asarray(parents[roots])
        if (above == roots).all():
            return roots
        roots = np.asarray(parents[above])


def _join(parents: NDArray[np.int64], pairs: Ints) -> None:
    """Give the two ends of every pair one root, the smaller of the two."""
    while True:
        one, two = _roots(parents, pairs[:, 0]), _roots(parents, pairs[:, 1])
        differs = one != two
        if not differs.any():
            parents[pairs[:, 0]], parents[pairs[:, 1]] = one, one  # shorter ways for the next block
            return
        low, high = np.minimum(one, two)[differs], np.maximum(one, two)[differs]
        order = np.argsort(-low, kind="stable")  # the smallest is assigned last and stays
        parents[high[order]] = low[order]


def _histogram(sizes: NDArray[np.uint32], offsets: Ints) -> dict[str, Any]:
    """How many clusters have which size, and the largest ones. A size counts the first document too."""
    counts = np.zeros(len(SIZE_EDGES), np.int64)
    largest: list[tuple[int, int]] = []
    for start in range(0, len(sizes), BLOCK):
        block = np.asarray(sizes[start : start + BLOCK])
        at = np.flatnonzero(block)
        whole = block[at].astype(np.int64) + 1
        counts += np.bincount(np.searchsorted(SIZE_EDGES, whole, side="right") - 1, minlength=len(SIZE_EDGES))
        top = np.argsort(-whole, kind="stable")[:MOST_CLUSTERS]
        largest += [(int(whole[one]), int(start + at[one])) for one in top]
    largest = sorted(largest, key=lambda one: (-one[0], one[1]))[:MOST_CLUSTERS]
    chunks = np.searchsorted(offsets, [index for _, index in largest], side="right") - 1
    ids = [int(document_ids(int(c), np.array([i - offsets[c]]))[0]) for (_, i), c in zip(largest, chunks, strict=True)]
    return {
        "num_clusters": int(counts.sum()),
        "sizes": [{"from": first, "num": int(num)} for first, num in zip(SIZE_EDGES, counts, strict=True)],
        "largest": [{"size": size, "id": one} for (size, _), one in zip(largest, ids, strict=True)],
    }
