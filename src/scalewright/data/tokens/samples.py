"""TokenSamples: the samples of training by number. Seed, sets and weights decide them, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from scalewright.data.tokens.mixture import Mixture, WeightedPath
from scalewright.data.tokens.order import EpochOrder
from scalewright.data.tokens.token_set import TokenSet, open_token_set
from scalewright.errors import ConfigError


class TokenSamples:
    """Sample i is a window of `seq_len + 1` tokens. An epoch of a set takes each of its windows once.

    The ranks of a run share the numbers 0, 1, 2, ... between them: another number of ranks, or a run that resumes,
    reads the same samples in the same order.
    """

    def __init__(
        self,
        sets: Sequence[TokenSet],
        *,
        seq_len: int,
        seed: int,
        weights: Sequence[float] | None = None,
        vocab: int = 0,
    ) -> None:
        self._sets, self._seq_len, self._seed, self._vocab = list(sets), seq_len, seed, vocab
        self._num_windows = [checked_windows(one, seq_len) for one in sets]
        self._mixture = Mixture(weights or [1.0] * len(sets))
        self._runs = [one.window_runs(seq_len) for one in sets]
        self._orders: list[tuple[int, EpochOrder] | None] = [None] * len(sets)

    @property
    def names(self) -> list[str]:
        return [one.name for one in self._sets]

    @property
    def num_windows(self) -> list[int]:
        """Samples in an epoch of each set."""
        return self._num_windows

    @property
    def num_tokens(self) -> list[int]:
        """Of each set: a set that has changed since a checkpoint has other samples."""
        return [one.num_tokens for one in self._sets]

    def epochs(self, num_samples: int) -> list[float]:
        """How often the first `num_samples` samples go through each set."""
        taken = self._mixture.taken(num_samples)
        return [number / windows for number, windows in zip(taken, self._num_windows, strict=True)]

    def places(self, indices: Sequence[int] | NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For each sample: the number of its set, and its window in that set."""
        sets, numbers = self._mixture(np.asarray(indices, dtype=np.int64))
        windows = np.empty(len(sets), dtype=np.int64)
        for one in np.unique(sets):
            epochs, within = np.divmod(numbers, self._num_windows[one])
            for epoch in np.unique(epochs[sets == one]):
                chosen = (sets == one) & (epochs == epoch)
                windows[chosen] = self._order(int(one), int(epoch))(within[chosen])
        return sets, windows

    def read(self, indices: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """Tokens of these samples, one row of `seq_len + 1` each."""
        sets, windows = self.places(indices)
        rows = np.empty((len(sets), self._seq_len + 1), dtype=np.int64)
        # Read in the order of the file, so that neighbours share pages and row groups.
        for row in np.lexsort((windows, sets)):
            start = int(windows[row]) * self._seq_len
            rows[row] = self._sets[sets[row]].read(start, start + self._seq_len + 1)
            if self._vocab:
                self._check(rows[row], self._sets[sets[row]].name, start)
        return rows

    def _order(self, one: int, epoch: int) -> EpochOrder:
        known = self._orders[one]
        if known is None or known[0] != epoch:
            known = (epoch, EpochOrder(self._runs[one], seed=self._seed, epoch=epoch, salt=one))
            self._orders[one] = known
        return known[1]

    def _check(self, tokens: NDArray[np.int64], name: str, start: int) -> None:
        largest, least = int(tokens.max()), int(tokens.min())
        if largest >= self._vocab or least < 0:
            token = least if least < 0 else largest
            raise ConfigError(
                f"{name}: token {token} near position {start} is outside the model's vocabulary of {self._vocab}: "
                "give data made with this model's tokenizer"
            )


def open_samples_of(
    sets: Sequence[WeightedPath], *, seq_len: int, seed: int, vocab: int = 0
) -> TokenSamples:  # fmt: skip
    """The samples of sets on disk."""
    opened = [open_token_set(one.path) for one in sets]
    return TokenSamples(opened, seq_len=seq_len, seed=seed, weights=[one.weight for one in sets], vocab=vocab)


def checked_windows(one: TokenSet, seq_len: int) -> int:
    """Samples of a set. A set with none is refused."""
    if seq_len < 1:
        raise ConfigError(f"a sample of {seq_len} tokens: give 1 or more")
    if not one.num_windows(seq_len):
        raise ConfigError(
            f"{one.name}: has {one.num_tokens} tokens, fewer than one sample of {seq_len} and its next token: "
            "give more tokens or a shorter sequence"
        )
    return one.num_windows(seq_len)
