"""The cleaned texts of a chunk: an Arrow file of small compressed batches, from which single documents can be read."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from scalewright import units
from scalewright.data.text.arrow_arrays import bytes_array, text_array
from scalewright.data.text.cleaning.text_view import Ints
from scalewright.data.text.duplicates.key_tables import chunk_of, row_of
from scalewright.data.text.execution.work_files import TaskFiles
from scalewright.data.text.pyarrow_module import pyarrow
from scalewright.data.text.reading.documents import TextDocument

MAX_OPEN = 64
"""Files that are kept open."""
MAX_KEPT_BYTES = 64 * units.MIB
"""Of batches that are kept for the next document."""


class TextWriter:
    """Writes batches of documents to a file."""

    def __init__(self, path: Path) -> None:
        self.pa: Any = pyarrow()
        self.schema = self.pa.schema(
            [("text", self.pa.large_binary()), ("url", self.pa.large_utf8()), ("origin", self.pa.large_utf8())]
        )
        options = self.pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
        self.writer = self.pa.ipc.new_file(str(path), self.schema, options=options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.writer.close()

    def add(self, documents: list[TextDocument], contents: list[bytes]) -> None:
        texts = [text_array([one.url for one in documents]), text_array([one.origin for one in documents])]
        arrays = [bytes_array(contents), *texts]
        self.writer.write_batch(self.pa.record_batch(arrays, schema=self.schema))


class TextBatch(NamedTuple):
    """Documents of a file that lie together, and the number of the first."""

    first_row: int
    texts: list[bytes]
    urls: list[str]
    origins: list[str]


def _opened(path: Path) -> Any:
    pa: Any = pyarrow()
    return pa.ipc.open_file(pa.memory_map(str(path)), options=pa.ipc.IpcReadOptions(use_threads=False))


def read_batches(path: Path) -> Iterator[TextBatch]:
    """Every batch of a file in its order."""
    reader, row = _opened(path), 0
    for number in range(reader.num_record_batches):
        batch = reader.get_batch(number)
        yield TextBatch(row, *(batch.column(at).to_pylist() for at in range(3)))
        row += batch.num_rows


class TextLookup:
    """Single documents of any chunk, by their number in the whole input. Holds few batches in memory."""

    def __init__(self, files: TaskFiles) -> None:
        self.files = files
        self._readers: OrderedDict[int, tuple[Any, Ints]] = OrderedDict()
        self._batches: OrderedDict[tuple[int, int], Any] = OrderedDict()
        self._kept_bytes = 0

    def text(self, number: int) -> bytes:
        content: bytes = self._value(number, 0)
        return content

    def origin(self, number: int) -> str:
        return str(self._value(number, 2))

    def _value(self, number: int, column: int) -> Any:
        one = np.array([number], np.int64)
        chunk, row = int(chunk_of(one)[0]), int(row_of(one)[0])
        reader, starts = self._reader(chunk)
        at = int(np.searchsorted(starts, row, side="right")) - 1
        batch = self._batches.get((chunk, at))
        if batch is None:
            batch = reader.get_batch(at)
            self._batches[chunk, at] = batch
            self._kept_bytes += batch.nbytes
            while self._kept_bytes > MAX_KEPT_BYTES and len(self._batches) > 1:
                self._kept_bytes -= self._batches.popitem(last=False)[1].nbytes
        else:
            self._batches.move_to_end((chunk, at))
        return batch.column(column)[row - int(starts[at])].as_py()

    def _reader(self, chunk: int) -> tuple[Any, Ints]:
        if chunk not in self._readers:
            reader = _opened(self.files.path(chunk, "arrow"))
            starts = np.load(self.files.path(chunk, "batches.npy"), allow_pickle=False)
            self._readers[chunk] = reader, starts
            if len(self._readers) > MAX_OPEN:
                self._readers.popitem(last=False)
        return self._readers[chunk]
