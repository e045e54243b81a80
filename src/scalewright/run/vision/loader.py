"""Batches of images on the device: worker processes decode them, a thread copies them while the step runs.

Workers decode a few images at a time rather than whole batches. All of them work on the first batch, so it is ready
sooner.
"""

from __future__ import annotations

import contextlib
import importlib
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from scalewright.data.prefetch import Prefetcher
from scalewright.errors import DocumentError, MissingExtraError, ScalewrightError
from scalewright.run.vision.source import VALIDATION, ImageSource, Key, rank_batches, rank_share
from scalewright.workload.vision_run import VisionRun

CHUNK = 32
"""Images that a worker decodes at a time."""
PREFETCHED = 2
"""Batches that are ready on the device."""
AHEAD = 4
"""Chunks that each worker prepares ahead."""
TRIAL_S = 4.0
"""How long the loader is measured alone, once its workers are warm."""
MOST_WORKERS = 64
"""Workers that are timed one by one; more of them share a place."""
NUM_SYNTHETIC = 4
"""Different batches of synthetic images."""


@dataclass(frozen=True, slots=True)
class ImageBatch:
    """One rank's images of a step."""

    images_BHWC: Tensor
    labels_B: Tensor
    waited_s: float
    """Time that training waited for it."""


class Batches(Protocol):
    def next(self) -> ImageBatch: ...

    def close(self) -> None: ...


class SyntheticBatches:
    """Random images that are on the device already: they show the step's time without a loader."""

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

    def next(self) -> ImageBatch:
        images, labels = self._pool[self._step % len(self._pool)]
        self._step += 1
        return ImageBatch(images, labels, 0.0)

    def close(self) -> None:
        """Nothing to close."""


class DecodedImages(Dataset[Any]):
    """Decodes images by their key. A damaged image makes `__getitems__` return its error message instead of a batch."""

    def __init__(self, source: ImageSource, *, size: int, seed: int) -> None:
        try:  # here, before processes are forked, and not at the top: synthetic images need no Pillow
            importlib.import_module("scalewright.run.vision.images")
        except ModuleNotFoundError as error:
            raise MissingExtraError("data", "pillow") from error
        self._source, self._size, self._seed = source, size, seed
        self._use = torch.zeros((MOST_WORKERS, 2), dtype=torch.float64)
        self._use.share_memory_()  # type: ignore[no-untyped-call]

    @property
    def use_s(self) -> tuple[float, float]:
        """Time that workers took for their images so far, and the part of it in which they computed."""
        took_s, computed_s = self._use.sum(0).tolist()
        return took_s, computed_s

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
        started_s, cpu_started_s = time.perf_counter(), time.thread_time()
        try:
            for number, key in enumerate(keys):
                images[number], labels[number] = self[key]
        except ScalewrightError as error:
            return str(error)
        worker = get_worker_info()
        own = self._use[(worker.id if worker is not None else 0) % MOST_WORKERS]
        own[0] += time.perf_counter() - started_s
        own[1] += time.thread_time() - cpu_started_s
        return torch.from_numpy(images), torch.from_numpy(labels)


class _KeyChunks:
    """The keys of the coming iteration, chunk by chunk: what PyTorch calls a batch sampler."""

    def __init__(self) -> None:
        self.chunks: list[list[Key]] = []

    def __iter__(self) -> Iterator[list[Key]]:
        return iter(self.chunks)

    def __len__(self) -> int:
        return len(self.chunks)


