"""Numbers of each document of a batch that filters compare with their bounds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from scalewright.data.text.cleaning.text_view import (
    IS_LETTER,
    Hashes,
    Ints,
    TextSpans,
    TextView,
    mixed,
)

Values = NDArray[np.float64]
STOP_WORDS = (b"the", b"be", b"to", b"of", b"and", b"that", b"have", b"with")
"""Of Gopher's rule."""
ELLIPSIS = "…".encode()
BULLETS = (b"-", b"*", "•".encode(), "‣".encode(), "▪".encode())
END_MARKS = b".!?\"'"
SHORT_LINE = 30


def _ratio(top: Values, bottom: Values) -> Values:
    return np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)


def characters(view: TextView) -> Values:
    return view.characters(view.starts, view.ends).astype(np.float64)


def words(view: TextView) -> Values:
    return view.per_document(view.words)


def word_length(view: TextView) -> Values:
    """Mean characters of a word."""
    return _ratio(view.word_characters_of_documents, words(view))


def symbols_per_word(view: TextView) -> Values:
    """`#` and ellipses for each word."""
    buffer = view.buffer
    marks = buffer == ord("#")
    dots = buffer == ord(".")
    three = dots.copy()
    three[1:] &= dots[:-1]
    three[2:] &= dots[:-2]
    three[:2] = False
    marks |= three
    marks[2:] |= (buffer[:-2] == ELLIPSIS[0]) & (buffer[1:-1] == ELLIPSIS[1]) & (buffer[2:] == ELLIPSIS[2])
    before = np.concatenate([[0], np.cumsum(marks)])
    return _ratio((before[view.ends] - before[view.starts]).astype(np.float64), words(view))


def alphabetic_words_frac(view: TextView) -> Values:
    """Words with a letter."""
    spans = view.words
    letters = np.concatenate([[0], np.cumsum(IS_LETTER[view.buffer])])
    return _ratio(view.per_document(spans, letters[spans.ends] > letters[spans.starts]), words(view))


def _hashes_of(texts: tuple[bytes, ...]) -> Hashes:
    view = TextView(list(texts))
    return view.hashes(view.starts, view.ends)


STOP_HASHES = _hashes_of(STOP_WORDS)


def stop_words(view: TextView) -> Values:
    """How many different stop words a document has, of Gopher's eight."""
    count = np.zeros(view.num_documents)
    for one in STOP_HASHES:
        present = np.zeros(view.num_documents, np.bool_)
        present[view.plain_words.documents[view.plain_word_hashes == one]] = True
        count += present
    return count


def _lines_with(view: TextView, is_so: NDArray[np.bool_]) -> Values:
    return _ratio(view.per_document(view.lines, is_so), view.per_document(view.lines))


def bullet_lines_frac(view: TextView) -> Values:
    starts = view.lines.starts
    is_bullet = np.zeros(len(starts), np.bool_)
    for mark in BULLETS:
        same = np.ones(len(starts), np.bool_)
        for offset, byte in enumerate(mark):
            same &= view.buffer[np.minimum(starts + offset, len(view.buffer) - 1)] == byte
        is_bullet |= same
    return _lines_with(view, is_bullet)


def ellipsis_lines_frac(view: TextView) -> Values:
    ends, buffer = view.lines.ends, view.buffer
    long = view.lines.ends - view.lines.starts >= 3
    last = [buffer[np.maximum(ends - back_by, 0)] for back_by in (3, 2, 1)]
    dots = (last[0] == 46) & (last[1] == 46) & (last[2] == 46)
    sign = (last[0] == ELLIPSIS[0]) & (last[1] == ELLIPSIS[1]) & (last[2] == ELLIPSIS[2])
    return _lines_with(view, long & (dots | sign))


def ended_lines_frac(view: TextView) -> Values:
    """Lines that end with a mark of punctuation."""
    return _lines_with(view, np.isin(view.buffer[view.lines.ends - 1], list(END_MARKS)))


def short_lines_frac(view: TextView) -> Values:
    return _lines_with(view, view.characters(view.lines.starts, view.lines.ends) <= SHORT_LINE)


