"""One array in a .npy file, mapped and never executed: an ordinary file whose header and length agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalewright.errors import DocumentError
from scalewright.records.plain_file import open_plain

MAGIC = b"\x93NUMPY"


def mapped_array(path: Path, *, next_step: str) -> NDArray[Any]:
    """The array of a file; nothing of it is in memory yet. OSError is not caught.

    Mapping refuses a header that claims more than the file holds, where reading would first allocate that much.
    """
    with open_plain(path) as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise DocumentError(f"{path}: is not a .npy file; {next_step}")
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # a damaged header is parsed as Python text, and raises almost anything
        words = " ".join(str(error).split())[:200]
        raise DocumentError(f"{path}: is not a whole .npy file ({words}); {next_step}") from error
    if not isinstance(array, np.ndarray):
        raise DocumentError(f"{path}: does not hold one array; {next_step}")
    return array
