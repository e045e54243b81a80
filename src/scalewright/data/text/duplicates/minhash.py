"""MinHash signatures of a batch of documents, the keys of their LSH bands, and the exact Jaccard index of a pair."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from scalewright.data.text.cleaning.text_view import Hashes, Ints, TextView, mixed, ngram_hashes
from scalewright.data.text.pipeline_file import NearDuplicates

Signatures = NDArray[np.uint32]
PERMUTATION_SEED = 0x5CA1E
"""Fixed: signatures of two runs can be compared."""
DOUBT_DEVIATIONS = 4.0
"""An estimate further from the threshold than this is believed; a nearer one is checked on the texts."""


@lru_cache(maxsize=8)
def _permutations(num: int) -> tuple[Signatures, Signatures]:
    generator = np.random.default_rng(PERMUTATION_SEED)
    factors = generator.integers(0, 2**32, num, np.uint32) | np.uint32(1)
    return factors, generator.integers(0, 2**32, num, np.uint32)


def shingles(view: TextView, near: NearDuplicates) -> tuple[Hashes, Ints]:
    """Hashes of the n-grams of each document, and the document of each. A shorter text is one n-gram."""
    if near.unit == "byte":
        words, documents = _bytes_of(view)
    else:
        words, documents = view.plain_word_hashes, view.plain_words.documents
    hashes, first = ngram_hashes(words, documents, near.ngram)
    owners = documents[first]
    counts = np.bincount(documents, minlength=view.num_documents)
    short = np.flatnonzero((counts > 0) & (counts < near.ngram))
    if not len(short):
        return hashes, owners
    last = np.cumsum(counts)
    whole = [_whole(words[last[one] - counts[one] : last[one]]) for one in short]
    hashes, owners = np.concatenate([hashes, np.array(whole, np.uint64)]), np.concatenate([owners, short])
    order = np.argsort(owners, kind="stable")
    return hashes[order], owners[order]


def _bytes_of(view: TextView) -> tuple[Hashes, Ints]:
    at = np.flatnonzero(view.buffer > 32)
    return mixed(view.buffer[at].astype(np.uint64)), view.document_of(at)


def _whole(words: Hashes) -> int:
    hashes, _ = ngram_hashes(words, np.zeros(len(words), np.int64), len(words))
    return int(hashes[0])


def signatures(view: TextView, near: NearDuplicates) -> tuple[Signatures, NDArray[np.bool_]]:
    """A row of `bands * rows` smallest hashes for each document, and whether it has any n-gram."""
    num = near.bands * near.rows
    hashes, owners = shingles(view, near)
    rows = np.full((view.num_documents, num), 0xFFFFFFFF, np.uint32)
    counts = np.bincount(owners, minlength=view.num_documents)
    has_any = counts > 0
    if not len(hashes):
        return rows, has_any
    starts = (np.cumsum(counts) - counts)[has_any]
    short = (hashes >> np.uint64(32)).astype(np.uint32)
    factors, shifts = _permutations(num)
    permuted = np.empty_like(short)
    smallest = np.empty((num, len(starts)), np.uint32)
    for number in range(num):
        np.multiply(short, factors[number], out=permuted)
        permuted ^= shifts[number]
        np.minimum.reduceat(permuted, starts, out=smallest[number])
    rows[has_any] = smallest.T
    return rows, has_any


def band_keys(rows: Signatures, has_any: NDArray[np.bool_], near: NearDuplicates) -> Hashes:
    """Keys of shape (bands, documents): equal where all hashes of a band agree; 0 for a document without n-grams."""
    keys = np.zeros((near.bands, len(rows)), np.uint64)
    for band in range(near.bands):
        sums = np.full(len(rows), np.uint64(band + 1))
        for column in range(band * near.rows, (band + 1) * near.rows):
            sums = mixed(sums * np.uint64(0x9E3779B97F4A7C15) + rows[:, column].astype(np.uint64))
        keys[band] = np.where(has_any, np.maximum(sums, np.uint64(1)), np.uint64(0))
    return keys


def estimated_jaccard(first: Signatures, second: Signatures) -> NDArray[np.float64]:
    """The share of hashes that agree, pair by pair."""
    return np.asarray((first == second).mean(axis=1), np.float64)


def doubt(near: NearDuplicates) -> float:
    """How far from the threshold an estimate must be to be believed."""
    j, num = near.jaccard, near.bands * near.rows
    return DOUBT_DEVIATIONS * float(np.sqrt(max(j * (1 - j), 0.01) / num))


def exact_jaccard(texts: list[bytes], near: NearDuplicates) -> NDArray[np.float64]:
    """Of each pair of texts (0 and 1, 2 and 3, ...): n-grams in both, divided by n-grams in either."""
    hashes, owners = shingles(TextView(texts), near)
    edges = np.searchsorted(owners, np.arange(len(texts) + 1))
    values = np.zeros(len(texts) // 2)
    for pair in range(len(values)):
        start, middle, end = edges[2 * pair : 2 * pair + 3]
        one, two = np.unique(hashes[start:middle]), np.unique(hashes[middle:end])
        common = len(np.intersect1d(one, two, assume_unique=True))
        values[pair] = common / max(len(one) + len(two) - common, 1)
    return values
