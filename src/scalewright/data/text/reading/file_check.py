"""Input files looked at before a run: their beginnings, some places and their ends, through the readers of the run."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from scalewright import units
from scalewright.data.text.pipeline_file import ReadStep
from scalewright.data.text.reading.documents import CUT_OFF, ReadTally
from scalewright.data.text.reading.inputs import ChunkPart, InputFile, is_cut_by_line, read_part
from scalewright.data.text.reading.streams import DamagedInputError, blocks, is_compressed, opened
from scalewright.data.text.reading.tables import num_row_groups
from scalewright.errors import ScalewrightError

SAMPLE_DOCUMENTS = 1000
"""Of the beginning of a file."""
SAMPLE_PLACES = 8
"""Places of a file of lines, the beginning and the end among them."""
SAMPLE_BYTES = 64 * units.KIB
"""Of each such place."""
ENOUGH_PROBLEMS = 100
"""A file with so many is not looked at further."""
DRAINED_BYTES = units.GIB
"""Compressed files are read to their ends up to this sum: whether gzip is whole is known at its end only."""
MOST_THREADS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class FileProblem:
    """What is wrong with a file."""

    file: str
    problem: str
    num_seen: int
    """How often it was seen in what was looked at."""
    place: str
    """The first one."""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCheck:
    """What a look at all files gave."""

    problems: tuple[FileProblem, ...]
    num_not_drained: int
    """Compressed files that were not read to their ends."""
    not_drained_bytes: int


class _EnoughError(Exception):
    """A file has shown problems enough."""


class _SampleTally(ReadTally):
    """Keeps the error of the first problem of each kind, and ends the reading of a file that has many."""

    def __init__(self, *, is_whole: bool) -> None:
        super().__init__()
        self.details: dict[str, str] = {}
        self.is_whole = is_whole

    def report(
        self, problem: str, place: str, *, byte: int | None = None, content: bytes = b"", num_bytes: int | None = None,
        error: str = "",
    ) -> None:  # fmt: skip
        ReadTally.report(self, problem, place, byte=byte, content=content, num_bytes=num_bytes, error=error)
        self.details.setdefault(problem, error)
        if not self.is_whole and self.problems.total() >= ENOUGH_PROBLEMS:
            raise _EnoughError


def check_files(
    files: Sequence[InputFile], step: ReadStep, *, is_whole: bool = False,
    on_progress: Callable[[int, int], None] = lambda done, total: None,  # noqa: ARG005
) -> FileCheck:  # fmt: skip
    """Look at every file; with `is_whole`, read every file to its end."""
    left_bytes, drains = DRAINED_BYTES, []
    for file in files:
        drains.append(is_whole or not is_compressed(Path(file.path)) or file.num_bytes <= left_bytes)
        left_bytes -= file.num_bytes if drains[-1] and is_compressed(Path(file.path)) else 0
    problems: list[FileProblem] = []
    with ThreadPoolExecutor(min(MOST_THREADS, len(os.sched_getaffinity(0)))) as pool:
        looks = pool.map(lambda file, drain: _problems(file, step, drain=drain, is_whole=is_whole), files, drains)
        for number, one in enumerate(looks):
            problems += one
            on_progress(number + 1, len(files))
    not_drained = [file.num_bytes for file, drain in zip(files, drains, strict=True) if not drain]
    return FileCheck(
        problems=tuple(problems), num_not_drained=len(not_drained), not_drained_bytes=sum(not_drained)
    )  # fmt: skip


def _problems(file: InputFile, step: ReadStep, *, drain: bool, is_whole: bool) -> list[FileProblem]:
    if not file.num_bytes:
        return [FileProblem(file=file.path, problem="empty file", num_seen=1, place=file.path)]
    tally = _SampleTally(is_whole=is_whole)
    try:
        for part in _parts(file, step, is_whole=is_whole):
            for _ in islice(read_part(part, step, tally), None if is_whole else SAMPLE_DOCUMENTS):
                pass
        if drain and not is_whole and is_compressed(Path(file.path)) and CUT_OFF not in tally.problems:
            _drain(Path(file.path))
        if file.format == "tar" and not is_compressed(Path(file.path)) and CUT_OFF not in tally.problems:
            _check_tar_end(Path(file.path))
    except _EnoughError:
        pass
    except DamagedInputError as error:
        tally.report(CUT_OFF, file.path, error=str(error))
    except (ScalewrightError, OSError) as error:
        words = str(error).removeprefix(f"{file.path}: ")
        return [FileProblem(file=file.path, problem=words, num_seen=1, place=file.path)]
    return [
        FileProblem(
            file=file.path, problem=name, num_seen=count, place=tally.places[name][0], detail=tally.details[name]
        )
        for name, count in tally.problems.items()
    ]  # fmt: skip


def _parts(file: InputFile, step: ReadStep, *, is_whole: bool) -> Iterator[ChunkPart]:
    """The whole file from its beginning, or places of a file of lines."""
    if file.format == "parquet":
        num_groups = num_row_groups(Path(file.path), step)
        yield ChunkPart(path=file.path, format=file.format, stop=None if is_whole else min(num_groups, 1))
    elif is_whole or not is_cut_by_line(file, step) or file.num_bytes <= SAMPLE_PLACES * SAMPLE_BYTES:
        yield ChunkPart(path=file.path, format=file.format)
    else:
        between = (file.num_bytes - SAMPLE_BYTES) // (SAMPLE_PLACES - 1)
        for start in [number * between for number in range(SAMPLE_PLACES - 1)]:
            yield ChunkPart(path=file.path, format=file.format, start=start, stop=start + SAMPLE_BYTES)
        yield ChunkPart(path=file.path, format=file.format, start=file.num_bytes - SAMPLE_BYTES, stop=file.num_bytes)


def _drain(path: Path) -> None:
    """Decompress to the end, where gzip and zstd say whether they are whole."""
    with opened(path) as stream:
        for _ in blocks(stream):
            pass


def _check_tar_end(path: Path) -> None:
    """A tar file ends with two blocks of zeros; one that was cut off between two members looks whole otherwise."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(size - 2 * tarfile.BLOCKSIZE, 0))
        end = file.read()
    if size % tarfile.BLOCKSIZE or end.strip(b"\0"):
        raise DamagedInputError("it does not end as tar files do")
