"""A batch of texts as arrays: words, lines and their hashes, computed for all documents at once."""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Hashes = NDArray[np.uint64]
BASE = 0x9E3779B97F4A7C15
"""Odd, so that it has an inverse modulo 2**64."""
INVERSE_BASE = pow(BASE, -1, 2**64)
SPACE_BYTES = b" \t\n\r\x0b\x0c"


def _table(members: bytes) -> NDArray[np.bool_]:
    table = np.zeros(256, np.bool_)
    table[list(members)] = True
    return table


IS_SPACE = _table(SPACE_BYTES)
IS_LETTER = _table(bytes(range(65, 91)) + bytes(range(97, 123)) + bytes(range(128, 256)))
IS_WORD = IS_LETTER | _table(b"0123456789")
"""Letters and digits; every byte of a character beyond ASCII counts as a letter."""
LOWER = np.arange(256, dtype=np.uint8)
LOWER[65:91] += 32


class TextSpans(NamedTuple):
    """Pieces of the buffer, in order, and the document that each belongs to."""

    starts: Ints
    ends: Ints
    documents: Ints


@lru_cache(maxsize=4)
def _powers(base: int, num: int) -> Hashes:
    """base**0 .. base**(num - 1), modulo 2**64."""
    factors = np.full(num, np.uint64(base))
    factors[0] = 1
    return np.multiply.accumulate(factors)


def power_table(base: int, num: int) -> Hashes:
    """Powers of BASE or of its inverse; the tables are kept."""
    return _powers(base, 1 << max(num - 1, 1).bit_length())[:num]


def mixed(hashes: Hashes) -> Hashes:
    """Every bit of the result depends on every bit of the input (the finaliser of splitmix64)."""
    h = hashes ^ (hashes >> np.uint64(30))
    h *= np.uint64(0xBF58476D1CE4E5B9)
    h ^= h >> np.uint64(27)
    h *= np.uint64(0x94D049BB133111EB)
    h ^= h >> np.uint64(31)
    return h