def _keys(hashes: Hashes, documents: Ints) -> Hashes:
    """Equal for equal pieces of one document only."""
    return mixed(hashes + documents.astype(np.uint64) * np.uint64(0xD6E8FEB86659FD93))


def _in_order(keys: Hashes) -> Ints:
    """Positions of the keys that may occur twice, sorted by key, then by position."""
    num_slots = 1 << max(4 * len(keys), 16).bit_length()
    slots = (keys & np.uint64(num_slots - 1)).astype(np.int64)
    candidates = np.flatnonzero(np.bincount(slots, minlength=num_slots)[slots] > 1)  # the others occur once
    return candidates[np.argsort(keys[candidates], kind="stable")]


def _is_repeated(hashes: Hashes, documents: Ints) -> NDArray[np.bool_]:
    """Pieces that an earlier piece of the same document equals."""
    keys = _keys(hashes, documents)
    order = _in_order(keys)
    repeated = np.zeros(len(keys), np.bool_)
    repeated[order[1:]] = keys[order[1:]] == keys[order[:-1]]
    return repeated


def _repeated_frac(view: TextView, spans: TextSpans, *, by_characters: bool) -> Values:
    repeated = _is_repeated(view.hashes(spans.starts, spans.ends), spans.documents)
    if by_characters:
        lengths = view.characters(spans.starts, spans.ends)
        return _ratio(view.per_document(spans, lengths * repeated), characters(view))
    return _ratio(view.per_document(spans, repeated), view.per_document(spans))


def repeated_ngram_frac(num: int) -> Callable[[TextView], Values]:
    """Characters of words in n-grams of `num` words that came before in the document."""

    def measure(view: TextView) -> Values:
        spans, num_words = view.words, len(view.words.starts)
        hashes, first = view.word_ngrams(num)
        start = first[_is_repeated(hashes, spans.documents[first])]
        if not len(start):
            return np.zeros(view.num_documents)
        edges = np.bincount(start, minlength=num_words + 1) - np.bincount(start + num, minlength=num_words + 1)
        covered = np.cumsum(edges)[:num_words] > 0
        return _ratio(view.per_document(spans, view.word_characters * covered), view.word_characters_of_documents)

    return measure


def top_ngram_frac(num: int) -> Callable[[TextView], Values]:
    """Characters of the n-gram of `num` words that takes the most of a document by being repeated."""

    def measure(view: TextView) -> Values:
        hashes, first = view.word_ngrams(num)
        documents = view.words.documents[first]
        keys = _keys(hashes, documents)
        order = _in_order(keys)
        is_new = np.ones(len(order), np.bool_)
        is_new[1:] = keys[order[1:]] != keys[order[:-1]]
        starts = np.flatnonzero(is_new)
        counts = np.diff(np.append(starts, len(order)))
        at = order[starts]
        before = np.concatenate([[0], np.cumsum(view.word_characters)])
        taken = (counts > 1) * counts * (before[first[at] + num] - before[first[at]])
        most = np.zeros(view.num_documents)
        np.maximum.at(most, documents[at], taken.astype(np.float64))
        return np.minimum(_ratio(most, view.word_characters_of_documents), 1.0)

    return measure


def has_text(text: bytes) -> Callable[[TextView], Values]:
    """How often a document holds a text, in lower or upper case."""

    def measure(view: TextView) -> Values:
        content = view.buffer.tobytes().lower()
        positions, at = [], content.find(text)
        while at >= 0:
            positions.append(at)
            at = content.find(text, at + len(text))
        return np.bincount(
            view.document_of(np.array(positions, np.int64)), minlength=view.num_documents
        ).astype(np.float64)  # fmt: skip

    return measure


def repeated_lines_frac(view: TextView) -> Values:
    return _repeated_frac(view, view.lines, by_characters=False)


def repeated_line_characters_frac(view: TextView) -> Values:
    return _repeated_frac(view, view.lines, by_characters=True)


def repeated_paragraphs_frac(view: TextView) -> Values:
    return _repeated_frac(view, view.paragraphs, by_characters=False)


def repeated_paragraph_characters_frac(view: TextView) -> Values:
    return _repeated_frac(view, view.paragraphs, by_characters=True)
