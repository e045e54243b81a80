"""Read the metadata of a distributed checkpoint without executing anything that it names.

`torch.distributed.checkpoint` stores its metadata as a pickle, and a pickle may call any function it names. Here every
name that DCP writes stands for an inert record that only keeps its arguments; any other name is refused. The records
are then checked and turned into PyTorch's own classes, so the rest of DCP works as usual.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from scalewright import units
from scalewright.errors import DocumentError
from scalewright.records.plain_file import read_plain

METADATA = ".metadata"
MOST_METADATA_BYTES = 4 * units.GIB


class SafeReader(FileSystemReader):
    """PyTorch's reader of shards, with metadata that cannot execute code. Shards are loaded with `weights_only`."""

    def __init__(self, folder: Path, *, files: Collection[str]) -> None:
        """`files` are the names in the manifest; metadata that points to another file is refused."""
        super().__init__(folder)
        self._metadata = read_metadata(folder / METADATA, files)

    @property
    def tensor_names(self) -> Collection[str]:
        return self._metadata.state_dict_metadata.keys()

    def read_metadata(self, *_args: Any, **_kwargs: Any) -> Metadata:
        return self._metadata


def read_metadata(path: Path, files: Collection[str]) -> Metadata:
    """The metadata at `path`, whose tensors lie in `files` beside it; anything but tensors is refused."""
    try:
        content = _RecordUnpickler(io.BytesIO(read_plain(path, most_bytes=MOST_METADATA_BYTES))).load()
    except _ForeignNameError as error:
        raise DocumentError(
            f"{path.parent}: is refused: its {METADATA} wants to load {error}, which a checkpoint does not need and "
            "which could run code; use a checkpoint that you trust"
        ) from error
    except OSError as error:
        raise DocumentError(f"{path}: cannot be read: {error.strerror}; use another checkpoint") from error
    except Exception as error:  # a broken pickle raises almost anything
        raise DocumentError(f"{path}: is not the metadata of a checkpoint; use another checkpoint") from error
    try:
        return _metadata(content, files)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DocumentError(f"{path}: is not the metadata of a checkpoint ({error}); use another checkpoint") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLocation:
    """Where a shard file holds one tensor; PyTorch's reader looks at these names."""

    relative_path: str
    offset: int
    length: int
    transform_descriptors: None = None


class _Record:
    """Stands for an object of the pickle: keeps what it was made of and does nothing."""

    arguments: tuple[Any, ...] = ()
    state: Any = None

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:  # without it, a pickle could set attributes of the class itself
        self.state = state


class _MetadataRecord(_Record): ...


class _TensorRecord(_Record): ...


class _PropertiesRecord(_Record): ...


class _ChunkRecord(_Record): ...


class _IndexRecord(_Record): ...


class _LocationRecord(_Record): ...


class _SizeRecord(_Record): ...


_METADATA_MODULE = "torch.distributed.checkpoint.metadata"
_RECORDS: dict[tuple[str, str], type[_Record]] = {
    (_METADATA_MODULE, "Metadata"): _MetadataRecord,
    (_METADATA_MODULE, "TensorStorageMetadata"): _TensorRecord,
    (_METADATA_MODULE, "TensorProperties"): _PropertiesRecord,
    (_METADATA_MODULE, "ChunkStorageMetadata"): _ChunkRecord,
    (_METADATA_MODULE, "MetadataIndex"): _IndexRecord,
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): _LocationRecord,
    ("torch", "Size"): _SizeRecord,
    # Written by every checkpoint and not needed to load one.
    (_METADATA_MODULE, "StorageMeta"): _Record,
    (_METADATA_MODULE, "_MEM_FORMAT_ENCODING"): _Record,
    ("torch.serialization", "_get_layout"): _Record,
    ("builtins", "getattr"): _Record,  # how Python before 3.11.4 writes the member of an enumeration
    ("pathlib", "PosixPath"): _Record,
    ("pathlib._local", "PosixPath"): _Record,
}


class _ForeignNameError(pickle.UnpicklingError):
    """A pickle names something that DCP does not write; the message is that name."""


class _RecordUnpickler(pickle._Unpickler):
    """In Python: the one in C takes the number of a value as a length, and allocates what a damaged file asks for."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _RECORDS:
            return _RECORDS[module, name]
        if module == "torch" and isinstance(dtype := vars(torch).get(name), torch.dtype):
            return dtype
        raise _ForeignNameError(f"{module}.{name}")


def _metadata(content: Any, files: Collection[str]) -> Metadata:
    state = _state(content, _MetadataRecord)
    return Metadata(
        state_dict_metadata={
            _checked(name, str): _tensor(record)
            for name, record in _checked(state["state_dict_metadata"], dict).items()
        },
        storage_data={
            _index(index): _location(record, files) for index, record in _checked(state["storage_data"], dict).items()
        },
        storage_meta=StorageMeta(),
    )


def _tensor(record: Any) -> TensorStorageMetadata:
    state = _state(record, _TensorRecord)
    if not isinstance(properties := state["properties"], _PropertiesRecord):
        raise TypeError(f"properties are a {type(properties).__name__}")
    dtype = _checked(_checked(properties.state, tuple)[0], torch.dtype)
    chunks = [_state(chunk, _ChunkRecord) for chunk in _checked(state["chunks"], list)]
    return TensorStorageMetadata(
        properties=TensorProperties(dtype=dtype),
        size=_size(state["size"]),
        chunks=[ChunkStorageMetadata(offsets=_size(c["offsets"]), sizes=_size(c["sizes"])) for c in chunks],
    )


def _index(record: Any) -> MetadataIndex:
    state = _state(record, _IndexRecord)
    offset, hint = state.get("offset"), state.get("index")
    return MetadataIndex(
        fqn=_checked(state["fqn"], str),
        offset=None if offset is None else _size(offset),
        index=None if hint is None else _checked(hint, int),
    )


def _location(record: Any, files: Collection[str]) -> TensorLocation:
    state = _state(record, _LocationRecord)
    name = _checked(state["relative_path"], str)
    if name not in files:
        raise ValueError(f"it names {name!r}, which is not in the manifest")
    if state.get("transform_descriptors"):
        raise ValueError(f"it transforms {name}, which this release does not")
    return TensorLocation(relative_path=name, offset=_count(state["offset"]), length=_count(state["length"]))


def _size(record: Any) -> torch.Size:
    if not isinstance(record, _SizeRecord) or len(record.arguments) != 1:
        raise TypeError(f"a size is a {type(record).__name__}")
    return torch.Size(_count(number) for number in _checked(record.arguments[0], tuple))


def _state(record: Any, kind: type[_Record]) -> dict[str, Any]:
    state: dict[str, Any] = _checked(_checked(record, kind).state, dict)
    return state


def _count(number: Any) -> int:
    if _checked(number, int) < 0:
        raise ValueError(f"{number} is negative")
    return int(number)


def _checked(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"it has a {type(value).__name__} where a {kind.__name__} belongs")
    return value