class TextView:
    """Documents in one buffer of UTF-8, each followed by a new line."""

    def __init__(self, texts: list[bytes]) -> None:
        self.num_documents = len(texts)
        self.buffer = np.frombuffer(b"\n".join([*texts, b""]), np.uint8)
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        self.starts: Ints = np.concatenate([[0], np.cumsum(lengths + 1)[:-1]]).astype(np.int64)
        self.ends: Ints = self.starts + lengths

    @cached_property
    def characters_before(self) -> Ints:
        """Characters in front of each byte: bytes that do not continue a character."""
        begins = (self.buffer & 0xC0) != 0x80
        return np.concatenate([[0], np.cumsum(begins)]).astype(np.int64)

    def characters(self, starts: Ints, ends: Ints) -> Ints:
        return self.characters_before[ends] - self.characters_before[starts]

    @cached_property
    def _prefix(self) -> Hashes:
        values = LOWER[self.buffer].astype(np.uint64)
        values += np.uint64(1)
        values *= power_table(BASE, len(values))
        prefix = np.empty(len(values) + 1, np.uint64)
        prefix[0] = 0
        np.cumsum(values, out=prefix[1:])
        return prefix

    def hashes(self, starts: Ints, ends: Ints) -> Hashes:
        """A hash of each piece, with ASCII letters as lower case. Equal pieces have equal hashes wherever they are."""
        sums = self._prefix[ends] - self._prefix[starts]
        sums *= power_table(INVERSE_BASE, len(self.buffer) + 1)[starts]
        return mixed(sums)

    def _runs(self, inside: NDArray[np.bool_]) -> TextSpans:
        """Runs of bytes that are inside. Documents end with a new line, so that no run crosses one."""
        edges = np.flatnonzero(inside[1:] != inside[:-1]) + 1
        if len(inside) and inside[0]:
            edges = np.concatenate([[0], edges])
        starts, ends = edges[0::2], edges[1::2]
        return TextSpans(starts, ends, self._documents_of_sorted(starts))

    def _documents_of_sorted(self, positions: Ints) -> Ints:
        """The document of each position; there are far fewer documents than positions."""
        edges = np.searchsorted(positions, np.append(self.starts, len(self.buffer)))
        return np.repeat(np.arange(self.num_documents), np.diff(edges))

    def document_of(self, positions: Ints) -> Ints:
        return np.searchsorted(self.starts, positions, side="right") - 1

    @cached_property
    def words(self) -> TextSpans:
        """Pieces between spaces, as Gopher's rules count words."""
        return self._runs(~IS_SPACE[self.buffer])

    @cached_property
    def word_hashes(self) -> Hashes:
        return self.hashes(self.words.starts, self.words.ends)

    @cached_property
    def word_characters(self) -> Ints:
        return self.characters(self.words.starts, self.words.ends)

    @cached_property
    def word_characters_of_documents(self) -> NDArray[np.float64]:
        return self.per_document(self.words, self.word_characters)

    @cached_property
    def _ngram_sums(self) -> list[Hashes]:
        return [self.word_hashes]

    def word_ngrams(self, num: int) -> tuple[Hashes, Ints]:
        """Hashes of `num` words in a row in one document, and the number of the first word of each."""
        while len(self._ngram_sums) < num:  # each from the one with a word less
            shorter = self._ngram_sums[-1][:-1]
            later = self.word_hashes[len(self._ngram_sums) :]
            self._ngram_sums.append(shorter * np.uint64(BASE) + later[: len(shorter)])
        sums = self._ngram_sums[num - 1]
        return _in_one_document(sums, self.words.documents, num)

    @cached_property
    def plain_words(self) -> TextSpans:
        """Letters and digits without punctuation, as duplicates are compared by."""
        return self._runs(IS_WORD[self.buffer])

    @cached_property
    def plain_word_hashes(self) -> Hashes:
        return self.hashes(self.plain_words.starts, self.plain_words.ends)

    @cached_property
    def lines(self) -> TextSpans:
        """Lines with something in them; spaces at both ends are left out."""
        ends = np.flatnonzero(self.buffer == 10)
        starts = np.concatenate([[0], ends[:-1] + 1]).astype(np.int64)
        first = np.searchsorted(self.words.starts, starts, side="left")
        last = np.searchsorted(self.words.starts, ends, side="left") - 1
        filled = last >= first
        begins, stops = self.words.starts[first[filled]], self.words.ends[last[filled]]
        return TextSpans(begins, stops, self._documents_of_sorted(begins))

    @cached_property
    def paragraphs(self) -> TextSpans:
        """Lines that no empty line separates, joined."""
        lines = self.lines
        if not len(lines.starts):
            return lines
        breaks = np.cumsum(self.buffer == 10)
        line_number = breaks[lines.starts]
        is_new = np.ones(len(lines.starts), np.bool_)
        is_new[1:] = (line_number[1:] - line_number[:-1] > 1) | (lines.documents[1:] != lines.documents[:-1])
        first = np.flatnonzero(is_new)
        last = np.concatenate([first[1:], [len(is_new)]]) - 1
        return TextSpans(lines.starts[first], lines.ends[last], lines.documents[first])

    def per_document(self, spans: TextSpans, values: NDArray[np.generic] | None = None) -> NDArray[np.float64]:
        """The sum of a value over the pieces of each document; without values, their number."""
        weights = None if values is None else values.astype(np.float64)
        return np.bincount(spans.documents, weights=weights, minlength=self.num_documents).astype(np.float64)


def ngram_hashes(words: Hashes, documents: Ints, num: int) -> tuple[Hashes, Ints]:
    """Hashes of `num` words in a row in one document, and the number of the first word of each."""
    count = max(len(words) - num + 1, 0)
    sums = np.zeros(count, np.uint64)
    for offset in range(num if count else 0):
        sums *= np.uint64(BASE)
        sums += words[offset : offset + count]
    return _in_one_document(sums, documents, num)


def _in_one_document(sums: Hashes, documents: Ints, num: int) -> tuple[Hashes, Ints]:
    if not len(sums):
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    first = np.flatnonzero(documents[num - 1 :] == documents[: len(sums)])
    return mixed(sums[first]), first
