"""Weight sync by file: every trainer rank writes what no rank before it holds, and engines map the files.

A file is a safetensors file. Its metadata holds the version, the box of each tensor in the whole weight, and a checksum
of every piece. It is written to a temporary name, flushed and renamed, so that a reader sees a whole file or none.
"""

from __future__ import annotations

import json
import mmap
import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scalewright.errors import DocumentError
from scalewright.run.generate.safetensor_files import DTYPES, LENGTH_BYTES, read_header
from scalewright.run.weight_sync.checksums import checksum
from scalewright.run.weight_sync.peers import KEEP
from scalewright.run.weight_sync.plan import Box, EngineRank, num_elements, overlap, pieces_of, slices_in
from scalewright.run.weight_sync.result import SyncResult
from scalewright.run.weight_sync.server import HeldPart
from scalewright.run.weight_sync.staging import Staging
from scalewright.run.weight_sync.wire import WeightSyncError, bytes_of

METADATA = "__metadata__"
NAMES = {dtype: name for name, dtype in DTYPES.items()}
POLL_S = 0.02
NUM_READERS = 2
"""Threads that read and check: the checksum of one piece is computed while another is read."""
NUM_VERSIONS_KEPT = 2


def version_folder(folder: Path, version: int) -> Path:
    return folder / f"version-{version:08d}"


def weight_file(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank:05d}.safetensors"


def write_weights(
    folder: Path, tensors: Mapping[str, Tensor], parts: Mapping[str, HeldPart], version: int, *, rank: int,
    num_ranks: int, dtype: torch.dtype | None = None,
) -> int:  # fmt: skip
    """Write the parts that no rank before this one holds; the bytes of them. Folders of older versions are removed."""
    place = version_folder(folder, version)
    place.mkdir(parents=True, exist_ok=True)
    path = weight_file(place, rank)
    header: dict[str, Any] = {}
    boxes: dict[str, Any] = {}
    values: list[Tensor] = []
    start = 0
    for name, tensor in tensors.items():
        part = parts[name]
        if not part.is_first or not num_elements(part.box):
            continue
        host = tensor.detach().to(device="cpu", dtype=dtype or tensor.dtype).contiguous()
        values.append(host)
        header[name] = {
            "dtype": NAMES[host.dtype], "shape": list(host.shape), "data_offsets": [start, start + host.nbytes],
        }  # fmt: skip
        boxes[name] = {
            "size": part.size,
            "box": [[one.start, one.stop] for one in part.box],
            "sums": [
                checksum(bytes_of(host[slices_in(piece, part.box)]))
                for piece in pieces_of(part.box, width_bytes=host.element_size())
            ],
        }
        start += host.nbytes
    about = {"version": version, "num_ranks": num_ranks, "tensors": boxes}
    header[METADATA] = {"scalewright": json.dumps(about, separators=(",", ":"))}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)
    temporary = path.with_suffix(f".{os.getpid()}.writing")
    with temporary.open("wb", buffering=0) as file:
        file.write(len(text).to_bytes(LENGTH_BYTES, "little") + text)
        for host in values:
            _write_all(file.fileno(), bytes_of(host))
        os.fsync(file.fileno())
    temporary.replace(path)
    return start


def remove_old(folder: Path, version: int) -> None:
    """Called by one rank: keep the newest versions, for engines that are still reading."""
    for old in sorted(folder.glob("version-*")):
        if int(old.name.rpartition("-")[2]) <= version - NUM_VERSIONS_KEPT:
            for file in old.iterdir():
                file.unlink(missing_ok=True)
            old.rmdir()


