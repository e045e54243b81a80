"""Which files a pipeline reads, and how they are cut into chunks, one for each task."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path
from typing import Literal

from scalewright.data.text.pipeline_file import ReadStep
from scalewright.data.text.reading.documents import CUT_OFF, ReadTally, TextDocument
from scalewright.data.text.reading.json_lines import read_json_lines
from scalewright.data.text.reading.plain_text import read_plain_text
from scalewright.data.text.reading.streams import DamagedInputError, is_compressed, plain_name
from scalewright.data.text.reading.tables import num_row_groups, read_parquet, read_tar
from scalewright.data.text.reading.warc import read_warc
from scalewright.errors import ConfigError

FileFormat = Literal["jsonl", "parquet", "warc", "text", "tar"]
BY_SUFFIX: dict[str, FileFormat] = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet", ".warc": "warc", ".wet": "warc",
    ".txt": "text", ".text": "text", ".md": "text", ".rst": "text", ".tar": "tar", ".tgz": "tar",
}  # fmt: skip
RESULT_NAME, ASIDE_NAME, PAGE_NAME = "data.json", "aside.jsonl", "report.html"
"""Files of a result beside its shards."""
MAX_PARTS = 4096
"""Files in one chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkPart:
    """A file, or a range of one: bytes where lines begin, or row groups."""

    path: str
    format: FileFormat
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """A file to read, with what tells whether it was changed since."""

    path: str
    format: FileFormat
    num_bytes: int
    modified_ns: int


def input_files(step: ReadStep, *, folder: Path) -> list[InputFile]:
    """Every file of [read] paths, sorted by name, each once. An empty answer is refused."""
    paths: dict[Path, None] = {}
    for pattern in step.paths:
        matches = _matches(pattern, folder)
        if not matches:
            is_empty = (folder / Path(pattern).expanduser()).is_dir()
            fault = "is a folder without files" if is_empty else f"matches no file in {folder}"
            raise ConfigError(f"[read] paths: {pattern!r} {fault}; check the path")
        paths.update(dict.fromkeys(matches))
    files = []
    for path in sorted(paths):
        form = step.format if step.format != "auto" else BY_SUFFIX.get(Path(plain_name(path)).suffix)
        if form is None:
            continue
        stats = path.stat()
        files.append(InputFile(path=str(path), format=form, num_bytes=stats.st_size, modified_ns=stats.st_mtime_ns))
    if not files:
        raise ConfigError(
            f"[read] paths: {len(paths)} files are there, and none ends in {', '.join(BY_SUFFIX)}; set format in [read]"
        )
    return files


def _matches(pattern: str, folder: Path) -> list[Path]:
    place = Path(pattern).expanduser()
    place = place if place.is_absolute() else folder / place
    if has_magic(str(place)):
        roots = [Path(name) for name in glob(str(place), recursive=True)]  # noqa: PTH207  a pattern with an absolute start
    else:
        roots = [place] if place.exists() else []
    files: list[Path] = []
    for root in roots:
        inside = [root] if root.is_file() else root.rglob("*")
        files += [one for one in inside if one.is_file() and not one.name.startswith(".") and not _is_beside_data(one)]
    return [Path(one).absolute() for one in files]


def _is_beside_data(path: Path) -> bool:
    """What a pipeline writes beside its shards, whose texts are not the set's."""
    return path.name in (RESULT_NAME, ASIDE_NAME, PAGE_NAME) and (path.parent / RESULT_NAME).is_file()


def plan_chunks(files: list[InputFile], step: ReadStep) -> list[tuple[ChunkPart, ...]]:
    """Chunks of about `step.chunk` bytes in the order of the files. The number of workers has no part in it."""
    chunks: list[tuple[ChunkPart, ...]] = []
    group: list[ChunkPart] = []
    group_bytes = 0
    for file in files:
        for part, num_bytes in _parts(file, step):
            if group and (group_bytes + num_bytes > step.chunk or len(group) >= MAX_PARTS):
                chunks.append(tuple(group))
                group, group_bytes = [], 0
            group.append(part)
            group_bytes += num_bytes
    return [*chunks, tuple(group)] if group else chunks


def is_cut_by_line(file: InputFile, step: ReadStep) -> bool:
    """Whether any range of its bytes can be read: it holds a document a line, and is not compressed."""
    is_by_line = file.format == "jsonl" or (file.format == "text" and step.text_unit == "line")
    return is_by_line and not is_compressed(Path(file.path))


def _parts(file: InputFile, step: ReadStep) -> Iterator[tuple[ChunkPart, int]]:
    if is_cut_by_line(file, step) and file.num_bytes > step.chunk:
        for start in range(0, file.num_bytes, step.chunk):
            stop = min(start + step.chunk, file.num_bytes)
            yield ChunkPart(path=file.path, format=file.format, start=start, stop=stop), stop - start
    elif file.format == "parquet":
        groups = num_row_groups(Path(file.path), step)
        for number in range(groups):
            part = ChunkPart(path=file.path, format=file.format, start=number, stop=number + 1)
            yield part, file.num_bytes // groups
    else:
        yield ChunkPart(path=file.path, format=file.format), file.num_bytes


def read_part(part: ChunkPart, step: ReadStep, tally: ReadTally) -> Iterator[TextDocument]:
    """Documents of one part. A damaged file gives what comes before the damage, and is named."""
    path = Path(part.path)
    tally.path = part.path
    try:
        match part.format:
            case "jsonl":
                yield from read_json_lines(path, step, tally, start=part.start, stop=part.stop)
            case "text":
                yield from read_plain_text(path, step, tally, start=part.start, stop=part.stop)
            case "parquet":
                yield from read_parquet(path, step, tally, start=part.start, stop=part.stop)
            case "warc":
                yield from read_warc(path, step, tally)
            case "tar":
                yield from read_tar(path, step, tally)
    except DamagedInputError as error:
        tally.report(CUT_OFF, part.path, error=str(error))
