"""Number and size of shards: enough for every consumer, none too small to stream."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from scalewright import units
from scalewright.errors import ConfigError

Use = Literal["training", "validation"]
MB = int(units.MEGA)
SHARD_RANGE_BYTES: dict[Use, tuple[int, int]] = {
    "training": (128 * MB, int(units.GIGA)),
    "validation": (64 * MB, 256 * MB),
}
"""Smallest and largest shard that streams well: the infrastructure guide's chapter on file systems."""
MAX_PER_CONSUMER, MIN_PER_CONSUMER = 4, 2
TAR_BYTES_PER_SAMPLE = 4 * 512
"""Headers of image and label, the label, and half a block of padding after each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPlan:
    num_shards: int
    shard_bytes: int
    """Largest size of a shard, with what tar adds."""
    note: str
    """Which rule is broken, if not all can hold; else empty."""


def plan_shards(*, data_bytes: int, num_samples: int, num_consumers: int, use: Use = "training") -> ShardPlan:
    """Shards for a data set.

    Equation  n = k c, the largest k from 4 down to 2 with S / n >= s_min; more than 4 where S / n > s_max;
              n = floor(S / s_min), at least 1, where even k = 2 makes them smaller than s_min
    Source    infrastructure guide, file systems and I/O: 128 MB to 1 GB (validation 64 to 256 MB), 2 to 4 per consumer
    Assumes   samples of about one size; a consumer is a process that reads (loader workers times ranks)
    Checked   tests/data/test_shard_sizing.py: bounds and divisibility over random data sets
    """
    if data_bytes < 1 or num_samples < 1 or num_consumers < 1:
        raise ConfigError(
            f"{data_bytes} bytes, {num_samples} samples and {num_consumers} consumers: a plan needs 1 or more of each"
        )
    smallest, largest = SHARD_RANGE_BYTES[use]
    total = data_bytes + num_samples * TAR_BYTES_PER_SAMPLE
    per_consumer = MAX_PER_CONSUMER
    while per_consumer > MIN_PER_CONSUMER and total / (per_consumer * num_consumers) < smallest:
        per_consumer -= 1
    per_consumer = max(per_consumer, math.ceil(total / (largest * num_consumers)))
    num_shards, note = per_consumer * num_consumers, ""
    if total / num_shards < smallest:
        num_shards = max(total // smallest, 1)
        note = (
            f"{num_shards} shard{'' if num_shards == 1 else 's'} for {num_consumers} consumers: "
            f"{MIN_PER_CONSUMER} each would be smaller than {smallest // MB} MB"
        )
    num_shards = min(num_shards, num_samples)
    # One more sample than the mean, so that cutting by size does not leave a small last shard.
    shard_bytes = math.ceil(total / num_shards) + math.ceil(total / num_samples)
    return ShardPlan(num_shards=num_shards, shard_bytes=shard_bytes, note=note)