def pull_files(
    folder: Path, engine: EngineRank, version: int, *, staging: Staging | None = None, wait_s: float = 0.0
) -> tuple[dict[str, Tensor], SyncResult]:
    """This rank's parts of a version from the files of all trainer ranks."""
    begun_s = time.perf_counter()
    staging = staging or Staging()
    place = version_folder(folder, version)
    first = _waited(weight_file(place, 0), until_s=begun_s + wait_s)
    files = [first]
    files += [_waited(weight_file(place, rank), until_s=begun_s + wait_s) for rank in range(1, first.num_ranks)]
    odd = next((file for file in files if file.version != version), None)
    if odd is not None:
        raise WeightSyncError(f"weight sync: {odd.path} holds version {odd.version}, not {version}; {KEEP}")
    needs = engine.boxes({name: part.size for file in files for name, part in file.parts.items()})
    staging.begin(needs, {name: file.dtypes[name] for file in files for name in file.parts})
    with ThreadPoolExecutor(NUM_READERS) as pool:
        tasks = [task for file in files for task in _copies(file, needs, staging, pool)]
        num_bytes = sum(task.result() for task in tasks)
    for name, need in needs.items():
        try:
            staging.wait(name, need, timeout_s=0.0)
        except WeightSyncError as error:
            raise WeightSyncError(f"weight sync: {place} lacks a part of {name}; {KEEP}") from error
    value = staging.checksum
    seconds = time.perf_counter() - begun_s
    return staging.tensors, SyncResult(
        way="file", version=version, num_bytes=num_bytes, seconds=seconds, checksum=value
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedFile:
    """A rank's file in memory."""

    path: Path
    version: int
    num_ranks: int
    parts: dict[str, HeldPart]
    sums: dict[str, list[int]]
    dtypes: dict[str, torch.dtype]
    starts: dict[str, int]
    content: memoryview

    @classmethod
    def open(cls, path: Path) -> MappedFile:
        try:
            stored = read_header(path)
            with path.open("rb") as file:
                length = int.from_bytes(file.read(LENGTH_BYTES), "little")
                about = json.loads(json.loads(file.read(length))[METADATA]["scalewright"])
                content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
            tensors = about["tensors"]
            return cls(
                path=path, version=int(about["version"]), num_ranks=int(about["num_ranks"]),
                parts={
                    name: HeldPart(size=tuple(one["size"]), box=tuple(range(a, b) for a, b in one["box"]))
                    for name, one in tensors.items()
                },
                sums={name: one["sums"] for name, one in tensors.items()},
                dtypes={name: stored[name].dtype for name in tensors},
                starts={name: stored[name].start for name in tensors},
                content=content,
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, DocumentError) as error:
            raise WeightSyncError(f"weight sync: {path} is not a file of weights ({error}); {KEEP}") from error


def _waited(path: Path, *, until_s: float) -> MappedFile:
    while not path.exists():
        if time.perf_counter() >= until_s:
            raise WeightSyncError(f"weight sync: {path} is not there; {KEEP} when the trainer has written it")
        time.sleep(POLL_S)
    return MappedFile.open(path)


def _copies(file: MappedFile, needs: Mapping[str, Box], staging: Staging, pool: ThreadPoolExecutor) -> list[Any]:
    tasks = []
    for name, part in file.parts.items():
        width = file.dtypes[name].itemsize
        start = file.starts[name]
        for piece, expected in zip(pieces_of(part.box, width_bytes=width), file.sums[name], strict=True):
            num_bytes = num_elements(piece) * width
            shared = overlap(piece, needs[name]) if name in needs else None
            if shared is not None:
                data = file.content[start : start + num_bytes]
                tasks.append(pool.submit(_copy, file, name, piece, shared, data, expected, staging))
            start += num_bytes
    return tasks


def _copy(
    file: MappedFile, name: str, piece: Box, shared: Box, data: memoryview, expected: int, staging: Staging
) -> int:
    """Check a piece of a file, and copy what is needed of it; the bytes that were read."""
    value = checksum(data)
    if value != expected:
        raise WeightSyncError(f"weight sync: {name} in {file.path} has a wrong checksum; {KEEP}")
    values = torch.frombuffer(data, dtype=file.dtypes[name]).view(tuple(map(len, piece)))
    target = staging.target(name, shared)
    target.copy_(values[slices_in(shared, piece)])
    staging.add(name, shared, value=value if shared == piece else None)
    return len(data)


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
