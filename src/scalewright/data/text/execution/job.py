"""A run as its work folder holds it: the pipeline, its inputs and chunks. Every worker reads it from there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from scalewright.data.text.pipeline_file import PipelineFile
from scalewright.data.text.reading.inputs import ChunkPart, InputFile
from scalewright.records.documents import digest, document, read_document, write_document
from scalewright.records.loader import restore, stored

KIND = "data-job"
CODE_VERSION = 3
"""Raised when the same pipeline would give other bytes: an unfinished run of older code is not gone on with."""
JOB_NAME = "job.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataJob:
    """Everything that decides the result."""

    pipeline: PipelineFile
    folder: str
    """Of the pipeline file; its paths are relative to it."""
    out: str
    files: tuple[InputFile, ...]
    chunks: tuple[tuple[ChunkPart, ...], ...]
    attachments: dict[str, str]
    """Digests of other files that decide: tokenizer, benchmarks, callables."""
    id: str = ""

    @property
    def path(self) -> Path:
        return Path(self.folder)

    @property
    def input_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)


def job_id(job: DataJob) -> str:
    """The same for the same pipeline and the same inputs, wherever the result is written."""
    body = stored(job)
    return digest({"version": CODE_VERSION, **{key: body[key] for key in ("pipeline", "files", "attachments")}})


def write_job(work: Path, job: DataJob) -> None:
    write_document(work / JOB_NAME, document(KIND, {"job": stored(job)}))


def read_job(work: Path) -> DataJob:
    path = work / JOB_NAME
    return _read(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=2)
def _read(path: Path, modified_ns: int) -> DataJob:  # noqa: ARG001  part of the key
    return restore(read_document(path, KIND)["job"], DataJob, where=str(path))
