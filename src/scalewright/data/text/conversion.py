"""Texts from one format to another: a pipeline that only reads and writes."""

from __future__ import annotations

from pathlib import Path

from scalewright.data.text.execution.job import DataJob
from scalewright.data.text.execution.preparation import job_of
from scalewright.data.text.pipeline_file import OutputFormat, PipelineFile, ReadStep, TokeniseStep, WriteStep


def conversion_job(
    source: Path, target: Path, *, to: OutputFormat, tokenizer: str = "", text_field: str = "text"
) -> DataJob:
    """The job that writes the texts at `source`, a file or folder, to `target`. Tokens need a tokenizer."""
    tokenise = TokeniseStep(tokenizer=str(Path(tokenizer).resolve())) if tokenizer else None
    pipeline = PipelineFile(
        read=ReadStep(paths=(str(source.resolve()),), text_field=text_field),
        tokenise=tokenise,
        write=WriteStep(format=to),
    )
    return job_of(pipeline, folder=Path.cwd(), out=target)
