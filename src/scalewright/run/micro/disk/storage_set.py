"""The data sets that `bench storage` reads: random bytes in the sizes of photographs, the same in every format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from scalewright.data.samples import Format, Sample
from scalewright.data.sizing import plan_shards
from scalewright.data.writing import write_samples
from scalewright.run.micro.disk import page_cache
from scalewright.run.signals import StopRequestedError
from scalewright.workload.storage_run import StorageFormat, StorageRun

SIZE_SPREAD = 0.4
"""Standard deviation of a size's logarithm."""
POOL_BYTES = 2**24
"""Samples are slices of this many random bytes, so that making them costs little compared to writing them."""
STOP_CHECK_EVERY = 64
WRITTEN_AS: dict[StorageFormat, Format] = {"files": "folder", "shards": "shards", "lmdb": "lmdb"}


class RandomSamples:
    """Samples of random bytes between the markers of an image; sizes spread like those of photographs."""

    def __init__(self, config: StorageRun) -> None:
        generator = np.random.default_rng(config.seed)
        drawn = np.exp(generator.normal(-(SIZE_SPREAD**2) / 2, SIZE_SPREAD, config.num_samples))
        scaled = drawn * (config.size_bytes / config.num_samples / drawn.mean())
        self._sizes = np.maximum(scaled.astype(np.int64), 8)
        self._pool = generator.bytes(max(POOL_BYTES, 2 * int(self._sizes.max())))
        self._starts = generator.integers(0, len(self._pool) - int(self._sizes.max()), config.num_samples)

    def __len__(self) -> int:
        return len(self._sizes)

    def read(self, index: int) -> Sample:
        start, size = int(self._starts[index]), int(self._sizes[index])
        return b"\xff\xd8" + self._pool[start : start + size - 4] + b"\xff\xd9", 0


def make_sets(
    config: StorageRun, folder: Path, *, report_part: Callable[[str], None], is_stopped: Callable[[], bool]
) -> dict[StorageFormat, Path]:
    """Write the set to the storage in every format, and flush it to disk."""
    source = RandomSamples(config)
    plan = plan_shards(
        data_bytes=config.size_bytes, num_samples=config.num_samples, num_consumers=config.num_workers[-1]
    )

    def check_stop(done: int, total: int) -> None:
        del total
        if done % STOP_CHECK_EVERY == 0 and is_stopped():
            raise StopRequestedError

    places: dict[StorageFormat, Path] = {}
    for name in config.disk_formats:
        if name not in WRITTEN_AS:
            continue
        report_part(f"making {name}")
        places[name] = write_samples(
            source,
            folder / name,
            to=WRITTEN_AS[name],
            order=list(range(config.num_samples)),
            classes=("random",),
            origin={"seed": config.seed},
            shard_bytes=plan.shard_bytes,
            expected_bytes=config.size_bytes,
            on_progress=check_stop,
        )
    page_cache.flush(path for path in folder.rglob("*") if path.is_file())
    return places
