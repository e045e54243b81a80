"""Read safetensors files: a length, a JSON header with the place of each tensor, and raw bytes. Nothing is executed.

Source  the format's README, github.com/huggingface/safetensors
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scalewright.errors import DocumentError
from scalewright.records.documents import parse_json, read_text
from scalewright.records.plain_file import open_plain

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
          "F8_E4M3": torch.float8_e4m3fn, "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
          "U8": torch.uint8, "BOOL": torch.bool}  # fmt: skip
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
LENGTH_BYTES = 8
MOST_HEADER_BYTES = 10**8
"""The format's own limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """Where a tensor lies."""

    path: Path
    dtype: torch.dtype
    size: tuple[int, ...]
    start: int
    """Bytes from the start of the file."""

    def read(self) -> Tensor:
        num_values = prod(self.size)
        if num_values == 0:
            return torch.empty(self.size, dtype=self.dtype)
        with open_plain(self.path) as file:
            file.seek(self.start)
            content = bytearray(file.read(num_values * self.dtype.itemsize))
        return torch.frombuffer(content, dtype=self.dtype).view(self.size)


class TensorFolder:
    """The tensors of a model's folder, in one file or in several with an index."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tensors = dict(self._listed())

    def _listed(self) -> Iterator[tuple[str, StoredTensor]]:
        index = self.folder / INDEX
        if not index.exists():
            yield from read_header(self.folder / SINGLE).items()
            return
        places = read_json(index).get("weight_map")
        if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
            raise DocumentError(f"{index}: has no table weight_map of tensors and files; copy the model again")
        headers = {name: read_header(self.folder / Path(name).name) for name in sorted(set(places.values()))}
        for tensor, name in places.items():
            if tensor not in headers[name]:
                raise DocumentError(f"{self.folder / name}: lacks {tensor}, which {INDEX} places there; copy it again")
            yield tensor, headers[name][tensor]


def read_header(path: Path) -> dict[str, StoredTensor]:
    try:
        with open_plain(path) as file:
            num_bytes = os.fstat(file.fileno()).st_size
            num_header = int.from_bytes(file.read(LENGTH_BYTES), "little")
            if num_header > min(num_bytes - LENGTH_BYTES, MOST_HEADER_BYTES):
                raise DocumentError(
                    f"{path}: is not a whole safetensors file (header of {num_header} bytes); copy it again"
                )
            header = json.loads(file.read(num_header))
        first = LENGTH_BYTES + num_header
        return {
            name: _stored(path, name, entry, first, num_bytes)
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except OSError as error:
        raise DocumentError(
            f"{path}: cannot be read: {error.strerror}; give a folder with safetensors files"
        ) from error
    except (ValueError, AttributeError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise DocumentError(f"{path}: its header is not that of a safetensors file ({error}); copy it again") from error


def _stored(path: Path, name: str, entry: dict[str, Any], first: int, num_bytes: int) -> StoredTensor:
    if entry["dtype"] not in DTYPES:
        raise DocumentError(f"{path}: {name} has type {entry['dtype']}, which is not read; convert it to BF16 or F32")
    dtype, size = DTYPES[entry["dtype"]], tuple(int(length) for length in entry["shape"])
    begin, end = (int(offset) for offset in entry["data_offsets"])
    if min(size, default=0) < 0 or end - begin != prod(size) * dtype.itemsize or begin < 0 or first + end > num_bytes:
        raise DocumentError(f"{path}: {name} does not lie inside the file; copy it again")
    return StoredTensor(path=path, dtype=dtype, size=size, start=first + begin)


def read_json(path: Path) -> dict[str, Any]:
    content = parse_json(read_text(path), where=str(path))
    if not isinstance(content, dict):
        raise DocumentError(f"{path}: is not a JSON object; copy the model again")
    return content
