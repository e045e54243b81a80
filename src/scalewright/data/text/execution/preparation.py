"""From a pipeline file to a job: inputs found, chunks cut, and what can be refused is refused before work begins."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from scalewright.data.text.cleaning.callables import load_callable
from scalewright.data.text.cleaning.language import check_languages
from scalewright.data.text.cleaning.rules import bounds_of
from scalewright.data.text.execution.job import DataJob, job_id
from scalewright.data.text.pipeline_file import PipelineFile, load_pipeline
from scalewright.data.text.reading.inputs import InputFile, input_files, plan_chunks
from scalewright.data.text.reading.streams import is_compressed
from scalewright.data.text.tokens.text_tokenizer import open_text_tokenizer, tokenizer_path

EXPANSION = 4.0
"""Bytes of text in a byte of a compressed file: measured between 3 and 5 on documentation with gzip and zstd."""
WORK_PER_TEXT = 1.6
"""Bytes that a run writes at most for a byte of text: texts, keys, pieces and shards."""


def prepare_job(path: Path, *, out: Path) -> DataJob:
    """The job of a pipeline file, whose result goes to `out`."""
    return job_of(load_pipeline(path), folder=path.resolve().parent, out=out)


def job_of(pipeline: PipelineFile, *, folder: Path, out: Path) -> DataJob:
    files = input_files(pipeline.read, folder=folder)
    job = DataJob(
        pipeline=pipeline,
        folder=str(folder),
        out=str(out.resolve()),
        files=tuple(files),
        chunks=tuple(plan_chunks(files, pipeline.read)),
        attachments=attachments_of(pipeline, folder),
    )
    return replace(job, id=job_id(job))


def attachments_of(pipeline: PipelineFile, folder: Path) -> dict[str, str]:
    """Check what the steps need, and digest the files that decide the result."""
    paths: list[Path] = []
    for step in pipeline.filter:
        bounds_of(step)
        if step.rule == "language":
            check_languages(step.languages)
        if step.callable:
            load_callable(step.callable, folder)
            paths.append(folder / Path(step.callable.rpartition(":")[0]).expanduser())
    if pipeline.tokenise is not None:
        open_text_tokenizer(pipeline.tokenise, folder)
        paths.append(tokenizer_path(pipeline.tokenise, folder))
    if pipeline.decontaminate is not None:
        reading = pipeline.read.model_copy(update={"paths": pipeline.decontaminate.paths, "format": "auto"})
        paths += [Path(file.path) for file in input_files(reading, folder=folder)]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in paths}


def expected_text_bytes(files: tuple[InputFile, ...]) -> int:
    """An estimate of the text in the inputs, for the check of free space."""
    return int(
        sum(
            one.num_bytes * (EXPANSION if is_compressed(Path(one.path)) or one.format == "parquet" else 1)
            for one in files
        )
    )
