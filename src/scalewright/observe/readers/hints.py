"""Find many short texts in megabytes at once: the positions of lines that a reader may understand.

Searching each hint on its own would cost the more the more readers there are. Here every four bytes of a block are
looked up in a table of the rarest four bytes of each hint; only where the table says yes, the hint is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

import numpy as np

from scalewright.observe.readers.source import Block

_GRAM = 4
_MIX = np.uint32(2654435761)
_BITS = 16
_COMMON = {byte: len("etaoinsrhldcumfpgwybvkxjqz") - rank for rank, byte in enumerate(b"etaoinsrhldcumfpgwybvkxjqz")}
_COMMON |= {
    ord(" "): 26,
    ord("0"): 20,
    ord("1"): 18,
    ord("."): 16,
    ord(":"): 14,
    ord("/"): 12,
    ord("_"): 12,
    ord("="): 10,
}


class HintTable:
    """Hints of all readers, to be found in blocks."""

    def __init__(self, hints: Mapping[bytes, tuple[int, ...]]) -> None:
        """Readers by hint, as numbers."""
        self._grams: dict[int, list[tuple[int, bytes, tuple[int, ...]]]] = {}
        for hint, readers in hints.items():
            if len(hint) < _GRAM:
                raise ValueError(f"the hint {hint!r} is shorter than {_GRAM} bytes")
            offset = _rarest_offset(hint)
            gram = int.from_bytes(hint[offset : offset + _GRAM], "little")
            self._grams.setdefault(gram, []).append((offset, hint, readers))
        self._table = np.zeros(1 << _BITS, np.bool_)
        self._table[_mixed(np.array(list(self._grams), np.uint32))] = True

    def lines(self, block: Block) -> Iterator[tuple[int, int, set[int]]]:
        """Start, end and readers of every line that has a hint, in order."""
        data, known = block.data, self._grams.get
        start = end = 0
        readers: set[int] = set()
        for position, gram in zip(*self._candidates(data), strict=True):
            for offset, hint, numbers in known(gram) or ():
                at = position - offset
                if at < 0 or not data.startswith(hint, at):
                    continue
                if at >= end:
                    if readers:
                        yield start, end, readers
                    start, end = data.rfind(b"\n", 0, at) + 1, block.end_of(at)
                    readers = set(numbers)
                else:
                    readers.update(numbers)
        if readers:
            yield start, end, readers

    def _candidates(self, data: bytes) -> tuple[list[int], list[int]]:
        """Positions whose four bytes may be in a hint, in order, and these bytes as numbers."""
        positions, values = [], []
        for shift in range(_GRAM):
            count = (len(data) - shift) // _GRAM
            if count <= 0:
                continue
            grams = np.frombuffer(data, "<u4", count=count, offset=shift)
            hits = np.flatnonzero(self._table[_mixed(grams)])
            positions.append(hits * _GRAM + shift)
            values.append(grams[hits])
        if not positions:
            return [], []
        every = np.concatenate(positions)
        order = np.argsort(every, kind="stable")
        return every[order].tolist(), np.concatenate(values)[order].tolist()


def _mixed(grams: np.ndarray[tuple[int, ...], np.dtype[np.uint32]]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint32]]:
    return (grams * _MIX) >> np.uint32(32 - _BITS)


@cache
def _rarest_offset(hint: bytes) -> int:
    return min(range(len(hint) - _GRAM + 1), key=lambda start: _commonness(hint[start : start + _GRAM]))


def _commonness(gram: bytes) -> int:
    return sum(_COMMON.get(byte, 4) for byte in gram)
