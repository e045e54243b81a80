"""Where images come from: made on the spot, copied to RAM or a local disk, split into training and validation."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scalewright.data.copying import RAM_FOLDER, CopiedSet, copy_set, remove_copy
from scalewright.data.folder import FolderSamples
from scalewright.data.imagenet_like import ImageSet, make_images
from scalewright.data.opening import open_samples
from scalewright.data.order import epoch_order
from scalewright.data.samples import Samples
from scalewright.data.splits import HELD_OUT_EVERY, split_folders
from scalewright.errors import ConfigError
from scalewright.records.run_directory import RunDirectory
from scalewright.run.world import World
from scalewright.workload.vision_run import MADE, RAM, VisionRun

VALIDATION = -1
"""The epoch of images that are scored and not learnt from."""
Key = tuple[int, int]
"""Epoch and number of an image. With the seed, they decide how the image is cropped."""
NUM_SIZED = 16
"""Files whose size is looked up, for the mean."""
MADE_PER_CLASS, MAX_MADE_CLASSES = 20, 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSource:
    """Images to learn from and images held out. Pickled and forked into the workers that decode."""

    training: Samples
    validation: Samples
    held_out: NDArray[np.int64]
    """Numbers of the images in `validation` that are scored."""
    is_shared: bool
    """Both are one data set, and training leaves out what is held out."""

    def epoch(self, run: VisionRun, epoch: int) -> NDArray[np.int64]:
        """Images of an epoch in their order, over all ranks: full batches only."""
        passes = run.passes_per_epoch
        orders = (epoch_order(self.training, seed=run.seed, epoch=epoch * passes + number) for number in range(passes))
        order = np.concatenate(list(orders))
        if self.is_shared:
            order = order[~np.isin(order, self.held_out)]
        return np.resize(order, run.steps_per_epoch * run.global_batch)


def rank_batches(order: NDArray[np.int64], run: VisionRun, *, rank: int, first_step: int) -> list[NDArray[np.int64]]:
    """A rank's images of every step. All ranks together take the images that a single rank would take in that step."""
    steps = order.reshape(run.steps_per_epoch, run.batch, run.num_ranks)
    return [steps[step, :, rank] for step in range(first_step, run.steps_per_epoch)]


def rank_share(held_out: NDArray[np.int64], run: VisionRun, *, rank: int) -> Iterator[NDArray[np.int64]]:
    """Held-out images that a rank scores, batch by batch; the last one may be smaller, or missing on some ranks."""
    own = held_out[rank :: run.num_ranks]
    for first in range(0, len(own), run.batch):
        yield own[first : first + run.batch]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedSource:
    source: ImageSource
    copies: tuple[CopiedSet, ...]

    def close(self) -> None:
        """Remove the copies that this process made."""
        for samples in (self.source.training, self.source.validation):
            samples.close()
        for copy in self.copies:
            if copy.is_new:
                remove_copy(copy)

    @property
    def copying_s(self) -> float:
        return sum(copy.time_s for copy in self.copies)


def open_source(
    run: VisionRun, directory: RunDirectory, world: World, wait_for_all: Callable[[], None]
) -> OpenedSource:
    """Every rank opens the same data set. Rank 0 makes it if it has to be made; one rank of each node copies it."""
    if run.data == MADE:
        if world.is_first:
            make_data(run, directory.data)
        wait_for_all()
    folder = directory.data if run.data == MADE else Path(run.data)
    folders, copies = split_folders(folder), []
    if run.copy_to:
        target = RAM_FOLDER if run.copy_to == RAM else Path(run.copy_to)
        copies = [copy_set(path, target) for path in dict.fromkeys(folders)]
        folders = (copies[0].path, copies[-1].path)
    training = open_samples(folders[0])
    is_shared = folders[0] == folders[1]
    validation = training if is_shared else open_samples(folders[1])
    for samples in (training, validation):
        check_classes(samples, run)
    held_out = np.arange(len(validation), dtype=np.int64)
    if is_shared:
        shuffled = np.random.default_rng([run.seed, len(training)]).permutation(held_out)
        held_out = np.sort(shuffled[: len(training) // HELD_OUT_EVERY])
    source = ImageSource(training=training, validation=validation, held_out=held_out, is_shared=is_shared)
    return OpenedSource(source=source, copies=tuple(copies))


def data_words(samples: Samples) -> str:
    """`format=folder samples=1281167 files=1281167 bytes=140000000000`: how a data set is stored."""
    words = [f"format={samples.format}", f"samples={len(samples)}"]
    if isinstance(samples, FolderSamples):
        looked = np.linspace(0, len(samples) - 1, min(len(samples), NUM_SIZED)).astype(int)
        sizes = [samples.file(int(index)).stat().st_size for index in looked]
        words += [f"files={len(samples)}", f"bytes={sum(sizes) / len(sizes) * len(samples):.0f}"]
    return " ".join(words)


def check_classes(samples: Samples, run: VisionRun) -> None:
    if samples.num_classes > run.num_classes:
        raise ConfigError(
            f"{samples.path}: has {samples.num_classes} classes, more than the {run.num_classes} that {run.model_id} "
            "tells apart: choose a model with as many"
        )


def make_data(run: VisionRun, folder: Path) -> None:
    """Training and validation images of the same classes, with enough images of each class to learn from."""
    classes = max(min(run.num_classes, MAX_MADE_CLASSES, run.num_made // MADE_PER_CLASS), 1)
    num_validation = max(run.num_made // HELD_OUT_EVERY, classes)
    for name, count, seed in (("train", run.num_made, run.seed), ("val", num_validation, run.seed + 1)):
        make_images(
            folder / name,
            ImageSet(num_images=count, num_classes=classes, seed=seed),
            to=run.made_format,
            num_workers=len(os.sched_getaffinity(0)) if name == "train" else 1,
        )
