"""The result of a run as a document: files, the funnel of documents, reasons, clusters, lengths and rates."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from scalewright import __version__
from scalewright.data.text.duplicates.tasks import CLEAN
from scalewright.data.text.execution.job import DataJob
from scalewright.data.text.execution.tally import merged
from scalewright.data.text.execution.work_files import TaskFiles, whole_file
from scalewright.data.text.pipeline_file import PipelineFile
from scalewright.data.text.reading.inputs import ASIDE_NAME, RESULT_NAME
from scalewright.data.text.tokens.finish_task import LENGTH_EDGES
from scalewright.data.text.tokens.text_tokenizer import open_text_tokenizer
from scalewright.errors import ConfigError
from scalewright.records.documents import document, read_document

KIND = "data-set"
MOST_PLACES = 20


def read_result(folder: Path) -> dict[str, Any]:
    """The document of a finished data set."""
    if folder.is_dir() and not (folder / RESULT_NAME).exists():
        raise ConfigError(f"{folder}: holds no {RESULT_NAME}: no run of a pipeline has ended there; check the path")
    return read_document(folder / RESULT_NAME, KIND)


def build_result(
    job: DataJob, work: Path, *, cleaned: list[dict[str, Any]], finished: list[dict[str, Any]],
    shards: list[dict[str, Any]], clusters: dict[str, Any], phases: list[dict[str, Any]], num_workers: int,
) -> dict[str, Any]:  # fmt: skip
    """Everything that is worth keeping once the work folder is gone."""
    tallies = [one["steps"] for one in [*cleaned, *finished]]
    num_tokens = sum(one["num_tokens"] for one in shards)
    body: dict[str, Any] = {
        "id": job.id,
        "version": __version__,
        "pipeline": job.pipeline.model_dump(mode="json", by_alias=True),
        "format": job.pipeline.write.format,
        "files": [file for one in shards for file in one["files"]],
        "num_shards": len(shards),
        "num_documents": sum(one["num_documents"] for one in shards),
        "num_sequences": sum(one["num_sequences"] for one in shards),
        "num_tokens": num_tokens,
        "tokens": _token_facts(job.pipeline, job.path),
        "input": {"num_files": len(job.files), "num_bytes": job.input_bytes, "num_chunks": len(job.chunks)},
        "steps": merged(tallies, job.pipeline.num_examples),
        "problems": _problems(cleaned),
        "num_aside": _write_aside(job, work, cleaned),
        "clusters": clusters,
        "lengths": _lengths(finished) if job.pipeline.tokenise is not None else [],
        "phases": phases,
        "write_cpu_s": sum(one["cpu_s"] for one in shards),
        "num_workers": num_workers,
    }
    return document(KIND, body)


def _token_facts(pipeline: PipelineFile, folder: Path) -> dict[str, Any] | None:
    if pipeline.tokenise is None:
        return None
    tokenizer = open_text_tokenizer(pipeline.tokenise, folder)
    return {
        "vocab": tokenizer.vocab, "dtype": tokenizer.dtype.__name__, "end_token": tokenizer.end_token,
        "end_name": tokenizer.end_name, "sequence": pipeline.pack.sequence if pipeline.pack is not None else None,
    }  # fmt: skip


def _problems(cleaned: list[dict[str, Any]]) -> list[dict[str, Any]]:
    problems: dict[str, dict[str, Any]] = {}
    for one in cleaned:
        for problem, count in one["problems"].items():
            entry = problems.setdefault(problem, {"problem": problem, "count": 0, "places": []})
            entry["count"] += count
            entry["places"] = [*entry["places"], *one["places"].get(problem, [])][:MOST_PLACES]
    return list(problems.values())


def _write_aside(job: DataJob, work: Path, cleaned: list[dict[str, Any]]) -> int:
    """What could not be read and documents on which a callable failed, in one file of the result."""
    num = sum(int(one["num_aside"]) for one in cleaned)
    if num:
        files = TaskFiles(work, CLEAN)
        with whole_file(Path(job.out) / ASIDE_NAME) as hidden, hidden.open("wb") as file:
            for number, one in enumerate(cleaned):
                if one["num_aside"]:
                    with files.path(number, "aside.jsonl").open("rb") as part:
                        shutil.copyfileobj(part, file)
    return num


def _lengths(finished: list[dict[str, Any]]) -> list[dict[str, int]]:
    """Documents by number of tokens: bins that double."""
    counts = [sum(column) for column in zip(*(one["lengths"] for one in finished), strict=True)]
    return [{"from": first, "num": num} for first, num in zip((1, *LENGTH_EDGES), counts, strict=True)]
