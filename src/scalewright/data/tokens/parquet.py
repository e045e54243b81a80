"""Tokens of a Parquet file: row groups are decoded when a window needs them, and the latest ones are kept."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalewright.data.tokens.files import reading
from scalewright.data.tokens.order import RUNS_AT_ONCE
from scalewright.errors import DocumentError, MissingExtraError
from scalewright.records.plain_file import check_plain

COLUMNS = ("tokens", "input_ids", "token_ids", "ids")
HINT = f"write a column {COLUMNS[0]!r} of whole numbers or of lists of them"


class RowGroupCache:
    """The row groups that were used last, of all files of a set: as many as are shuffled together."""

    def __init__(self, num_kept: int = RUNS_AT_ONCE + 1) -> None:  # one more, for a window that ends in the next run
        self._num_kept, self._lock = num_kept, threading.Lock()
        self._decoded: OrderedDict[tuple[Path, int], NDArray[np.generic]] = OrderedDict()

    def get(self, key: tuple[Path, int], decode: Callable[[int], NDArray[np.generic]]) -> NDArray[np.generic]:
        with self._lock:
            if key not in self._decoded:
                self._decoded[key] = decode(key[1])
            self._decoded.move_to_end(key)
            while len(self._decoded) > self._num_kept:
                self._decoded.popitem(last=False)
            return self._decoded[key]


class ParquetTokens:
    """All rows of one column after each other. The file is mapped; a row group in use takes memory as NumPy array."""

    def __init__(self, path: Path, cache: RowGroupCache) -> None:
        self.path, self._cache = path, cache
        self._file = _opened(path)
        self._column = token_column(path, self._file.schema_arrow)
        self._ends = np.cumsum([self._num_tokens(group) for group in range(self._file.num_row_groups)], dtype=np.int64)
        self.num_tokens = int(self._ends[-1]) if len(self._ends) else 0

    def read(self, start: int, stop: int) -> NDArray[np.generic]:
        first, last = (int(np.searchsorted(self._ends, place, side="right")) for place in (start, stop - 1))
        parts = []
        for group in range(first, last + 1):
            before = int(self._ends[group - 1]) if group else 0
            parts.append(self._cache.get((self.path, group), self._read_group)[max(start - before, 0) : stop - before])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def run_ends(self) -> list[int]:
        return [int(end) for end in self._ends]

    def _num_tokens(self, group: int) -> int:
        """Values of the column, from the file's own description."""
        described = self._file.metadata.row_group(group)
        for number in range(described.num_columns):
            column = described.column(number)
            if column.path_in_schema.split(".")[0] == self._column:
                return int(column.num_values)
        raise DocumentError(f"{self.path}: row group {group} has no column {self._column!r}; {HINT}")

    def _read_group(self, group: int) -> NDArray[np.generic]:
        import pyarrow as pa

        try:
            column = self._file.read_row_group(group, columns=[self._column]).column(0).combine_chunks()
        except (pa.ArrowException, OSError) as error:
            raise DocumentError(f"{self.path}: row group {group} cannot be read ({error}); make it again") from error
        values = column.flatten() if _is_list(column.type) else column
        tokens: NDArray[np.generic] = values.to_numpy(zero_copy_only=False)
        before = int(self._ends[group - 1]) if group else 0
        if len(tokens) != int(self._ends[group]) - before or tokens.dtype.kind not in "iu":
            raise DocumentError(f"{self.path}: row group {group} has empty rows or rows without tokens; {HINT}")
        return tokens


def _opened(path: Path) -> Any:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError as error:
        raise MissingExtraError("parquet", "pyarrow") from error
    with reading(path):
        try:
            check_plain(path)
            return pq.ParquetFile(path, memory_map=True)
        except pa.ArrowException as error:
            raise DocumentError(f"{path}: is not a whole Parquet file ({error}); make it again") from error


def token_column(path: Path, schema: Any) -> str:
    """The column of tokens: by its name, or the only one that can be. A number beside other columns counts rows."""
    import pyarrow as pa

    fits = [field.name for field in schema
            if pa.types.is_integer(field.type.value_type if _is_list(field.type) else field.type)]  # fmt: skip
    named = [name for name in COLUMNS if name in fits]
    if named:
        return named[0]
    if len(fits) == 1 and (len(schema) == 1 or _is_list(schema.field(fits[0]).type)):
        return str(fits[0])
    has = ", ".join(schema.names) or "no column"
    raise DocumentError(f"{path}: has {has}, and none of them is clearly the tokens; {HINT}")


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))