class ImageLoader:
    """One pool of workers that decode for training and for validation, one of the two at a time."""

    def __init__(self, source: ImageSource, run: VisionRun, device: torch.device, *, rank: int) -> None:
        self._source, self._run, self._device, self._rank = source, run, device, rank
        self._keys = _KeyChunks()
        workers: dict[str, Any] = {}
        if run.num_workers:
            workers = {"persistent_workers": True, "prefetch_factor": AHEAD, "worker_init_fn": _ignore_stop_signals}
        self._images = DecodedImages(source, size=run.image_size, seed=run.seed)
        self._loader: DataLoader[Any] = DataLoader(
            self._images,
            batch_sampler=self._keys,
            collate_fn=_unchanged,
            num_workers=run.num_workers,
            pin_memory=device.type == "cuda",
            **workers,
        )

    def training(self, epoch: int, *, first_step: int = 0) -> DecodedBatches:
        """This rank's batches of an epoch, from `first_step` of the epoch on."""
        batches = rank_batches(self._source.epoch(self._run, epoch), self._run, rank=self._rank, first_step=first_step)
        return self._batches(batches, epoch)

    def validation(self) -> Iterator[ImageBatch]:
        """This rank's share of the held-out images."""
        share = list(rank_share(self._source.held_out, self._run, rank=self._rank))
        with contextlib.closing(self._batches(share, VALIDATION)) as batches:
            for _ in share:
                yield batches.next()

    def images_per_s(self) -> float | None:
        """Rate of the loader alone, measured after every worker gave its first chunk."""
        warm = max(self._run.num_workers, 1)
        order = self._source.epoch(self._run, 0)
        own = np.concatenate(rank_batches(order, self._run, rank=self._rank, first_step=0))
        self._set_keys([np.resize(own, max(len(own), (AHEAD * warm + warm) * CHUNK))], epoch=0)
        num_images, started_s, now_s = 0, 0.0, 0.0
        for number, chunk in enumerate(self._chunks()):
            now_s = time.perf_counter()
            if number < warm:
                started_s = now_s
                continue
            num_images += len(chunk[1])
            if now_s - started_s >= TRIAL_S:
                break
        return num_images / (now_s - started_s) if num_images and now_s > started_s else None

    def use_words(self) -> str:
        """`workers_s=12.1 computing_s=3.2`: where the time of the workers went so far."""
        took_s, computed_s = self._images.use_s
        return f"workers_s={took_s:.6g} computing_s={computed_s:.6g}"

    def close(self) -> None:
        """End the workers now: they ignore signals, and the interpreter would wait for them at its end."""
        running = self._loader._iterator
        if running is not None and self._run.num_workers:
            running._shutdown_workers()  # type: ignore[attr-defined]

    def _batches(self, batches: list[NDArray[np.int64]], epoch: int) -> DecodedBatches:
        self._set_keys(batches, epoch=epoch)
        return DecodedBatches(self._chunks(), [len(batch) for batch in batches], self._device)

    def _set_keys(self, batches: Iterable[NDArray[np.int64]], *, epoch: int) -> None:
        self._keys.chunks = [
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
    """Joins chunks into batches on the device, in a thread, while the step runs."""

    def __init__(self, chunks: Iterator[tuple[Tensor, Tensor]], sizes: list[int], device: torch.device) -> None:
        self._chunks, self._sizes, self._device = chunks, sizes, device
        self._prefetched = Prefetcher(self._on_device(), num_ahead=PREFETCHED)

    def next(self) -> ImageBatch:
        started_s = time.perf_counter()
        images, labels, copied = self._prefetched.next()
        if copied is not None:
            stream = torch.cuda.current_stream()
            stream.wait_event(copied)
            images.record_stream(stream)
            labels.record_stream(stream)
        return ImageBatch(images, labels, time.perf_counter() - started_s)

    def close(self) -> None:
        self._prefetched.close()

    def _on_device(self) -> Iterator[tuple[Tensor, Tensor, Any]]:
        stream = None
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        for size in self._sizes:
            yield self._batch(size, stream)

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
            for chunk_images, chunk_labels in parts:
                last = first + len(chunk_labels)
                images[first:last].copy_(chunk_images, non_blocking=True)
                labels[first:last].copy_(chunk_labels, non_blocking=True)
                first = last
            return images, labels, stream.record_event()


def _unchanged(chunk: Any) -> Any:
    return chunk


def _ignore_stop_signals(worker: int) -> None:
    """The rank handles signals to stop. Its workers go on decoding until the last step is saved."""
    del worker
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
