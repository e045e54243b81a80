"""Made-up tokens, so that a run needs no data set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scalewright.data.tokens.files import MappedTokens
from scalewright.data.tokens.mixture import parse_sets
from scalewright.data.tokens.samples import TokenSamples, open_samples_of
from scalewright.data.tokens.token_set import TokenSet

SYNTHETIC = "synthetic"
NUM_SYNTHETIC_TOKENS = 2**20


def synthetic_tokens(*, vocab: int, seed: int) -> NDArray[np.uint32]:
    """Random tokens with the frequencies of text (the k-th about 1/k), so that there is something to learn."""
    generator = np.random.default_rng([seed, vocab])
    shares = 1.0 / np.arange(1, vocab + 1)
    edges = np.cumsum(shares / shares.sum())
    drawn = np.searchsorted(edges, generator.random(NUM_SYNTHETIC_TOKENS)).clip(max=vocab - 1)
    return drawn.astype(np.uint32)


def samples_named(data: str, *, seq_len: int, seed: int, vocab: int) -> TokenSamples:
    """The samples of the sets that `--data` names, or of made-up tokens."""
    if data == SYNTHETIC:
        sets = [TokenSet(SYNTHETIC, [MappedTokens(Path(SYNTHETIC), synthetic_tokens(vocab=vocab, seed=seed))])]
        return TokenSamples(sets, seq_len=seq_len, seed=seed, vocab=vocab)
    return open_samples_of(parse_sets(data), seq_len=seq_len, seed=seed, vocab=vocab)
