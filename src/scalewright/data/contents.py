"""What a folder of training data holds: samples and their bytes, from descriptions, indexes, footers or headers."""

from __future__ import annotations

import struct
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scalewright import units
from scalewright.data.samples import read_description
from scalewright.data.scan import FolderScan
from scalewright.data.text.execution.preparation import EXPANSION
from scalewright.data.text.execution.result import read_result
from scalewright.data.text.reading.inputs import RESULT_NAME
from scalewright.data.text.reading.streams import DamagedInputError, blocks, is_compressed, opened, plain_name
from scalewright.data.tokens.files import TokenFile, megatron_lengths, megatron_tokens, npy_tokens
from scalewright.data.tokens.parquet import token_column
from scalewright.errors import DocumentError, ScalewrightError

WINDOW_TOKENS = 4096
"""Tokens of a sample where a set has no sequences of its own: the trainer cuts it into windows."""
MOST_MEMBERS = 2000
"""Of a tar file, whose headers are read."""
LINES_BYTES = 4 * units.MIB
"""Of a file of lines, to count them."""
LINE_ENDINGS = (".jsonl", ".ndjson")
_LMDB_META = struct.Struct("<16x I I 8x 8x I 28x 8x 8x 32x Q 8x 8x Q")
_LMDB_MAGIC = 0xBEEFC0DE


@dataclass(frozen=True, slots=True, kw_only=True)
class SetContents:
    """The samples of a set, as a trainer reads them."""

    kind: str
    """What a sample is, in words."""
    num_samples: float
    sample_bytes: float
    """Bytes of files that a sample takes."""
    num_files: int
    """That hold samples, or are needed to read them."""
    source: str
    """Where the numbers come from."""
    is_estimate: bool = False
    is_file_each: bool = False
    """Every sample is a file."""
    is_opened_by_all: bool = False
    """Every rank opens every file, once; else each file is opened once an epoch, by one reader."""

    def with_sample_bytes(self, sample_bytes: float) -> SetContents:
        """The same bytes in samples of another size, as the user gave it."""
        total = self.num_samples * self.sample_bytes
        return SetContents(
            kind="samples", num_samples=total / sample_bytes, sample_bytes=sample_bytes, num_files=self.num_files,
            source="--sample-size", is_file_each=self.is_file_each, is_opened_by_all=self.is_opened_by_all,
        )  # fmt: skip

    def opens_per_epoch(self, *, num_ranks: int, num_epochs: int) -> float:
        return self.num_files * num_ranks / num_epochs if self.is_opened_by_all else float(self.num_files)


def set_contents(scan: FolderScan) -> SetContents:
    """What the folder says of itself; else what its largest files say, scaled to all; else a file is a sample."""
    described = _described_images(scan) or _described_texts(scan)
    if described is not None:
        return described
    suffix = scan.main_suffix
    paths = [path for _, path in scan.largest if path.suffix.lower() == suffix]
    try:
        if suffix in (".npy", ".bin"):
            return _tokens(scan, paths, suffix)
        if suffix == ".parquet":
            return _parquet(scan, paths)
        if suffix == ".tar":
            return _tar(scan, paths[0])
        if suffix == ".mdb":
            return _lmdb(scan, paths[0])
        if paths and Path(plain_name(paths[0])).suffix.lower() in LINE_ENDINGS:
            return _lines(scan, paths[0])
    except (
        ScalewrightError,
        DamagedInputError,
        tarfile.TarError,
        OSError,
        ValueError,
        ArithmeticError,
        IndexError,
        ImportError,
        struct.error,
    ):
        pass  # not what the name says: its files are all that is known
    return _files(scan)


def _described_images(scan: FolderScan) -> SetContents | None:
    known = read_description(scan.path)
    if known is None or not known.num_samples:
        return None
    is_folder = known.format == "folder"
    return SetContents(
        kind="images", num_samples=known.num_samples, sample_bytes=known.data_bytes / known.num_samples,
        num_files=known.num_samples if is_folder else len(known.files), source="dataset.json", is_file_each=is_folder,
        is_opened_by_all=known.format == "lmdb",
    )  # fmt: skip


def _described_texts(scan: FolderScan) -> SetContents | None:
    """A set that a pipeline made."""
    if not (scan.path / RESULT_NAME).is_file():
        return None
    result = read_result(scan.path)
    num_bytes, num_files = sum(int(file["bytes"]) for file in result["files"]), len(result["files"])
    tokens: dict[str, Any] = result["tokens"] or {}
    is_windowed = result["format"] == "megatron" or bool(tokens.get("sequence"))
    sequence = tokens.get("sequence") or WINDOW_TOKENS
    num_samples = result["num_tokens"] / sequence if is_windowed else result["num_documents"]
    if not num_samples or not num_bytes:
        return None
    return SetContents(
        kind=f"sequences of {sequence:,} tokens" if is_windowed else "documents", num_samples=num_samples,
        sample_bytes=num_bytes / num_samples, num_files=num_files, source=RESULT_NAME,
        is_opened_by_all=is_windowed,
    )  # fmt: skip


