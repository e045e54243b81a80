"""What a pipeline would read and do, without running it: its file, its steps, its input files and its tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scalewright.data.text.execution.preparation import attachments_of, job_of
from scalewright.data.text.pipeline_file import load_pipeline
from scalewright.data.text.reading.file_check import FileCheck, check_files
from scalewright.data.text.reading.inputs import input_files
from scalewright.data.text.reading.streams import is_compressed
from scalewright.errors import ConfigError
from scalewright.records.documents import document

KIND = "data-check"
LARGE_COMPRESSED_BYTES = 2_000_000_000
"""A compressed file is one task, and the keys of a task's documents are in memory at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineCheck:
    """A pipeline that could be loaded, and what a look at its inputs gave."""

    path: Path
    id: str
    """Empty if a file would be refused."""
    steps: tuple[str, ...]
    num_files: int
    input_bytes: int
    num_tasks: int | None
    """None if a file would be refused."""
    chunk_bytes: int
    num_compressed: int
    largest_compressed_bytes: int
    files: FileCheck

    def document(self) -> dict[str, Any]:
        return document(KIND, {
            "pipeline": str(self.path), "id": self.id, "steps": list(self.steps), "num_files": self.num_files,
            "input_bytes": self.input_bytes, "num_tasks": self.num_tasks, "num_compressed": self.num_compressed,
            "largest_compressed_bytes": self.largest_compressed_bytes,
            "problems": [asdict(one) for one in self.files.problems],
            "num_not_read_to_end": self.files.num_not_drained,
            "not_read_to_end_bytes": self.files.not_drained_bytes,
        })  # fmt: skip


def check_pipeline(path: Path, *, is_whole: bool, on_progress: Callable[[int, int], None]) -> PipelineCheck:
    """Refuses what is wrong in the file or in its steps; what is wrong with inputs is in the answer."""
    pipeline, folder = load_pipeline(path), path.resolve().parent
    files = input_files(pipeline.read, folder=folder)
    attachments_of(pipeline, folder)
    looked = check_files(files, pipeline.read, is_whole=is_whole, on_progress=on_progress)
    job_id, num_tasks = "", None
    try:
        job = job_of(pipeline, folder=folder, out=Path("data-set"))
        job_id, num_tasks = job.id, len(job.chunks)
    except ConfigError:  # a Parquet file without an end
        if not looked.problems:
            raise
    steps = [name for name in type(pipeline).model_fields if name in pipeline.model_fields_set]
    compressed = [one.num_bytes for one in files if is_compressed(Path(one.path))]
    return PipelineCheck(
        path=path, id=job_id, steps=tuple(name for name in steps if name not in ("schema_", "seed", "num_examples")),
        num_files=len(files), input_bytes=sum(one.num_bytes for one in files), num_tasks=num_tasks,
        chunk_bytes=pipeline.read.chunk,
        num_compressed=len(compressed), largest_compressed_bytes=max(compressed, default=0), files=looked,
    )  # fmt: skip
