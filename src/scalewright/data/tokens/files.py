"""Files of tokens: NumPy's .npy and Megatron's .bin with .idx, both mapped into memory."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from scalewright.data.array_file import mapped_array
from scalewright.errors import ConfigError, DocumentError, EnvironmentFailedError
from scalewright.records.plain_file import check_plain, open_plain

NPY_HINT = "write it with numpy.save from a one-dimensional array of unsigned token ids"
MEGATRON_HINT = "write both files again with the same program"
_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
"""Magic, version, type of a token, number of sequences, number of document boundaries."""
_TYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}
"""Codes that Megatron writes; 6 and 7 are floating-point numbers, which are no tokens."""


class TokenFile(Protocol):
    """A long row of tokens."""

    @property
    def path(self) -> Path: ...

    @property
    def num_tokens(self) -> int: ...

    def read(self, start: int, stop: int) -> NDArray[np.generic]:
        """Tokens from `start` up to `stop`, which is inside the file."""
        ...

    def run_ends(self) -> list[int] | None:
        """Where each part ends that is only read as a whole; None: any place costs the same."""
        ...


class MappedTokens:
    """Tokens of a file that is an array on disk."""

    def __init__(self, path: Path, tokens: NDArray[np.generic]) -> None:
        self.path, self._tokens = path, tokens
        self.num_tokens = len(tokens)

    def read(self, start: int, stop: int) -> NDArray[np.generic]:
        return self._tokens[start:stop]

    def run_ends(self) -> None:
        return None


def npy_tokens(path: Path) -> MappedTokens:
    with reading(path):
        tokens = mapped_array(path, next_step=NPY_HINT)
    is_packed = tokens.ndim == 2 and tokens.flags.c_contiguous  # rows of packed sequences lie after each other
    if not (tokens.ndim == 1 or is_packed) or tokens.dtype.kind not in "iu":
        raise DocumentError(f"{path}: does not hold a one-dimensional array of whole numbers; {NPY_HINT}")
    return MappedTokens(path, tokens.reshape(-1))


def megatron_lengths(path: Path) -> NDArray[np.int32]:
    """Tokens of each sequence of `NAME.bin`, which `megatron_tokens` has accepted, from `NAME.idx`."""
    index_path = path.with_suffix(".idx")
    with reading(index_path), open_plain(index_path) as file:
        num_sequences = int(_HEADER.unpack(file.read(_HEADER.size))[3])
    return np.memmap(index_path, dtype="<i4", mode="r", offset=_HEADER.size, shape=(num_sequences,))


def megatron_tokens(path: Path) -> MappedTokens:
    """The tokens of `NAME.bin`, checked against `NAME.idx`. Sequences follow each other without a gap."""
    index_path, data_path = path.with_suffix(".idx"), path.with_suffix(".bin")
    with reading(index_path), open_plain(index_path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        header = file.read(_HEADER.size)
    if len(header) < _HEADER.size or not header.startswith(_MAGIC):
        raise DocumentError(f"{index_path}: is not the index of a Megatron set; {MEGATRON_HINT}")
    _, version, code, num_sequences, num_documents = _HEADER.unpack(header)
    if version != 1 or code not in _TYPES:
        what = f"version {version}" if version != 1 else f"type of token {code}"
        raise DocumentError(f"{index_path}: has {what}, and version 1 with whole numbers is read; {MEGATRON_HINT}")
    if size_bytes != _HEADER.size + num_sequences * 12 + num_documents * 8:
        raise DocumentError(f"{index_path}: has {size_bytes} bytes, not those of its header; {MEGATRON_HINT}")
    kind = np.dtype(_TYPES[code]).newbyteorder("<")
    with reading(data_path):
        check_plain(data_path)
        data_bytes = data_path.stat().st_size
        lengths = np.memmap(index_path, dtype="<i4", mode="r", offset=_HEADER.size, shape=(num_sequences,)) \
            if num_sequences else np.zeros(0, dtype=np.int32)  # fmt: skip
        num_tokens = int(lengths.sum(dtype=np.int64))
        if num_sequences and int(lengths.min()) < 0:
            raise DocumentError(f"{index_path}: has a sequence of negative length; {MEGATRON_HINT}")
        if data_bytes != num_tokens * kind.itemsize:
            raise DocumentError(
                f"{data_path}: has {data_bytes} bytes, and its index {num_tokens} tokens of {kind.itemsize}; "
                f"{MEGATRON_HINT}"
            )
        tokens = np.memmap(data_path, dtype=kind, mode="r") if num_tokens else np.zeros(0, dtype=kind)
    return MappedTokens(data_path, tokens)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn the error of a file that cannot be read into one sentence."""
    try:
        yield
    except FileNotFoundError as error:
        raise ConfigError(f"{error.filename or path}: no such file of a data set; check the path") from error
    except OSError as error:
        raise EnvironmentFailedError(f"{path}: the data set cannot be read: {error.strerror}") from error
