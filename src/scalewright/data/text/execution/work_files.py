"""Files of a work folder: written under a hidden name, then renamed. A kill leaves a file whole or absent."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalewright.data.whole import writing
from scalewright.records.documents import parse_json, read_text, write_text


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A hidden name to write to, which becomes `path` at the end. Two workers at the same task do not meet."""
    hidden = path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}.tmp")
    try:
        with writing(path):
            yield hidden
            hidden.replace(path)
    except BaseException:
        hidden.unlink(missing_ok=True)
        raise


def write_array(path: Path, array: NDArray[Any]) -> None:
    with whole_file(path) as hidden, hidden.open("wb") as file:
        np.save(file, array, allow_pickle=False)


def read_array(path: Path) -> NDArray[Any]:
    array: NDArray[Any] = np.load(path, allow_pickle=False)
    return array


def mapped_array(path: Path) -> NDArray[Any]:
    """The array as the file's pages: only what is looked at comes into memory."""
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError:  # an array without elements has no pages
        return read_array(path)
    return array


class TaskFiles:
    """Names of the files of one phase: a few for each task."""

    def __init__(self, work: Path, phase: str) -> None:
        self.folder = work / phase

    def path(self, number: int, kind: str) -> Path:
        return self.folder / f"{number:06d}.{kind}"

    def make(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def is_done(self, number: int) -> bool:
        """The summary is written last."""
        return self.path(number, "json").is_file()

    def write_summary(self, number: int, summary: dict[str, Any]) -> None:
        with writing(self.path(number, "json")):
            write_text(self.path(number, "json"), json.dumps(summary, allow_nan=False), is_synced=False)

    def summary(self, number: int) -> dict[str, Any]:
        path = self.path(number, "json")
        summary: dict[str, Any] = parse_json(read_text(path), where=str(path))
        return summary
