"""Samples: the interface of every data set, however it is stored; and the file that describes a set that we made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from scalewright.errors import DocumentError, shortened
from scalewright.records.documents import document, read_document, write_document
from scalewright.records.loader import restore

Format = Literal["folder", "shards", "lmdb"]
FORMATS: tuple[Format, ...] = ("folder", "shards", "lmdb")
DESCRIPTION = "dataset.json"
KIND = "dataset"

Sample = tuple[bytes, int]
"""An encoded image and the number of its class."""
Progress = Callable[[int, int], None]
"""Called with the number done and the total. If it raises, the work ends and nothing remains."""


def no_progress(done: int, total: int) -> None:
    """Report no progress."""
    del done, total


class Samples(Protocol):
    """Labelled samples by number. A reader may be pickled and forked: the process that uses it opens handles."""

    @property
    def path(self) -> Path: ...

    @property
    def format(self) -> Format: ...

    @property
    def num_classes(self) -> int: ...

    def __len__(self) -> int: ...

    def read(self, index: int) -> Sample:
        """One sample, by random access."""
        ...

    def stream(self, start: int, stop: int) -> Iterator[Sample]:
        """Samples `start` up to `stop` in stored order, by sequential access."""
        ...

    def where(self, index: int) -> str:
        """File and number of a sample, for messages."""
        ...

    def run_starts(self) -> list[int]:
        """First samples of the runs that are read together (shards); one run if any order costs the same."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """Description of a data set that we wrote."""

    format: Format
    num_samples: int
    num_classes: int
    data_bytes: int
    """Size of the encoded samples, without what the format adds."""
    classes: tuple[str, ...]
    files: dict[str, int]
    """Name and size in bytes of each file, for formats with few files (shards, LMDB); a shorter file is damaged."""
    origin: dict[str, Any]
    """What it was made from. A set of the same origin is kept; a set of another origin is not overwritten."""


def write_description(folder: Path, description: Description) -> None:
    write_document(folder / DESCRIPTION, document(KIND, asdict(description)))


def read_description(folder: Path) -> Description | None:
    """The description; None if the data set is not one of ours."""
    path = folder / DESCRIPTION
    if not path.is_file():
        return None
    body = {key: value for key, value in read_document(path, KIND).items() if key != "schema"}
    return restore(body, Description, where=str(path))


def check_files(folder: Path, description: Description) -> None:
    """Refuse a data set whose files are not as long as when they were written."""
    for name, expected_bytes in description.files.items():
        path = folder / name
        try:
            actual_bytes = path.stat().st_size if path.is_file() else -1
        except OSError as error:  # a name that no file can have
            raise DocumentError(
                f"{folder / DESCRIPTION}: names a file that cannot be read ({shortened(name)}: {error.strerror}); "
                "make or copy the data set again"
            ) from error
        if actual_bytes != expected_bytes:
            problem = "is missing" if actual_bytes < 0 else f"has {actual_bytes} bytes, not {expected_bytes}"
            raise DocumentError(f"{path}: {problem}: the data set is damaged; make or copy it again")


def damaged(samples: Samples, index: int, why: str) -> DocumentError:
    """The error for a sample that cannot be used: names the file and the sample's number."""
    return DocumentError(f"{samples.where(index)}: {why}; repair or remove it")


def check_index(samples: Samples, index: int) -> None:
    if not 0 <= index < len(samples):
        raise IndexError(f"sample {index} of {len(samples)} in {samples.path}")


def image_problem(content: bytes) -> str | None:
    """Why bytes cannot be a whole JPEG or PNG image, judged by its markers; None if they may be one."""
    if not content:
        return "is empty"
    if content.startswith(b"\xff\xd8"):
        return None if content.rfind(b"\xff\xd9") > 0 else "is a JPEG image that was cut off"
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return None if b"IEND" in content[-64:] else "is a PNG image that was cut off"
    return "is neither a JPEG nor a PNG image"
