"""Token sets for tests, written as other programs write them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

CODES = {"uint8": 1, "int32": 4, "int64": 5, "uint16": 8}


def write_megatron(prefix: Path, documents: Sequence[Sequence[int]], kind: str = "uint16") -> Path:
    """`PREFIX.bin` and `PREFIX.idx`, as Megatron's indexed dataset describes them."""
    lengths = np.array([len(one) for one in documents], dtype=np.int32)
    size = np.dtype(kind).itemsize
    pointers = np.concatenate(([0], np.cumsum(lengths[:-1], dtype=np.int64) * size)) if len(lengths) else np.zeros(0)
    prefix.with_suffix(".bin").write_bytes(b"".join(np.array(one, dtype=kind).tobytes() for one in documents))
    index = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, CODES[kind], len(documents), len(documents) + 1)
    index += lengths.tobytes() + pointers.astype(np.int64).tobytes() + np.arange(len(documents) + 1).tobytes()
    prefix.with_suffix(".idx").write_bytes(index)
    return prefix.with_suffix(".bin")


def write_parquet(
    path: Path, rows: Sequence[Sequence[int]], *, rows_per_group: int = 2, column: str = "tokens"
) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({column: pa.array(rows, type=pa.list_(pa.uint16())), "text": ["" for _ in rows]})
    pq.write_table(table, path, row_group_size=rows_per_group)
    return path


def write_npy(path: Path, tokens: Sequence[int]) -> Path:
    np.save(path, np.asarray(tokens, dtype=np.uint16))
    return path
