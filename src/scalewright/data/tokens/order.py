"""EpochOrder: which window of a token set comes at which place of a pass; each window once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from scalewright.data.tokens.permutation import Permutation

RUNS_AT_ONCE = 8
"""Runs that are shuffled together: a reader keeps as many of them decoded."""
_RUNS, _WINDOWS = 1, 2
"""Keep the two shuffles of a pass apart."""


class EpochOrder:
    """A set whose windows cost the same in any order is one run, shuffled as a whole.

    Where a window is only read with its run (a row group of Parquet), runs come in random order, and windows are
    shuffled within `RUNS_AT_ONCE` neighbours of that order.
    """

    def __init__(self, run_sizes: Sequence[int], *, seed: int, epoch: int, salt: int = 0) -> None:
        sizes = np.asarray([size for size in run_sizes if size], dtype=np.int64)
        order = Permutation(len(sizes), seed, epoch, salt, _RUNS)(np.arange(len(sizes)))
        starts = np.concatenate(([0], np.cumsum(sizes)))[:-1]
        self._first_window = starts[order]
        self._run_ends = np.cumsum(sizes[order])
        self._group_ends = self._run_ends[RUNS_AT_ONCE - 1 :: RUNS_AT_ONCE]
        if len(sizes) % RUNS_AT_ONCE:
            self._group_ends = np.append(self._group_ends, self._run_ends[-1])
        self._key = (seed, epoch, salt, _WINDOWS)

    def __call__(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The windows at these places of the pass."""
        windows = np.empty(len(places), dtype=np.int64)
        groups = np.searchsorted(self._group_ends, places, side="right")
        for group in np.unique(groups):
            chosen = groups == group
            start = int(self._group_ends[group - 1]) if group else 0
            shuffled = Permutation(int(self._group_ends[group]) - start, *self._key, int(group))
            among = shuffled(places[chosen] - start) + start
            runs = np.searchsorted(self._run_ends, among, side="right")
            run_starts = np.where(runs > 0, self._run_ends[runs - 1], 0)
            windows[chosen] = self._first_window[runs] + among - run_starts
        return windows
