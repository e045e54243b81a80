"""Small files: `CLASS/NAME.jpg`, one file per sample, one folder per class, as ImageNet is unpacked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from scalewright.data.samples import Format, Sample, check_index
from scalewright.errors import DocumentError
from scalewright.records.plain_file import read_plain

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png")
MOST_IMAGE_BYTES = 1 << 30


class FolderSamples:
    """Samples in order of class and name. Names are in one block of bytes, which forked workers share."""

    format: Format = "folder"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.classes = tuple(sorted(entry.name for entry in os.scandir(path) if _is_class(entry)))
        names, labels = [], []
        for label, name in enumerate(self.classes):
            files = sorted(entry.name for entry in os.scandir(path / name) if _is_image(entry))
            if not files:
                raise DocumentError(
                    f"{path / name}: holds no image ({', '.join(IMAGE_SUFFIXES)}); add some or remove it"
                )
            names += [os.fsencode(f"{name}/{file}") for file in files]
            labels += [label] * len(files)
        if not names:
            raise DocumentError(
                f"{path}: holds no CLASS/IMAGE{IMAGE_SUFFIXES[0]}; name the folder of the class folders"
            )
        self._ends = np.cumsum([len(name) for name in names])
        self._names = b"".join(names)
        self._labels = np.asarray(labels, dtype=np.int32)

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    def __len__(self) -> int:
        return len(self._labels)

    def read(self, index: int) -> Sample:
        check_index(self, index)
        try:
            return read_plain(self.file(index), most_bytes=MOST_IMAGE_BYTES), int(self._labels[index])
        except OSError as error:
            raise DocumentError(f"{self.where(index)}: cannot be read: {error.strerror}; check the data set") from error

    def stream(self, start: int, stop: int) -> Iterator[Sample]:
        return (self.read(index) for index in range(start, stop))

    def file(self, index: int) -> Path:
        first = int(self._ends[index - 1]) if index else 0
        return self.path / os.fsdecode(self._names[first : int(self._ends[index])])

    def where(self, index: int) -> str:
        return f"{self.file(index)} (sample {index})"

    def run_starts(self) -> list[int]:
        return [0]

    def close(self) -> None:
        """Nothing is open."""


class FolderWriter:
    """Writes `CLASS/NUMBER.SUFFIX`."""

    def __init__(self, folder: Path, classes: tuple[str, ...]) -> None:
        self._folder, self._classes = folder, classes
        for name in classes:
            (folder / name).mkdir()

    def add(self, index: int, content: bytes, label: int) -> None:
        suffix = ".png" if content.startswith(b"\x89PNG") else ".jpg"
        (self._folder / self._classes[label] / f"{index:08d}{suffix}").write_bytes(content)

    def finish(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        """Nothing is open."""


def _is_class(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir() and not entry.name.startswith(".")


def _is_image(entry: os.DirEntry[str]) -> bool:
    return entry.name.lower().endswith(IMAGE_SUFFIXES) and not entry.name.startswith(".")
