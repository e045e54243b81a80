"""Faults of data and storage that make a run slower."""

from __future__ import annotations

from scalewright.lab.faults.fault import Fault, Variation
from scalewright.lab.faults.injections import duty_cycle, slow_files
from scalewright.lab.faults.workloads import images, language, vision

FOLDER, SHARDS = "{data}/folder", "{data}/shards"


def _images(data: str, ranks: int, steps: int) -> tuple[str, ...]:
    """Large batches of small images: workers cannot read all of them ahead."""
    return vision(size=32, data=data, ranks=ranks, batch=32 if ranks == 1 else 24, steps=steps)


SLOW_DATA = Fault(
    kind="slow-data",
    title="the data set is on slow storage",
    effect="slowed",
    rules=("data-loader-bound",),
    how="a library below the processes delays reads of the data set",
    variations=(
        Variation(
            words="shards are read at 6 MB/s", command=_images(SHARDS, 1, 14), prepare=images("shards"),
            inject=slow_files("{data}", bytes_per_s=6e6),
        ),
        Variation(
            words="shards are read at 3 MB/s", command=_images(SHARDS, 1, 14), prepare=images("shards"),
            inject=slow_files("{data}", bytes_per_s=3e6),
        ),
        Variation(
            words="2 ranks, shards are read at 4 MB/s by each", prepare=images("shards"),
            command=_images(SHARDS, 2, 22),
            inject=slow_files("{data}", bytes_per_s=4e6),
        ),
    ),
)  # fmt: skip

TINY_FILES = Fault(
    kind="tiny-files",
    title="one file for each image, on storage where opening a file is slow",
    effect="slowed",
    rules=("many-small-files",),
    also=("data-loader-bound",),
    how="a folder of images whose files take long to open; the reference has the same images in shards there",
    variations=tuple(
        Variation(
            words=words, command=_images(FOLDER, ranks, steps), prepare=images("folder"),
            inject=slow_files("{data}", open_s=open_s),
            reference=_images(SHARDS, ranks, steps),
            reference_inject=lambda trial, open_s=open_s: _with_shards(trial, open_s),  # type: ignore[misc]
        )
        for words, ranks, steps, open_s in (
            ("15 ms for each file", 1, 14, 0.015), ("30 ms for each file", 1, 14, 0.03),
            ("2 ranks, 30 ms for each file", 2, 22, 0.03),
        )
    ),
)  # fmt: skip


def _with_shards(trial: object, open_s: float) -> None:
    images("shards")(trial)  # type: ignore[arg-type]
    slow_files("{data}", open_s=open_s)(trial)  # type: ignore[arg-type]


DELAYED_LOADER = Fault(
    kind="delayed-loader",
    title="workers of the data loader do not keep up",
    effect="slowed",
    rules=("data-loader-bound",),
    how="SIGSTOP and SIGCONT to the workers in turns",
    variations=tuple(
        Variation(
            words=words, command=_images(SHARDS, ranks, steps), prepare=images("shards"),
            inject=duty_cycle(stopped_s=stopped_s, runs_s=runs_s, workers=True, after_step=-1),
        )
        for words, ranks, steps, stopped_s, runs_s in (
            ("they stand still for 290 of every 300 ms", 1, 14, 0.29, 0.01),
            ("they stand still for 390 of every 400 ms", 1, 14, 0.39, 0.01),
            ("2 ranks, 240 of every 250 ms", 2, 16, 0.24, 0.01),
        )
    ),
)  # fmt: skip

SLOW_FIRST_BATCHES = Fault(
    kind="slow-first-batches",
    title="the first batches come late, from a cold file system",
    effect="slowed",
    rules=("slow-first-batches",),
    also=("data-loader-bound",),
    how="files of the data set are slow to open for the first seconds only",
    num_warm_steps=0,
    variations=tuple(
        Variation(
            words=words, command=_images(FOLDER, 1, steps), prepare=images("folder"),
            inject=slow_files("{data}/folder/train", open_s=open_s, for_s=for_s),
        )
        for words, steps, open_s, for_s in (
            ("100 ms for each file in the first 20 s", 26, 0.1, 20.0),
            ("150 ms for each file in the first 24 s", 26, 0.15, 24.0),
            ("80 ms for each file in the first 18 s", 26, 0.08, 18.0),
        )
    ),
)  # fmt: skip