def _tokens(scan: FolderScan, paths: list[Path], suffix: str) -> SetContents:
    """Arrays of tokens, or Megatron's pairs of files, by their headers."""
    opened_files: list[TokenFile] = [npy_tokens(path) if suffix == ".npy" else megatron_tokens(path) for path in paths]
    num_tokens = sum(file.num_tokens for file in opened_files)
    token_bytes = sum(path.stat().st_size for path in paths) / num_tokens
    sequence = _packed_sequence(paths[0]) or WINDOW_TOKENS
    num_indexes = scan.suffixes[".idx"] if suffix == ".bin" else 0
    return SetContents(
        kind=f"sequences of {sequence:,} tokens", num_samples=scan.bytes_by_suffix[suffix] / token_bytes / sequence,
        sample_bytes=token_bytes * sequence, num_files=scan.suffixes[suffix] + num_indexes,
        source="headers of the largest files", is_estimate=scan.suffixes[suffix] > len(paths), is_opened_by_all=True,
    )  # fmt: skip


def _packed_sequence(path: Path) -> int:
    """The length that all sequences of a file have, but perhaps the last; 0 if they differ."""
    if path.suffix == ".npy":
        shape = np.load(path, mmap_mode="r", allow_pickle=False).shape
        return int(shape[1]) if len(shape) == 2 else 0
    lengths = megatron_lengths(path)
    first = int(lengths[0])
    is_packed = len(lengths) > 1 and bool(np.all(lengths[:-1] == first)) and lengths[-1] <= first
    return first if is_packed else 0


def _parquet(scan: FolderScan, paths: list[Path]) -> SetContents:
    """Rows, or windows of a column of tokens, by the footers."""
    import pyarrow.parquet as pq

    num_rows, num_values, num_bytes = 0, 0, 0
    for path in paths:
        with pq.ParquetFile(path) as file:
            column = _column_of_tokens(path, file.schema_arrow)
            num_rows += file.metadata.num_rows
            num_bytes += path.stat().st_size
            if column:
                num_values += _num_values(file.metadata, column)
    num_seen = num_values / WINDOW_TOKENS if num_values else num_rows
    kind = f"sequences of {WINDOW_TOKENS:,} tokens" if num_values else "rows"
    return SetContents(
        kind=kind, num_samples=num_seen * scan.bytes_by_suffix[".parquet"] / num_bytes,
        sample_bytes=num_bytes / num_seen, num_files=scan.suffixes[".parquet"], source="footers of the largest files",
        is_estimate=scan.suffixes[".parquet"] > len(paths), is_opened_by_all=bool(num_values),
    )  # fmt: skip


def _column_of_tokens(path: Path, schema: Any) -> str:
    try:
        return token_column(path, schema)
    except DocumentError:  # a set of texts, say
        return ""


def _num_values(metadata: Any, column: str) -> int:
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    return sum(int(one.num_values) for one in columns if one.path_in_schema.split(".")[0] == column)


def _tar(scan: FolderScan, path: Path) -> SetContents:
    """A sample is the members with one name before the first dot, as WebDataset has it."""
    names, end, is_whole = set[str](), 0, True
    with tarfile.open(path, "r:") as archive:
        for number, member in enumerate(archive):
            if number == MOST_MEMBERS:
                is_whole = False
                break
            folder, _, name = member.name.rpartition("/")
            names.add(f"{folder}/{name.split('.')[0]}")
            end = member.offset_data + member.size
    num_seen, num_bytes = len(names), path.stat().st_size if is_whole else end
    return SetContents(
        kind="samples in tar files", num_samples=num_seen * scan.bytes_by_suffix[".tar"] / num_bytes,
        sample_bytes=num_bytes / num_seen, num_files=scan.suffixes[".tar"], source="headers of the largest file",
        is_estimate=not is_whole or scan.suffixes[".tar"] > 1,
    )  # fmt: skip


def _lmdb(scan: FolderScan, path: Path) -> SetContents:
    """Entries by the newer of the two pages that describe the file: nothing is mapped."""
    with path.open("rb") as file:
        first = file.read(_LMDB_META.size)
        page_bytes = _LMDB_META.unpack(first)[2]
        file.seek(page_bytes)
        metas = [_LMDB_META.unpack(part) for part in (first, file.read(_LMDB_META.size))]
    if any(magic != _LMDB_MAGIC for magic, *_ in metas):
        raise ValueError(f"{path} is no LMDB")
    num_entries = max(metas, key=lambda meta: int(meta[4]))[3]
    return SetContents(
        kind="entries of LMDB", num_samples=num_entries, sample_bytes=path.stat().st_size / num_entries,
        num_files=scan.suffixes[".mdb"], source="the file's own description", is_opened_by_all=True,
    )  # fmt: skip


def _lines(scan: FolderScan, path: Path) -> SetContents:
    """Lines of the beginning of the largest file."""
    num_lines, num_bytes, is_whole = 0, 0, True
    with opened(path) as stream:
        for block in blocks(stream):
            num_lines, num_bytes = num_lines + block.count(b"\n"), num_bytes + len(block)
            if num_bytes >= LINES_BYTES:
                is_whole = False
                break
    ratio = EXPANSION if is_compressed(path) else 1.0
    line_bytes = (path.stat().st_size if is_whole else num_bytes / ratio) / max(num_lines, 1)
    suffix = scan.main_suffix
    return SetContents(
        kind="lines", num_samples=scan.bytes_by_suffix[suffix] / line_bytes, sample_bytes=line_bytes,
        num_files=scan.suffixes[suffix], source="the beginning of the largest file",
        is_estimate=not is_whole or scan.suffixes[suffix] > 1,
    )  # fmt: skip


def _files(scan: FolderScan) -> SetContents:
    return SetContents(
        kind="files", num_samples=scan.num_files, sample_bytes=max(scan.mean_bytes, 1.0), num_files=scan.num_files,
        source="a file each", is_file_each=True,
    )  # fmt: skip
