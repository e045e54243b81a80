"""The order in which an epoch reads the samples: shuffled, with reads that storage does well."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from scalewright.data.samples import Samples


def epoch_order(samples: Samples, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """Every sample once: shards in random order, then samples in random order within each shard.

    If any order costs the same, the set is one run and is shuffled as a whole. Only seed and epoch decide the order.
    """
    generator = np.random.default_rng([seed, epoch])
    edges = [*samples.run_starts(), len(samples)]
    runs = [np.arange(first, last, dtype=np.int64) for first, last in pairwise(edges)]
    return np.concatenate([generator.permutation(runs[number]) for number in generator.permutation(len(runs))])
