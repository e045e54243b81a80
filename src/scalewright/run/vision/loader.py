"""Batches of images on the device: decoded by processes that stay, copied beside the step, a few ahead of it.

Processes decode a few images at a time rather than whole batches: the first batch is there sooner, and all of them work
on it.
"""

from __future__ import annotations

import contextlib
import importlib
import queue
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from scalewright.errors import DocumentError, MissingExtraError, ScalewrightError
from scalewright.run.vision.source import VALIDATION, ImageSource, Key, rank_batches, rank_share
from scalewright.workload.vision_run import VisionRun

CHUNK = 32
"""Images that a process decodes for one answer."""
PREFETCHED = 2
"""Batches that lie ready on the device."""
AHEAD = 4
"""Answers that each process prepares ahead."""
TRIAL_S = 4.0
"""How long the loader is tried alone, once its processes are warm."""
NUM_SYNTHETIC = 4
"""Different batches of synthetic images."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One rank's images of a step."""

    images_BHWC: Tensor
    labels_B: Tensor
    waited_s: float
    """Time that training stood still for it."""


class Batches(Protocol):
    def next(self) -> Batch: ...

    def close(self) -> None: ...


class SyntheticBatches:
    """Random images that lie on the device already: what the step takes without any loader."""

    def __init__(self, run: VisionRun, device: torch.device, *, rank: int, first_step: int) -> None:
        generator = torch.Generator(device)
        generator.manual_seed(run.seed * run.num_ranks + rank)
        shape = (run.batch, run.image_size, run.image_size, 3)
        options: dict[str, Any] = {"generator": generator, "device": device}
        self._pool = [
            (
                torch.randint(256, shape, dtype=torch.uint8, **options),
                torch.randint(run.num_classes, (run.batch,), **options),
            )
            for _ in range(min(NUM_SYNTHETIC, run.steps))
        ]
        self._step = first_step

    def next(self) -> Batch:
        images, labels = self._pool[self._step % len(self._pool)]
        self._step += 1
        return Batch(images, labels, 0.0)

    def close(self) -> None:
        """Nothing runs."""


class DecodedImages(Dataset[Any]):
    """Decodes what it is asked for; a damaged image comes back as the sentence about it."""

    def __init__(self, source: ImageSource, *, size: int, seed: int) -> None:
        try:  # here, before processes are forked, and not at the top: synthetic images need no Pillow
            importlib.import_module("scalewright.run.vision.images")
        except ModuleNotFoundError as error:
            raise MissingExtraError("data", "pillow") from error
        self._source, self._size, self._seed = source, size, seed

    def __getitem__(self, key: Key) -> tuple[NDArray[np.uint8], int]:
        from scalewright.run.vision.images import training_pixels, validation_pixels

        epoch, index = key
        if epoch == VALIDATION:
            return validation_pixels(self._source.validation, index, size=self._size)
        rng = np.random.default_rng([self._seed, epoch, index])
        return training_pixels(self._source.training, index, size=self._size, rng=rng)

    def __getitems__(self, keys: list[Key]) -> tuple[Tensor, Tensor] | str:
        images = np.empty((len(keys), self._size, self._size, 3), dtype=np.uint8)
        labels = np.empty(len(keys), dtype=np.int64)
        try:
            for number, key in enumerate(keys):
                images[number], labels[number] = self[key]
        except ScalewrightError as error:
            return str(error)
        return torch.from_numpy(images), torch.from_numpy(labels)


class _Asked:
    """The keys of the coming iteration, chunk by chunk: what PyTorch calls a batch sampler."""

    def __init__(self) -> None:
        self.chunks: list[list[Key]] = []

    def __iter__(self) -> Iterator[list[Key]]:
        return iter(self.chunks)

    def __len__(self) -> int:
        return len(self.chunks)


