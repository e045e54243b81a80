"""The first task of a chunk: read, normalise, filter, and the keys by which duplicates will be seen."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Self
from urllib.parse import urlsplit

import numpy as np

from scalewright.data.text.cleaning.batch import BatchCleaner, CleanBatch
from scalewright.data.text.cleaning.text_view import Hashes, TextView
from scalewright.data.text.duplicates.key_tables import write_keys
from scalewright.data.text.duplicates.minhash import band_keys, signatures
from scalewright.data.text.duplicates.span_anchors import SpanCollector
from scalewright.data.text.execution.job import DataJob, read_job
from scalewright.data.text.execution.tally import KEPT, Tally
from scalewright.data.text.execution.texts import TextWriter
from scalewright.data.text.execution.work_files import TaskFiles, whole_file, write_array
from scalewright.data.text.pipeline_file import DeduplicateStep
from scalewright.data.text.reading.aside import AsideFile
from scalewright.data.text.reading.documents import KEPT_PROBLEMS, ReadTally, TextDocument, batches
from scalewright.data.text.reading.inputs import read_part

READ, HASH = "read", "hash"
CLEAN = "clean"


def clean_chunk(work: Path, number: int) -> dict[str, Any]:
    """Write the cleaned texts of a chunk and their keys; returns what was counted."""
    job, files = read_job(work), TaskFiles(work, CLEAN)
    tally, aside = Tally(job.pipeline.num_examples), AsideFile(files.path(number, "aside.jsonl"))
    read, cleaner = ReadTally(aside=aside), BatchCleaner(job.pipeline, job.path, tally, aside)
    lengths, starts, num_docs = [np.empty(0, np.int64)], [], 0
    with (
        whole_file(files.path(number, "arrow")) as text_path,
        whole_file(files.path(number, "signatures")) as signature_path,
        TextWriter(text_path) as writer,
        signature_path.open("wb") as signature_file,
        aside,
        _KeyCollector(job.pipeline.deduplicate, files, number) as keys,
    ):
        for documents in _timed_batches(job, number, tally, read):
            batch = cleaner.clean(documents)
            if not batch.documents:
                continue
            if job.pipeline.deduplicate is not None:
                with tally.timed(HASH) as step:
                    step.docs_in += len(batch.documents)
                    step.bytes_in += sum(map(len, batch.contents))
                    keys.add(batch, signature_file)
            for one in batch.documents:
                tally.example("clean", KEPT, text=one.text, origin=one.origin, url=one.url, why="")
            starts.append(num_docs)
            num_docs += len(batch.documents)
            lengths.append(np.fromiter(map(len, batch.contents), np.int64, len(batch.contents)))
            writer.add(batch.documents, batch.contents)
        num_spans = keys.finish(num_docs)
    write_array(files.path(number, "batches.npy"), np.array(starts, np.int64))
    write_array(files.path(number, "lengths.npy"), np.concatenate(lengths))
    _count_problems(tally, read)
    return {
        "num_docs": num_docs, "text_bytes": int(sum(map(np.sum, lengths))), "steps": tally.to_json(),
        "problems": dict(read.problems), "places": read.places, "num_aside": aside.num,
        "num_spans": num_spans,
    }  # fmt: skip


def _timed_batches(job: DataJob, number: int, tally: Tally, read: ReadTally) -> Iterator[list[TextDocument]]:
    parts = job.chunks[number]
    stream = batches(document for part in parts for document in read_part(part, job.pipeline.read, read))
    step = tally.step(READ)
    while True:
        with tally.timed(READ):
            batch = next(stream, None)
        if batch is None:
            return
        step.docs_in += len(batch)
        step.docs_out += len(batch)
        step.bytes_out += sum(len(one.text) for one in batch)
        yield batch


def _count_problems(tally: Tally, read: ReadTally) -> None:
    """Documents that could not be read count as dropped by the first step."""
    step = tally.step(READ)
    step.bytes_in += read.read_bytes
    for problem, count in read.problems.items():
        if problem not in KEPT_PROBLEMS:
            step.docs_in += count
            step.reasons[problem] += count
            for place in read.places[problem][: tally.num_examples]:
                tally.example(READ, problem, text="", origin=place, url="", why=problem)


class _KeyCollector:
    """Keys of the documents of a chunk: equal texts, addresses, bands of near duplicates."""

    def __init__(self, step: DeduplicateStep | None, files: TaskFiles, number: int) -> None:
        self.step, self.files, self.number = step, files, number
        self.keys: list[Hashes] = []
        self.checks: list[Hashes] = []
        self.spans: SpanCollector | None = None
        if step is not None and step.spans:
            self.spans = SpanCollector(step.spans, step.span_unit, files, number)
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        if self.spans is not None:
            self._stack.enter_context(self.spans)
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def add(self, batch: CleanBatch, signature_file: BinaryIO) -> None:
        if self.step is None:
            return
        tables: list[Hashes] = []
        if self.step.exact:
            joined = b"".join(hashlib.blake2b(one, digest_size=16).digest() for one in batch.contents)
            both = np.frombuffer(joined, np.uint64).reshape(-1, 2)
            tables.append(np.maximum(both[:, :1].T, np.uint64(1)))
            self.checks.append(both[:, 1])
        if self.step.url:
            tables.append(np.array([[_url_key(one.url) for one in batch.documents]], np.uint64))
        if self.step.near is None and self.spans is None:
            view = batch.view
        else:
            is_whole = len(batch.view_rows) == batch.view.num_documents
            view = batch.view if is_whole else TextView(batch.contents)
        if self.spans is not None:
            self.spans.add(view)
        if self.step.near is not None:
            rows, has_any = signatures(view, self.step.near)
            tables.append(band_keys(rows, has_any, self.step.near))
            rows.tofile(signature_file)
        if tables:
            self.keys.append(np.concatenate(tables))

    def finish(self, num_docs: int) -> int:
        """Write the keys; returns how many anchors of repeated spans there are."""
        if self.step is None:
            return 0
        num = num_tables(self.step)
        num_keys = write_keys(self.files, self.number, self.keys, num)
        assert num_keys == num_docs or not num
        checks = np.concatenate([np.empty(0, np.uint64), *self.checks])
        write_array(self.files.path(self.number, "checks.npy"), checks)
        return 0 if self.spans is None else self.spans.finish()


def num_tables(step: DeduplicateStep) -> int:
    return int(step.exact) + int(step.url) + (0 if step.near is None else step.near.bands)


def _url_key(url: str) -> int:
    """Equal for addresses that differ only in case of the host, scheme, `www.`, a last slash or the part after #."""
    if not url:
        return 0
    try:
        parts = urlsplit(url.strip())
    except ValueError:
        return _short_hash(url)
    host = parts.netloc.lower().removeprefix("www.")
    return _short_hash(f"{host}{parts.path.rstrip('/')}?{parts.query}" if host else url)


def _short_hash(text: str) -> int:
    value = int.from_bytes(hashlib.blake2b(text.encode("utf-8", errors="replace"), digest_size=8).digest(), "little")
    return max(value, 1)
