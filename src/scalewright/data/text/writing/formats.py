"""Files of one shard in each format. The same documents give the same bytes."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalewright.data.text.execution.work_files import whole_file
from scalewright.data.text.pyarrow_module import pyarrow

MAGIC = b"MMIDIDX\x00\x00"
DTYPE_CODES = {np.dtype(np.int32): 4, np.dtype(np.uint16): 8}
"""Of the index files of Megatron-LM (megatron/core/datasets/indexed_dataset.py)."""
PARQUET_ROWS = 8192


def write_megatron(prefix: Path, tokens: NDArray[Any], lengths: NDArray[np.int64]) -> list[Path]:
    """PREFIX.bin with the tokens, and PREFIX.idx: lengths, byte offsets and documents; each sequence is a document."""
    binary, index = prefix.with_name(f"{prefix.name}.bin"), prefix.with_name(f"{prefix.name}.idx")
    with whole_file(binary) as hidden:
        tokens.tofile(hidden)
    num = len(lengths)
    pointers = (np.cumsum(lengths) - lengths) * tokens.itemsize
    with whole_file(index) as hidden, hidden.open("wb") as file:
        file.write(MAGIC + struct.pack("<QBQQ", 1, DTYPE_CODES[tokens.dtype], num, num + 1))
        file.write(lengths.astype("<i4").tobytes())
        file.write(pointers.astype("<i8").tobytes())
        file.write(np.arange(num + 1, dtype="<i8").tobytes())
    return [binary, index]


def write_npy(prefix: Path, sequences: NDArray[Any]) -> list[Path]:
    """One row for each sequence."""
    path = prefix.with_name(f"{prefix.name}.npy")
    with whole_file(path) as hidden, hidden.open("wb") as file:
        np.save(file, sequences, allow_pickle=False)
    return [path]


def write_parquet(prefix: Path, table: Any) -> list[Path]:
    path = prefix.with_name(f"{prefix.name}.parquet")
    with whole_file(path) as hidden:
        pyarrow("parquet").write_table(table, hidden, compression="zstd", row_group_size=PARQUET_ROWS)
    return [path]


def _rows(table: Any) -> Iterator[dict[str, Any]]:
    for batch in table.to_batches(max_chunksize=1024):
        yield from batch.to_pylist()


def write_json_lines(prefix: Path, table: Any) -> list[Path]:
    path = prefix.with_name(f"{prefix.name}.jsonl.zst")
    pa: Any = pyarrow()
    with (
        whole_file(path) as hidden,
        pa.OSFile(str(hidden), "wb") as file,
        pa.CompressedOutputStream(file, "zstd") as out,
    ):
        for row in _rows(table):
            out.write(json.dumps(row, ensure_ascii=False).encode("utf-8") + b"\n")
    return [path]


def write_tar(prefix: Path, table: Any) -> list[Path]:
    """NUMBER.txt and NUMBER.json for each document, as WebDataset groups them."""
    path = prefix.with_name(f"{prefix.name}.tar")
    with whole_file(path) as hidden, tarfile.open(hidden, "w", format=tarfile.USTAR_FORMAT) as archive:
        for row in _rows(table):
            name = f"{row['id']:012d}"
            _add(archive, f"{name}.txt", row["text"].encode("utf-8"))
            _add(archive, f"{name}.json", json.dumps({"id": row["id"], "url": row["url"]}).encode("utf-8"))
    return [path]


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))
