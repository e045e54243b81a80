"""Save and load training state with `torch.distributed.checkpoint`. Every rank takes part, and any layout can load it.

An asynchronous save copies the state to host memory while the next forward and backward passes run. Only the next
update waits for that copy. A thread then writes, and communicates with the other ranks over a group of its own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_in_place
from torch.distributed.checkpoint.state_dict_saver import save as save_shards
from torch.distributed.tensor import DTensor

from scalewright.errors import ConfigError, DocumentError, EnvironmentFailedError, ScalewrightError
from scalewright.records.documents import write_document
from scalewright.records.run_directory import RunDirectory
from scalewright.run.checkpoint_files import CheckpointFolder, CheckpointManifest, file_sum, problem_with, read_manifest
from scalewright.run.checkpoint_metadata import METADATA, SafeReader

T = TypeVar("T")
Documents = Mapping[str, dict[str, Any]]
"""Files of a checkpoint beside its tensors, by their name. Rank 0 writes them."""
NO_DOCUMENTS: Documents = {}
OPTIONAL = "rank-"
"""Prefix of names that belong to a rank, not to the model. Another layout has other ranks and loads without them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A checkpoint that was loaded."""

    folder: Path
    manifest: CheckpointManifest
    skipped: tuple[str, ...]
    """Newer checkpoints that are damaged, each with the reason."""


RESUME = "free space or choose another --run-dir, then resume; earlier checkpoints are untouched"
"""The next step in the error of a training run whose checkpoint could not be written."""


class Checkpointer:
    """Saves and loads the tensors it is given, in place. Every rank calls the same methods in the same order."""

    def __init__(self, directory: RunDirectory, *, keep: int, layout: str, next_step: str = RESUME) -> None:
        self._folder = CheckpointFolder(directory, keep=keep)
        self._layout, self._next_step = layout, next_step
        self._rank, self._world_size = dist.get_rank(), dist.get_world_size()
        self._group = dist.new_group(backend="gloo")
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[Path] | None = None
        self._copies: dict[str, Tensor] = {}
        self._copied = threading.Event()
        self._copied.set()
        self._stream: torch.cuda.Stream | None = None
        self.last_write_s = 0.0
        """Duration of the latest finished save, from the request to the final name."""

    def save(
        self, step: int, tensors: dict[str, Tensor], state: dict[str, Any], documents: Documents = NO_DOCUMENTS
    ) -> Path:
        """Save and return when the checkpoint has its name. `documents` become files of it, by their name."""
        self.finish()
        return self._write(step, tensors, state, documents, time.perf_counter())

    def save_async(
        self, step: int, tensors: dict[str, Tensor], state: dict[str, Any], documents: Documents = NO_DOCUMENTS
    ) -> None:
        """Start a save, after the one before is done. Call `before_update` before `tensors` change."""
        self.finish()
        self.make_room(tensors)
        after = None
        if torch.cuda.is_available() and any(_local(t).is_cuda for t in tensors.values()):
            self._stream = self._stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
            after = torch.cuda.current_stream().record_event()
        self._copied.clear()
        self._pending = self._thread.submit(
            self._copy_and_write, step, tensors, state, documents, after, time.perf_counter()
        )

    def make_room(self, tensors: dict[str, Tensor]) -> None:
        """Allocate host memory for the copies. It is slow and done once, best before training starts."""
        if not self._copies:
            self._copies = {name: _host_copy_of(tensor) for name, tensor in tensors.items()}

    def before_update(self) -> None:
        """Wait until the running save has copied the tensors."""
        self._copied.wait()

    def finish(self) -> Path | None:
        """Wait for the running save. Its failure is raised here."""
        pending, self._pending = self._pending, None
        return None if pending is None else pending.result()

    @property
    def is_writing(self) -> bool:
        return self._pending is not None and not self._pending.done()

    def close(self) -> None:
        self._thread.shutdown(wait=True)

    def load_newest(self, tensors: dict[str, Tensor]) -> Loaded | None:
        """Fill `tensors` from the newest whole checkpoint of this run; None where there is none."""
        damaged: list[str] = []
        diverged: list[Path] = []
        for folder in self._from_first_rank(self._folder.newest_first):
            try:
                manifest = self._verified(folder)
                if not manifest.is_finite:
                    damaged.append(f"{folder}: holds numbers that are not finite; an earlier checkpoint is used")
                    diverged.append(folder)
                    continue
                self._read(folder, manifest, tensors)
            except DocumentError as error:
                damaged.append(str(error))
                self._folder.damaged.add(folder)
                continue
            return Loaded(folder=folder, manifest=manifest, skipped=tuple(damaged))
        if diverged:
            raise ConfigError(
                f"{diverged[0]}: holds numbers that are not finite, and no earlier checkpoint is left: start again in "
                "another --run-dir with a smaller learning rate"
            )
        if damaged:
            raise ConfigError(f"every checkpoint is damaged ({damaged[0]}): start again in another --run-dir")
        return None

    def load(self, folder: Path, tensors: dict[str, Tensor]) -> Loaded:
        """Fill `tensors` from a checkpoint, perhaps of another run and layout."""
        manifest = self._verified(folder)
        self._read(folder, manifest, tensors)
        return Loaded(folder=folder, manifest=manifest, skipped=())

    def _copy_and_write(
        self, step: int, tensors: dict[str, Tensor], state: dict[str, Any], documents: Documents, after: Any,
        started_s: float,
    ) -> Path:  # fmt: skip
        try:
            if after is not None and self._stream is not None:
                self._stream.wait_event(after)
                with torch.cuda.stream(self._stream):
                    self._copy(tensors)
                self._stream.synchronize()
            else:
                self._copy(tensors)
        finally:
            self._copied.set()
        return self._write(step, self._copies, state, documents, started_s)

    @torch.no_grad()
    def _copy(self, tensors: dict[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            _local(self._copies[name]).copy_(_local(tensor.detach()), non_blocking=True)

    def _write(
        self, step: int, tensors: dict[str, Tensor], state: dict[str, Any], documents: Documents, started_s: float
    ) -> Path:
        hidden = self._folder.saving(step)
        try:
            self._from_first_rank(lambda: self._folder.prepare(step))
            writer = FileSystemWriter(hidden, single_file_per_rank=True, sync_files=True)
            save_shards(dict(tensors), storage_writer=writer, process_group=self._group)
            own = f"__{self._rank}_*.distcp"
            parts = self._from_every_rank(
                lambda: ({p.name: file_sum(p) for p in hidden.glob(own)}, _are_finite(tensors.values()))
            )
            files = {name: checksum for part, _ in parts for name, checksum in part.items()}

            def publish() -> Path:
                for name, doc in documents.items():
                    write_document(hidden / name, doc)
                    files[name] = file_sum(hidden / name)
                files[METADATA] = file_sum(hidden / METADATA)
                return self._folder.publish(
                    CheckpointManifest(
                        step=step,
                        layout=self._layout,
                        world_size=self._world_size,
                        state=state,
                        files=files,
                        is_finite=all(is_finite for _, is_finite in parts),
                    )
                )

            final = self._from_first_rank(publish)
        except (CheckpointException, OSError) as error:
            cause = _cause_of(error, hidden.parent, sum(_local(t).nbytes for t in tensors.values()))
            if self._rank == 0:
                self._folder.discard(step)  # make room to record the reason
            raise EnvironmentFailedError(
                f"{hidden.parent}: the checkpoint of step {step} was not saved: {cause}; {self._next_step}"
            ) from error
        self.last_write_s = time.perf_counter() - started_s
        return final

    def _read(self, folder: Path, manifest: CheckpointManifest, tensors: dict[str, Tensor]) -> None:
        reader = self._opened(folder, manifest)
        stored = reader.tensor_names
        targets = {n: t for n, t in tensors.items() if n in stored or not n.startswith(OPTIONAL)}
        missing = sorted(set(targets) - set(stored))
        if missing:
            raise ConfigError(f"{folder}: lacks {missing[0]}: it is of another model; choose a checkpoint of this one")
        try:
            load_in_place(targets, storage_reader=reader, process_group=self._group)
        except (CheckpointException, ValueError) as error:
            if (name := _refused_name(error)) is not None:
                raise ConfigError(
                    f"{folder}: is refused: a shard wants to load {name}, which a tensor does not need and which could "
                    "run code; use a checkpoint that you trust"
                ) from error
            if _is_misfit(error):
                raise ConfigError(f"{folder}: does not fit this model: {_first_cause(error)}") from error
            raise DocumentError(
                f"{folder}: is damaged: it cannot be read ({_first_cause(error)}); use an earlier checkpoint"
            ) from error

    def _opened(self, folder: Path, manifest: CheckpointManifest) -> SafeReader:
        """The reader of a checkpoint. If one rank cannot open it, all learn of it."""
        readers: list[SafeReader] = []
        self._from_every_rank(lambda: readers.append(SafeReader(folder, files=manifest.files)))
        return readers[0]

    def _verified(self, folder: Path) -> CheckpointManifest:
        """The manifest, if every file matches it. Ranks share the reading and get the same result."""
        manifest = self._from_first_rank(lambda: read_manifest(folder))
        share = slice(self._rank, None, self._world_size)
        problems = self._from_every_rank(lambda: problem_with(folder, manifest, only=share))
        if any(problems):
            first = next(problem for problem in problems if problem)
            raise DocumentError(f"{folder}: is damaged: {first}; use an earlier checkpoint")
        return manifest

    def _from_every_rank(self, work: Callable[[], T]) -> list[T]:
        """The results of `work` on all ranks. An error on one rank is raised on all."""
        own = _outcome(work)
        outcomes: list[Any] = [own] * self._world_size
        if self._world_size > 1:
            dist.all_gather_object(outcomes, own, group=self._group)
        for _, error in outcomes:
            if error is not None:
                raise error
        return [value for value, _ in outcomes]

    def _from_first_rank(self, work: Callable[[], T]) -> T:
        """The result of `work` on rank 0. Its error is raised on all ranks, so that no rank waits in vain."""
        outcome: list[Any] = [_outcome(work) if self._rank == 0 else None]
        if self._world_size > 1:
            dist.broadcast_object_list(outcome, src=0, group=self._group)
        value, error = outcome[0]
        if error is not None:
            raise error
        result: T = value
        return result


def _outcome(work: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return work(), None
    except (ScalewrightError, OSError) as error:
        return None, error


def _is_misfit(error: BaseException) -> bool:
    """Whether the shards are whole but of another model: other shapes or other names, which DCP finds when it plans."""
    inner = _innermost(error)
    return isinstance(inner, ValueError | KeyError) or (
        isinstance(inner, RuntimeError) and "size" in str(inner).lower() and "mismatch" in str(inner).lower()
    )


def _are_finite(tensors: Iterable[Tensor]) -> bool:
    return all(bool(torch.isfinite(_local(t)).all()) for t in tensors if t.is_floating_point())


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _host_copy_of(tensor: Tensor) -> Tensor:
    """Host memory for a copy of a tensor, split the same way; pinned for GPU tensors, so that copying overlaps."""
    own = _local(tensor.detach())
    room = torch.empty(own.shape, dtype=own.dtype, device="cpu", pin_memory=own.is_cuda)
    if not own.is_cuda:
        room.zero_()  # touch the pages now, not while training waits
    if isinstance(tensor, DTensor):
        return DTensor(room, tensor._spec, requires_grad=False)  # type: ignore[no-untyped-call]
    return room


def _cause_of(error: BaseException, folder: Path, num_bytes: int) -> str:
    """Why a save failed. PyTorch's writer reports a full disk as a wrong position in a file."""
    with contextlib.suppress(OSError):
        if shutil.disk_usage(folder).free < num_bytes:
            return os.strerror(errno.ENOSPC)
    return _first_cause(error)


def _refused_name(error: BaseException) -> str | None:
    """What a shard would load besides tensors, if `weights_only` refused it; PyTorch names it only in its message."""
    inner = _innermost(error)
    if not isinstance(inner, pickle.UnpicklingError):
        return None
    named = re.search(r"GLOBAL ([\w.]+)", str(inner))
    return named.group(1) if named else "more than tensors"


def _innermost(error: BaseException) -> BaseException:
    """The error of the first rank that failed: DCP wraps the errors of every rank."""
    while isinstance(error, CheckpointException) and error.failures:
        error = next(iter(error.failures.values()))[0]
    return error


def _first_cause(error: BaseException) -> str:
    """The first line of the innermost error's message."""
    error = _innermost(error)
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return (text.strip().splitlines() or [type(error).__name__])[0][:200]
