"""TokenReader: one rank's batches, read ahead in a thread, resumable at a sample on another number of ranks.

Samples are windows of text (`TokenSamples`) or prompts with answers (`AnswerSamples`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from scalewright.data.prefetch import Prefetcher
from scalewright.errors import ConfigError

PREFETCHED = 2
"""Batches that are read ahead."""


def samples_of_rank(*, gbs: int, dp: int, mbs: int, dp_rank: int) -> Iterator[int]:
    """Indices in the global batch that one copy of the model takes, micro-batch by micro-batch."""
    for micro in range(gbs // (dp * mbs)):
        first = (micro * dp + dp_rank) * mbs
        yield from range(first, first + mbs)


Rows_co = TypeVar("Rows_co", covariant=True)


class NumberedSamples(Protocol[Rows_co]):
    """Samples by number: the same ones for the same number, on every rank."""

    @property
    def names(self) -> list[str]:
        """Of the sets that they come from."""
        ...

    @property
    def num_tokens(self) -> list[int]:
        """Of each set."""
        ...

    def read(self, indices: NDArray[np.int64]) -> Rows_co:
        """The samples with these numbers."""
        ...


class TokenReader(Generic[Rows_co]):
    """Iterates over samples, this rank's part of `batch` at a time.

    `state()` is the same on every rank; a reader that starts with it on another number of ranks, or with another batch,
    continues with the sample after the last one that was given out.
    """

    def __init__(
        self,
        samples: NumberedSamples[Rows_co],
        *,
        batch: int,
        rank: int = 0,
        num_ranks: int = 1,
        state: dict[str, Any] | None = None,
    ) -> None:
        if not 0 <= rank < num_ranks:
            raise ConfigError(f"rank {rank} of {num_ranks}: give a rank from 0 to {num_ranks - 1}")
        if batch < num_ranks or batch % num_ranks:
            raise ConfigError(f"a batch of {batch} for {num_ranks} ranks: give a multiple of the number of ranks")
        self._samples, self._batch = samples, batch
        self._next = checked_start(samples, state) if state else 0
        self._own = np.arange(rank * (batch // num_ranks), (rank + 1) * (batch // num_ranks))
        self._prefetched = Prefetcher(self._batches(self._next), num_ahead=PREFETCHED)
        self.waited_s = 0.0
        """Time that the latest batch was waited for."""

    def __iter__(self) -> TokenReader[Rows_co]:
        return self

    def __next__(self) -> Rows_co:
        """This rank's part of the next batch; of text, rows of `seq_len + 1` tokens. Epoch follows epoch."""
        started_s = time.perf_counter()
        rows = self._prefetched.next()
        self.waited_s = time.perf_counter() - started_s
        self._next += self._batch
        return rows

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: samples given out so far on all ranks, and which sets they are of."""
        return data_state(self._samples, num_samples=self._next)

    def close(self) -> None:
        self._prefetched.close()

    def _batches(self, start: int) -> Iterator[Rows_co]:
        while True:
            yield self._samples.read(start + self._own)
            start += self._batch


def data_state(samples: NumberedSamples[object], *, num_samples: int) -> dict[str, Any]:
    return {"num_samples": num_samples, "set_tokens": samples.num_tokens}


def checked_start(samples: NumberedSamples[object], state: dict[str, Any]) -> int:
    """The first sample that was not given out yet. Sets of another size have other samples, so they are refused."""
    try:
        start, tokens = int(state["num_samples"]), [int(number) for number in state["set_tokens"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"the state of the data is not whole ({error}); start without it") from error
    if tokens != samples.num_tokens:
        raise ConfigError(
            f"the data changed since the checkpoint: {', '.join(samples.names)} had {tokens} tokens and has "
            f"{samples.num_tokens} now; bring the sets back, or start a new run"
        )
    return start
