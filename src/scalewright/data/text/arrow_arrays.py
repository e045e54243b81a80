"""Arrow arrays of texts and numbers from buffers and back: pyarrow's own ways first import pandas, in every worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalewright.data.text.pyarrow_module import pyarrow

ARROW_NAMES = {"i": "int", "u": "uint"}


def _joined(kind: Any, parts: Sequence[bytes]) -> Any:
    pa: Any = pyarrow()
    ends = np.zeros(len(parts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)), out=ends[1:])
    return pa.Array.from_buffers(kind, len(parts), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(parts))])


def bytes_array(parts: Sequence[bytes]) -> Any:
    """One row of bytes each."""
    return _joined(pyarrow().large_binary(), parts)


def text_array(parts: Sequence[str]) -> Any:
    """One text each."""
    return _joined(pyarrow().large_utf8(), [part.encode("utf-8", errors="replace") for part in parts])


def number_array(values: NDArray[Any]) -> Any:
    """Whole numbers, without a copy."""
    pa: Any = pyarrow()
    kind = getattr(pa, f"{ARROW_NAMES[values.dtype.kind]}{8 * values.dtype.itemsize}")()
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def numbers_of(array: Any, dtype: type[np.generic]) -> NDArray[Any]:
    """The values of an array of whole numbers that has no gaps, without a copy."""
    values: NDArray[Any] = np.frombuffer(array.buffers()[1], dtype)
    return values[array.offset : array.offset + len(array)]
