"""Token data of a language run. Which samples a step takes depends on seed, data and batch only, never on the layout.

A sample is a window of `seq_len + 1` tokens. A run that resumes needs only the number of samples that were taken.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from scalewright.data.prefetch import Prefetcher
from scalewright.data.tokens.reader import PREFETCHED, samples_of_rank
from scalewright.data.tokens.samples import TokenSamples
from scalewright.data.tokens.synthetic import samples_named
from scalewright.run.language.mesh_position import MeshPosition
from scalewright.workload.language_run import LanguageRun


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """One rank's samples of a step."""

    tokens_BL: Tensor
    targets_BL: Tensor
    waited_s: float
    """Time that training waited for it."""


def open_data(run: LanguageRun) -> TokenSamples:
    return samples_named(run.data, seq_len=run.seq_len, seed=run.seed, vocab=run.shape.vocab)


class Loader:
    """Prepares batches of this rank in a thread, ahead of the step that takes them."""

    def __init__(
        self, data: TokenSamples, run: LanguageRun, position: MeshPosition, positions_L: Tensor, *, first_step: int,
        first_sample: int | None = None,
    ) -> None:  # fmt: skip
        layout = run.layout
        self._data, self._device, self._gbs = data, position.device, int(layout.gbs)
        first = first_step * self._gbs if first_sample is None else first_sample
        own = samples_of_rank(gbs=self._gbs, dp=int(layout.dp), mbs=int(layout.mbs), dp_rank=position.dp_rank)
        self._own = np.fromiter(own, dtype=np.int64)
        self._positions = positions_L.cpu().numpy()
        batches = (self._batch(first + number * self._gbs) for number in range(run.steps - first_step))
        self._prefetched = Prefetcher(batches, num_ahead=PREFETCHED)

    def next(self) -> TokenBatch:
        started_s = time.perf_counter()
        tokens, targets = (part.to(self._device, non_blocking=True) for part in self._prefetched.next())
        return TokenBatch(tokens, targets, time.perf_counter() - started_s)

    def close(self) -> None:
        self._prefetched.close()

    def _batch(self, first_sample: int) -> tuple[Tensor, Tensor]:
        windows = self._data.read(first_sample + self._own)
        parts = (windows[:, self._positions], windows[:, self._positions + 1])
        tokens, targets = (torch.from_numpy(np.ascontiguousarray(part)) for part in parts)
        if self._device.type == "cuda":
            return tokens.pin_memory(), targets.pin_memory()
        return tokens, targets
