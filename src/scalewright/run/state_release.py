"""Release device memory that one half of a co-located step does not need, and restore it exactly for the other half.

A tensor keeps its identity: only its storage is freed and made again, so that parameters, views and shards of FSDP that
share it go on working. What must survive goes to host memory that is allocated once, pinned on GPUs, in pieces.
CUDA graphs that read an address of a released storage must be recorded again; whoever owns them is a part too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from scalewright import units
from scalewright.errors import ConfigError
from scalewright.run.language.optimizer import local

CHUNK_BYTES = 256 * units.MIB
"""Of pinned memory. PyTorch rounds each piece up to a power of two: pieces of one waste at most the last."""
Keeping = Literal["copied", "zeroed"]
"""copied: contents come back as they were; zeroed: memory comes back, its contents are worthless or zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartMoved:
    """What one part took."""

    name: str
    num_bytes: int
    """Of device memory that was freed or made again."""
    seconds: float


class ReleasedPart(Protocol):
    """Something that can give up its memory."""

    name: str

    def release(self) -> int:
        """Give it up; the bytes."""
        ...

    def restore(self) -> int:
        """As it was before; the bytes."""
        ...


class HostChunks:
    """Host memory that grows when more is needed and is then kept."""

    def __init__(self, *, is_pinned: bool, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._is_pinned, self._chunk_bytes = is_pinned, chunk_bytes
        self._chunks: list[Tensor] = []

    @property
    def num_bytes(self) -> int:
        return len(self._chunks) * self._chunk_bytes

    def reserve(self, num_bytes: int) -> None:
        while self.num_bytes < num_bytes:
            self._chunks.append(torch.empty(self._chunk_bytes, dtype=torch.uint8, pin_memory=self._is_pinned))

    def pieces(self, start: int, num_bytes: int) -> Iterable[tuple[slice, Tensor]]:
        """The chunks that so many bytes from `start` on lie in, with the part of them that each holds."""
        done = 0
        while done < num_bytes:
            chunk, offset = divmod(start + done, self._chunk_bytes)
            length = min(self._chunk_bytes - offset, num_bytes - done)
            yield slice(done, done + length), self._chunks[chunk][offset : offset + length]
            done += length


class StoredTensors:
    """Tensors whose storage is released. `tensors` is asked at every release: gradients come and go."""

    def __init__(
        self, name: str, tensors: Callable[[], Iterable[Tensor]], *, keeping: Keeping = "copied",
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:  # fmt: skip
        self.name, self._tensors, self._keeping = name, tensors, keeping
        self._chunk_bytes = chunk_bytes
        self._host: HostChunks | None = None
        self._released: list[tuple[torch.UntypedStorage, int]] = []

    def reserve(self) -> int:
        """Allocate the host memory for a release now, so that the first one is no slower; the bytes."""
        storages = _storages(self._tensors())
        if self._keeping != "copied" or not storages:
            return 0
        return self._room(storages).num_bytes

    @torch.no_grad()
    def release(self) -> int:
        if self._released:
            raise ConfigError(f"{self.name} is released already: restore it first")
        storages = _storages(self._tensors())
        if self._keeping == "copied" and storages:
            host, start = self._room(storages), 0
            for storage in storages:
                source = _bytes_of(storage)
                for part, target in host.pieces(start, storage.nbytes()):
                    target.copy_(source[part], non_blocking=True)
                start += storage.nbytes()
            _wait(storages)  # a copy that is under way still reads
        self._released = [(storage, storage.nbytes()) for storage in storages]
        for storage in storages:
            storage.resize_(0)
        return sum(num_bytes for _, num_bytes in self._released)

    @torch.no_grad()
    def restore(self) -> int:
        released, self._released = self._released, []
        start = 0
        for storage, num_bytes in released:
            storage.resize_(num_bytes)
            target = _bytes_of(storage)
            if self._keeping == "zeroed":
                target.zero_()
                continue
            assert self._host is not None
            for part, source in self._host.pieces(start, num_bytes):
                target[part].copy_(source, non_blocking=True)
            start += num_bytes
        _wait([storage for storage, _ in released])
        return sum(num_bytes for _, num_bytes in released)

    def _room(self, storages: Sequence[torch.UntypedStorage]) -> HostChunks:
        if self._host is None:
            is_pinned = storages[0].device.type == "cuda"
            self._host = HostChunks(is_pinned=is_pinned, chunk_bytes=self._chunk_bytes)
        self._host.reserve(sum(storage.nbytes() for storage in storages))
        return self._host


@dataclass(slots=True)
class CalledPart:
    """Something that its owner drops and makes again: recorded graphs, communicators."""

    name: str
    drop: Callable[[], int]
    """The bytes that it had, where that is known."""
    make: Callable[[], int] = lambda: 0

    def release(self) -> int:
        return self.drop()

    def restore(self) -> int:
        return self.make()


class StateRelease:
    """The parts of one owner, such as the trainer or the engine. Releasing and restoring twice does nothing."""

    def __init__(self, parts: Sequence[ReleasedPart], *, device: torch.device) -> None:
        self.parts, self._device = list(parts), device
        self.is_released = False

    def release(self) -> list[PartMoved]:
        """Give up all parts, each timed; `free` is the time to give their memory back to the device."""
        if self.is_released:
            return []
        moved = [self._timed(part.name, part.release) for part in self.parts]
        if self._device.type == "cuda":
            moved.append(self._timed("free", _freed))
        self.is_released = True
        return moved

    def restore(self) -> list[PartMoved]:
        """Everything as it was, in the opposite order."""
        if not self.is_released:
            return []
        self.is_released = False
        return [self._timed(part.name, part.restore) for part in reversed(self.parts)]

    def _timed(self, name: str, work: Callable[[], int]) -> PartMoved:
        begun_s = time.perf_counter()
        num_bytes = work()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return PartMoved(name=name, num_bytes=num_bytes, seconds=time.perf_counter() - begun_s)


def _freed() -> int:
    """Give unused blocks back to the device: other sizes than before will be needed."""
    torch.cuda.empty_cache()
    return 0


def _storages(tensors: Iterable[Tensor]) -> list[torch.UntypedStorage]:
    """The storages below these tensors, each once."""
    by_place = {}
    for tensor in tensors:
        storage = local(tensor.detach()).untyped_storage()
        if storage.nbytes():
            by_place[storage.data_ptr()] = storage
    return list(by_place.values())


def _bytes_of(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _wait(storages: Sequence[torch.UntypedStorage]) -> None:
    if storages and storages[0].device.type == "cuda":
        torch.cuda.current_stream(storages[0].device).synchronize()