SLOW_CHECKPOINTS = Fault(
    kind="slow-checkpoint-storage",
    title="checkpoints go to slow storage",
    effect="slowed",
    rules=("checkpoint-stall",),
    also=("checkpoint-interval",),
    how="a library below the ranks delays writes of checkpoints",
    variations=(
        Variation(
            words="synchronous, every 10 steps, at 8 MB/s",
            command=language("--checkpoint", "sync", "--checkpoint-every", "10"),
            inject=slow_files("{run}/checkpoints", bytes_per_s=8e6),
        ),
        Variation(
            words="asynchronous, every 8 steps, at 4 MB/s",
            command=language("--checkpoint", "async", "--checkpoint-every", "8"),
            inject=slow_files("{run}/checkpoints", bytes_per_s=4e6),
        ),
        Variation(
            words="synchronous, every 10 steps, 0.4 s for each flush to the disk",
            command=language("--checkpoint", "sync", "--checkpoint-every", "10", ranks=1),
            inject=slow_files("{run}/checkpoints", flush_s=0.4),
        ),
    ),
)  # fmt: skip

FREQUENT_CHECKPOINTS = Fault(
    kind="frequent-checkpoints",
    title="checkpoints are saved too often",
    effect="slowed",
    rules=("checkpoint-interval", "checkpoint-stall"),
    how="--checkpoint-every; the reference saves once",
    variations=(
        Variation(
            words="synchronous after every step", command=language("--checkpoint", "sync", "--checkpoint-every", "1"),
            reference=language("--checkpoint", "sync", "--checkpoint-every", "40"),
        ),
        Variation(
            words="synchronous after every second step, 1 rank",
            command=language("--checkpoint", "sync", "--checkpoint-every", "2", ranks=1),
            reference=language("--checkpoint", "sync", "--checkpoint-every", "40", ranks=1),
        ),
        Variation(
            words="asynchronous after every step, 1 rank",
            command=language("--checkpoint", "async", "--checkpoint-every", "1", ranks=1),
            reference=language("--checkpoint", "async", "--checkpoint-every", "40", ranks=1),
        ),
    ),
)  # fmt: skip

NOT_OVERLAPPED = Fault(
    kind="disabled-overlap",
    title="training waits for checkpoints that could be written beside it",
    effect="slowed",
    rules=("checkpoint-stall", "checkpoint-interval"),
    how="--checkpoint sync on storage with some latency; the reference is async",
    variations=tuple(
        Variation(
            words=words, command=language("--checkpoint", "sync", "--checkpoint-every", every, ranks=ranks, steps=48),
            inject=slow_files("{run}/checkpoints", flush_s=flush_s),
            reference=language("--checkpoint", "async", "--checkpoint-every", every, ranks=ranks, steps=48),
            reference_inject=slow_files("{run}/checkpoints", flush_s=flush_s),
        )
        for words, every, ranks, flush_s in (
            ("every 12 steps, 0.1 s for each flush, 2 ranks", "12", 2, 0.1),
            ("every 16 steps, 0.04 s for each flush, 1 rank", "16", 1, 0.04),
            ("every 16 steps, 0.2 s for each flush, 2 ranks", "16", 2, 0.2),
        )
    ),
)  # fmt: skip

FAULTS = (
    SLOW_DATA, TINY_FILES, DELAYED_LOADER, SLOW_FIRST_BATCHES, SLOW_CHECKPOINTS, FREQUENT_CHECKPOINTS, NOT_OVERLAPPED,
)  # fmt: skip
