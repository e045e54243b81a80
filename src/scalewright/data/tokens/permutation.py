"""Permutation: a shuffle of 0 .. n-1, computed place by place: it takes no memory and starts anywhere."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

NUM_ROUNDS = 8
"""Four rounds shuffle large ranges well; small ranges need more."""
_GOLDEN, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Constants of SplitMix64, a hash of 64 bits."""
_WORD = 2**64 - 1


class Permutation:
    """A bijection of 0 .. n-1. Key and n decide it: not the library's version, and not what was asked before.

    The number is written as (l, r) with l < a and r < b, where a b is hardly more than n. Each round adds a hash of one
    part to the other, which can be undone, so no two numbers meet (a Feistel network). A result of n or more is put
    through again: with a near the square root of n that is rare.
    """

    def __init__(self, size: int, *key: int) -> None:
        if size < 1:
            raise ValueError(f"a permutation of {size} numbers: give 1 or more")
        self.size = size
        self._left = max(math.isqrt(size - 1) + 1, 1) if size > 1 else 1
        self._right = -(-size // self._left)
        self._keys = _round_keys(key)

    def __call__(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers at these places."""
        result = np.asarray(places, dtype=np.int64).copy()
        if result.size and (int(result.min()) < 0 or int(result.max()) >= self.size):
            raise IndexError(f"a place outside 0 .. {self.size - 1}")
        todo = np.arange(result.size)
        flat = result.reshape(-1)
        while todo.size:
            flat[todo] = self._rounds(flat[todo])
            todo = todo[flat[todo] >= self.size]
        return flat.reshape(result.shape)

    def _rounds(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        values = numbers.astype(np.uint64)
        a, b = np.uint64(self._left), np.uint64(self._right)
        left, right = values // b, values % b
        for number, key in enumerate(self._keys):
            if number % 2:
                right = (right + _hash(left, key) % b) % b
            else:
                left = (left + _hash(right, key) % a) % a
        return (left * b + right).astype(np.int64)


def _round_keys(key: tuple[int, ...]) -> list[np.uint64]:
    state = 0
    for part in key:
        state = _scrambled((state + _GOLDEN + (part & _WORD)) & _WORD)
    return [np.uint64(_scrambled((state + _GOLDEN * (number + 1)) & _WORD)) for number in range(NUM_ROUNDS)]


def _scrambled(word: int) -> int:
    word = ((word ^ (word >> 30)) * _MIX_1) & _WORD
    word = ((word ^ (word >> 27)) * _MIX_2) & _WORD
    return word ^ (word >> 31)


def _hash(values: NDArray[np.uint64], key: np.uint64) -> NDArray[np.uint64]:
    words = values + key  # unsigned arrays wrap around without a warning
    words = (words ^ (words >> np.uint64(30))) * np.uint64(_MIX_1)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(_MIX_2)
    return words ^ (words >> np.uint64(31))
