"""Documents of Parquet files and of tar files."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from scalewright.data.text.pipeline_file import ReadStep
from scalewright.data.text.pyarrow_module import pyarrow
from scalewright.data.text.reading.aside import HEAD_BYTES
from scalewright.data.text.reading.documents import NO_TEXT, OTHER_MEMBER, TOO_LONG, ReadTally, TextDocument, decoded
from scalewright.data.text.reading.json_lines import from_json
from scalewright.data.text.reading.streams import DamagedInputError, opened
from scalewright.errors import ConfigError

ROWS = 1024
TEXT_MEMBERS = (".txt", ".text", ".md", ".html", ".rst")


def num_row_groups(path: Path, step: ReadStep) -> int:
    """Row groups of a Parquet file that has the column of texts."""
    pa: Any = pyarrow()
    try:
        with pyarrow("parquet").ParquetFile(path) as file:
            names, groups = file.schema_arrow.names, int(file.num_row_groups)
            kind = file.schema_arrow.field(step.text_field).type if step.text_field in names else None
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"{path}: is no whole Parquet file; copy it again or leave it out of [read] paths") from error
    if kind is None or not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        has = f"has no column {step.text_field!r}" if kind is None else f"holds {kind} in {step.text_field!r}, not text"
        raise ConfigError(f"{path}: {has}; its columns are {', '.join(names)}: set text_field in [read]")
    return groups


def read_parquet(
    path: Path, step: ReadStep, tally: ReadTally, *, start: int = 0, stop: int | None = None
) -> Iterator[TextDocument]:
    """Documents of the row groups from `start` to before `stop`."""
    pa: Any = pyarrow()
    try:
        with pyarrow("parquet").ParquetFile(path) as file:
            groups = range(start, file.num_row_groups if stop is None else stop)
            columns = [name for name in (step.text_field, step.url_field) if name in file.schema_arrow.names]
            row = 0
            for batch in file.iter_batches(ROWS, row_groups=list(groups), columns=columns, use_threads=False):
                texts = batch.column(step.text_field).to_pylist()
                urls = batch.column(step.url_field).to_pylist() if step.url_field in columns else [None] * len(texts)
                for text, url in zip(texts, urls, strict=True):
                    place = f"{path} group {start} row {row}"
                    row += 1
                    if text is None:
                        tally.report(NO_TEXT, place)
                        continue
                    tally.read_bytes += len(text)
                    if len(text) > step.max_document:
                        head = text[:HEAD_BYTES].encode("utf-8", errors="replace")
                        tally.report(TOO_LONG, place, content=head, num_bytes=len(text))
                    else:
                        yield TextDocument(text, url if isinstance(url, str) else "", place)
    except (OSError, pa.ArrowException) as error:
        raise DamagedInputError(str(error)) from error


def read_tar(path: Path, step: ReadStep, tally: ReadTally) -> Iterator[TextDocument]:
    """Members that are texts or JSON objects, in the order of the file."""
    try:
        with opened(path) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                place = f"{path} member {member.name}"
                suffix = PurePosixPath(member.name).suffix
                if not member.isfile():
                    continue
                if suffix not in (*TEXT_MEMBERS, ".json"):
                    tally.report(OTHER_MEMBER, place)
                    continue
                file = archive.extractfile(member)
                assert file is not None  # it is a file
                if member.size > step.max_document:
                    tally.report(TOO_LONG, place, content=file.read(HEAD_BYTES), num_bytes=member.size)
                    continue
                content = file.read()
                tally.read_bytes += len(content)
                if suffix == ".json":
                    document = from_json(content, step, tally, place)
                    if document is not None:
                        yield document
                else:
                    yield TextDocument(decoded(content, tally, place), "", place)
    except tarfile.TarError as error:
        raise DamagedInputError(str(error)) from error