class ImageLoader:
    """One pool of decoding processes for training and validation; one of them at a time."""

    def __init__(self, source: ImageSource, run: VisionRun, device: torch.device, *, rank: int) -> None:
        self._source, self._run, self._device, self._rank = source, run, device, rank
        self._asked = _Asked()
        workers: dict[str, Any] = {}
        if run.num_workers:
            workers = {"persistent_workers": True, "prefetch_factor": AHEAD, "worker_init_fn": _leave_signals}
        self._loader: DataLoader[Any] = DataLoader(
            DecodedImages(source, size=run.image_size, seed=run.seed),
            batch_sampler=self._asked,
            collate_fn=_as_it_is,
            num_workers=run.num_workers,
            pin_memory=device.type == "cuda",
            **workers,
        )

    def training(self, epoch: int, *, first_step: int = 0) -> DecodedBatches:
        """This rank's batches of an epoch, from a step of it on."""
        batches = rank_batches(self._source.epoch(self._run, epoch), self._run, rank=self._rank, first_step=first_step)
        return self._batches(batches, epoch)

    def validation(self) -> Iterator[Batch]:
        """This rank's share of the held-out images."""
        share = list(rank_share(self._source.held_out, self._run, rank=self._rank))
        with contextlib.closing(self._batches(share, VALIDATION)) as batches:
            for _ in share:
                yield batches.next()

    def images_per_s(self) -> float | None:
        """What the loader gives when nothing else happens: images per second, after every process gave its first."""
        warm = max(self._run.num_workers, 1)
        order = self._source.epoch(self._run, 0)
        mine = np.concatenate(rank_batches(order, self._run, rank=self._rank, first_step=0))
        self._ask([np.resize(mine, max(len(mine), (AHEAD * warm + warm) * CHUNK))], epoch=0)
        taken, started_s, now_s = 0, 0.0, 0.0
        for number, chunk in enumerate(self._chunks()):
            now_s = time.perf_counter()
            if number < warm:
                started_s = now_s
                continue
            taken += len(chunk[1])
            if now_s - started_s >= TRIAL_S:
                break
        return taken / (now_s - started_s) if taken and now_s > started_s else None

    def close(self) -> None:
        """End the processes now: they take no signals, and an interpreter that ends would wait for them."""
        running = self._loader._iterator
        if running is not None and self._run.num_workers:
            running._shutdown_workers()  # type: ignore[attr-defined]

    def _batches(self, batches: list[NDArray[np.int64]], epoch: int) -> DecodedBatches:
        self._ask(batches, epoch=epoch)
        return DecodedBatches(self._chunks(), [len(batch) for batch in batches], self._device)

    def _ask(self, batches: Iterable[NDArray[np.int64]], *, epoch: int) -> None:
        self._asked.chunks = [
            [(epoch, int(index)) for index in batch[first : first + CHUNK]]
            for batch in batches
            for first in range(0, len(batch), CHUNK)
        ]

    def _chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        for chunk in self._loader:
            if isinstance(chunk, str):
                raise DocumentError(chunk)
            yield chunk


class DecodedBatches:
    """Puts chunks together to batches on the device, in a thread and beside the step that runs."""

    def __init__(self, chunks: Iterator[tuple[Tensor, Tensor]], sizes: list[int], device: torch.device) -> None:
        self._chunks, self._sizes, self._device = chunks, sizes, device
        self._queue: queue.Queue[tuple[Tensor, Tensor, Any] | BaseException] = queue.Queue(maxsize=PREFETCHED)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._prepare, daemon=True, name="loader")
        self._thread.start()

    def next(self) -> Batch:
        started_s = time.perf_counter()
        found = self._queue.get()
        if isinstance(found, BaseException):
            raise found
        images, labels, copied = found
        if copied is not None:
            stream = torch.cuda.current_stream()
            stream.wait_event(copied)
            images.record_stream(stream)
            labels.record_stream(stream)
        return Batch(images, labels, time.perf_counter() - started_s)

    def close(self) -> None:
        self._stop.set()
        while self._thread.is_alive():
            try:  # let a blocked put finish
                self._queue.get_nowait()
            except queue.Empty:
                self._thread.join(timeout=0.01)

    def _prepare(self) -> None:
        stream = None
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        for size in self._sizes:
            try:
                made: tuple[Tensor, Tensor, Any] | BaseException = self._batch(size, stream)
            except Exception as error:  # handed to the thread that asks for the batch
                made = error
            if self._stop.is_set():
                return
            self._queue.put(made)
            if isinstance(made, BaseException):
                return

    def _batch(self, size: int, stream: Any) -> tuple[Tensor, Tensor, Any]:
        parts: list[tuple[Tensor, Tensor]] = []
        while sum(len(labels) for _, labels in parts) < size:
            parts.append(next(self._chunks))
        if stream is None:
            images, labels = (torch.cat([part[number] for part in parts]) for number in range(2))
            return images, labels, None
        with torch.cuda.stream(stream):
            images = torch.empty((size, *parts[0][0].shape[1:]), dtype=torch.uint8, device=self._device)
            labels = torch.empty(size, dtype=torch.int64, device=self._device)
            first = 0
            for some_images, some_labels in parts:
                last = first + len(some_labels)
                images[first:last].copy_(some_images, non_blocking=True)
                labels[first:last].copy_(some_labels, non_blocking=True)
                first = last
            return images, labels, stream.record_event()


def _as_it_is(chunk: Any) -> Any:
    return chunk


def _leave_signals(worker: int) -> None:
    """What asks a run to stop is its rank's business: its processes decode on until the last step is saved."""
    del worker
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
