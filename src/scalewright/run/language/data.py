"""Token data. Which samples a step takes depends on seed, step and batch only, never on the layout.

A sample is a window of `seq_len + 1` tokens. Their order is shuffled once per pass over the data. A run that resumes
needs only the number of the step to continue in the same order.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scalewright.errors import ConfigError, EnvironmentFailedError
from scalewright.run.language.mesh_position import MeshPosition
from scalewright.run.prefetch import Prefetcher
from scalewright.workload.language_run import LanguageRun
from scalewright.workload.run_options import SYNTHETIC

NUM_SYNTHETIC_TOKENS = 2**20
PREFETCHED = 2


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """One rank's samples of a step."""

    tokens_BL: Tensor
    targets_BL: Tensor
    waited_s: float
    """Time that training waited for it."""


class TokenData:
    """A long array of tokens, in memory or memory-mapped, cut into windows."""

    def __init__(self, tokens: NDArray[np.generic], *, seq_len: int, vocab: int, seed: int, name: str) -> None:
        self._tokens, self._seq_len, self._vocab, self._seed, self._name = tokens, seq_len, vocab, seed, name
        self.num_samples = (len(tokens) - 1) // seq_len
        if self.num_samples < 1:
            raise ConfigError(
                f"{name}: has {len(tokens)} tokens, fewer than one sample of {seq_len} and its next token: "
                "give more tokens or a shorter sequence"
            )
        self._order = np.empty(0, dtype=np.int64)
        self._order_of_pass = -1

    def sample(self, index: int) -> NDArray[np.int64]:
        """The `index`-th sample that training sees, counted over all passes."""
        pass_index, place_in_pass = divmod(index, self.num_samples)
        if pass_index != self._order_of_pass:
            self._order = np.random.default_rng([self._seed, pass_index]).permutation(self.num_samples)
            self._order_of_pass = pass_index
        start = int(self._order[place_in_pass]) * self._seq_len
        window = np.asarray(self._tokens[start : start + self._seq_len + 1], dtype=np.int64)
        largest = int(window.max())
        if largest >= self._vocab or int(window.min()) < 0:
            raise ConfigError(
                f"{self._name}: token {largest} near position {start} is outside the model's vocabulary of "
                f"{self._vocab}: give data made with this model's tokenizer"
            )
        return window


def open_data(run: LanguageRun) -> TokenData:
    if run.data == SYNTHETIC:
        tokens: NDArray[np.generic] = synthetic_tokens(vocab=run.shape.vocab, seed=run.seed)
        name = SYNTHETIC
    else:
        tokens, name = mapped_tokens(Path(run.data)), run.data
    return TokenData(tokens, seq_len=run.seq_len, vocab=run.shape.vocab, seed=run.seed, name=name)


def synthetic_tokens(*, vocab: int, seed: int) -> NDArray[np.uint32]:
    """Random tokens with the frequencies of text (the k-th about 1/k), so that there is something to learn."""
    generator = np.random.default_rng([seed, vocab])
    shares = 1.0 / np.arange(1, vocab + 1)
    edges = np.cumsum(shares / shares.sum())
    drawn = np.searchsorted(edges, generator.random(NUM_SYNTHETIC_TOKENS)).clip(max=vocab - 1)
    return drawn.astype(np.uint32)


def mapped_tokens(path: Path) -> NDArray[np.generic]:
    next_step = "write it with numpy.save from a one-dimensional array of unsigned token ids"
    try:
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such data set; check the path, or use --data {SYNTHETIC}") from error
    except (ValueError, EOFError) as error:
        raise ConfigError(f"{path}: is not a whole .npy file of tokens ({error}); {next_step}") from error
    except OSError as error:
        raise EnvironmentFailedError(f"{path}: the data set cannot be read: {error.strerror}") from error
    if not isinstance(tokens, np.ndarray) or tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise ConfigError(f"{path}: does not hold a one-dimensional array of whole numbers; {next_step}")
    return tokens


class Loader:
    """Prepares batches of this rank in a thread, ahead of the step that takes them."""

    def __init__(
        self, data: TokenData, run: LanguageRun, position: MeshPosition, positions_L: Tensor, *, first_step: int
    ) -> None:
        layout = run.layout
        self._data, self._device, self._gbs = data, position.device, int(layout.gbs)
        self._samples = list(
            samples_of_rank(gbs=self._gbs, dp=int(layout.dp), mbs=int(layout.mbs), dp_rank=position.dp_rank)
        )
        self._positions = positions_L.cpu().numpy()
        batches = (self._batch(step) for step in range(first_step, run.steps))
        self._prefetched = Prefetcher(batches, num_ahead=PREFETCHED)

    def next(self) -> TokenBatch:
        started_s = time.perf_counter()
        tokens, targets = (part.to(self._device, non_blocking=True) for part in self._prefetched.next())
        return TokenBatch(tokens, targets, time.perf_counter() - started_s)

    def close(self) -> None:
        self._prefetched.close()

    def _batch(self, step: int) -> tuple[Tensor, Tensor]:
        windows = np.stack([self._data.sample(step * self._gbs + index) for index in self._samples])
        parts = (windows[:, self._positions], windows[:, self._positions + 1])
        tokens, targets = (torch.from_numpy(np.ascontiguousarray(part)) for part in parts)
        if self._device.type == "cuda":
            return tokens.pin_memory(), targets.pin_memory()
        return tokens, targets


def samples_of_rank(*, gbs: int, dp: int, mbs: int, dp_rank: int) -> Iterator[int]:
    """Indices in the global batch that one copy of the model takes, micro-batch by micro-batch."""
    for micro in range(gbs // (dp * mbs)):
        first = (micro * dp + dp_rank) * mbs
        yield from range(first, first + mbs)
