"""The second task of a chunk: leave out duplicates and contaminated texts, tokenise, and sort by shard and place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalewright import units
from scalewright.data.text.arrow_arrays import bytes_array, number_array, text_array
from scalewright.data.text.cleaning.text_view import Hashes, Ints, mixed
from scalewright.data.text.duplicates.key_tables import DropCodes
from scalewright.data.text.duplicates.span_cuts import ChunkCuts
from scalewright.data.text.duplicates.tasks import CLEAN, CODES, kinds_of, offsets_of
from scalewright.data.text.execution.job import DataJob, read_job
from scalewright.data.text.execution.tally import KEPT, Tally
from scalewright.data.text.execution.texts import TextBatch, read_batches
from scalewright.data.text.execution.work_files import TaskFiles, mapped_array, read_array, whole_file, write_array
from scalewright.data.text.pipeline_file import TOKEN_FORMATS, PipelineFile
from scalewright.data.text.pyarrow_module import pyarrow
from scalewright.data.text.tokens.contamination import shared_ngrams
from scalewright.data.text.tokens.text_tokenizer import open_text_tokenizer

FINISH = "finish"
DEDUPLICATE, CUT_SPANS = "deduplicate", "cut repeated spans"
DECONTAMINATE, TOKENISE = "decontaminate", "tokenise"
PIECE_BYTES = 48 * units.MIB
LENGTH_EDGES = tuple(2**power for power in range(4, 24))
"""Tokens at which the bins of the histogram of lengths begin."""
DUPLICATE_WORDS = {"exact": "equal text", "url": "same URL", "near": "near duplicate"}


class _Pieces:
    """Collects documents and writes them in pieces, sorted by shard, then by place in the shard."""

    def __init__(self, job: DataJob, files: TaskFiles, number: int, num_shards: int, num_documents: int) -> None:
        self.job, self.files, self.number = job, files, number
        self.num_shards, self.num_documents = num_shards, num_documents
        self.num_pieces = 0
        self._clear()

    def _clear(self) -> None:
        self.indices: list[int] = []
        self.texts: list[bytes] = []
        self.urls: list[str] = []
        self.tokens: list[NDArray[Any]] = []
        self.num_bytes = 0

    def add(self, index: int, text: bytes, url: str, tokens: NDArray[Any] | None) -> None:
        self.indices.append(index)
        self.num_bytes += len(text)
        if tokens is not None:
            self.tokens.append(tokens)
        if self.job.pipeline.write.format not in TOKEN_FORMATS:
            self.texts.append(text)
            self.urls.append(url)
        if self.num_bytes >= PIECE_BYTES:
            self.flush()

    def flush(self) -> None:
        if not self.indices:
            return
        indices = np.array(self.indices, np.int64)
        shards, places = order_keys(self.job.pipeline, indices, self.num_shards, self.num_documents)
        order = np.lexsort((indices, places, shards))
        pa: Any = pyarrow()
        columns: dict[str, Any] = {"index": number_array(indices[order]), "place": number_array(places[order])}
        if self.texts:
            columns["text"] = bytes_array([self.texts[one] for one in order])
            columns["url"] = text_array([self.urls[one] for one in order])
        if self.tokens:
            ends = np.cumsum([0, *(len(self.tokens[one]) for one in order)])
            joined = np.concatenate([self.tokens[one] for one in order])
            columns["tokens"] = pa.LargeListArray.from_arrays(number_array(ends), number_array(joined))
        batch = pa.record_batch(list(columns.values()), names=list(columns))
        path = self.files.path(self.number, f"{self.num_pieces:04d}.arrow")
        with whole_file(path) as hidden, pa.ipc.new_file(str(hidden), batch.schema) as writer:
            writer.write_batch(batch)
        edges = np.searchsorted(shards[order], np.arange(self.num_shards + 1))
        write_array(self.files.path(self.number, f"{self.num_pieces:04d}.edges.npy"), edges.astype(np.int64))
        self.num_pieces += 1
        self._clear()


def order_keys(pipeline: PipelineFile, indices: Ints, num_shards: int, num_documents: int) -> tuple[Ints, Hashes]:
    """The shard of each document and its place there. Only the seed and the document's number decide."""
    if pipeline.shuffle is None or not pipeline.shuffle.documents:
        shards = indices * num_shards // max(num_documents, 1)
        return shards, indices.astype(np.uint64)
    seeded = mixed(np.array([pipeline.seed], np.uint64) + np.uint64(0x9E3779B97F4A7C15))[0]
    places = mixed(mixed(indices.astype(np.uint64) + np.uint64(1)) ^ seeded)
    return ((places >> np.uint64(32)) * np.uint64(num_shards) >> np.uint64(32)).astype(np.int64), places


def finish_chunk(work: Path, number: int, *, num_shards: int) -> dict[str, Any]:
    """Write what is left of a chunk in pieces for the shards; returns what was counted."""
    job, files = read_job(work), TaskFiles(work, FINISH)
    offsets, tally = offsets_of(work), Tally(job.pipeline.num_examples)
    kinds = kinds_of(job.pipeline.deduplicate)
    codes = DropCodes(work / f"drops-{kinds[-1]}.npy", offsets).of_chunk(number) if kinds else None
    step = job.pipeline.deduplicate
    cuts = ChunkCuts(work, number) if step is not None and step.spans else None
    pieces = _Pieces(job, files, number, num_shards, int(offsets[-1]))
    lengths = np.zeros(len(LENGTH_EDGES) + 1, np.int64)
    num_tokens = 0
    for batch in read_batches(TaskFiles(work, CLEAN).path(number, "arrow")):
        rows = list(range(len(batch.texts)))
        if codes is not None:
            rows = _without_duplicates(batch, codes, tally)
        if cuts is not None:
            rows = _without_spans(batch, rows, cuts, tally)
        if job.pipeline.decontaminate is not None:
            rows = _without_contaminated(work, job, batch, rows, tally)
        tokens = _tokenised(job, batch, rows, tally)
        for at, row in enumerate(rows):
            one = None if tokens is None else tokens[at]
            if one is not None:
                num_tokens += len(one)
                lengths[np.searchsorted(LENGTH_EDGES, len(one), side="right")] += 1
            text = batch.texts[row]
            pieces.add(int(offsets[number]) + batch.first_row + row, text, batch.urls[row], one)
            _example(tally, "finish", KEPT, batch, row, "")
    pieces.flush()
    return {
        "num_pieces": pieces.num_pieces, "num_tokens": num_tokens, "lengths": lengths.tolist(),
        "steps": tally.to_json(),
    }  # fmt: skip


def _example(tally: Tally, step: str, reason: str, batch: TextBatch, row: int, why: str) -> None:
    text = batch.texts[row][:2000].decode("utf-8", errors="replace")
    origin, url = batch.origins[row], batch.urls[row]
    if reason == KEPT:
        tally.example(step, reason, text=text, origin=origin, url=url, why=why)
    else:
        tally.drop(step, reason, text=text, origin=origin, url=url, why=why)


def _without_duplicates(batch: TextBatch, codes: NDArray[np.uint8], tally: Tally) -> list[int]:
    with tally.timed(DEDUPLICATE) as step:
        own = codes[batch.first_row : batch.first_row + len(batch.texts)]
        step.docs_in += len(own)
        step.bytes_in += sum(map(len, batch.texts))
        names = {code: DUPLICATE_WORDS[kind] for kind, code in CODES.items()}
        for row in np.flatnonzero(own):
            _example(tally, DEDUPLICATE, names[int(own[row])], batch, int(row), "an earlier document stays")
        rows = [int(row) for row in np.flatnonzero(own == 0)]
        step.docs_out += len(rows)
        step.bytes_out += sum(len(batch.texts[row]) for row in rows)
    return rows


def _without_spans(batch: TextBatch, rows: list[int], cuts: ChunkCuts, tally: Tally) -> list[int]:
    """Cut repeated runs of words from the texts of the batch; documents of which nothing is left go."""
    with tally.timed(CUT_SPANS) as step:
        kept = []
        for row in rows:
            before = batch.texts[row]
            text = cuts.applied(batch.first_row + row, before)
            step.docs_in += 1
            step.bytes_in += len(before)
            if text.strip():
                batch.texts[row] = text
                kept.append(row)
                step.docs_out += 1
                step.bytes_out += len(text)
            else:
                _example(tally, CUT_SPANS, "only repeated spans", batch, row, "earlier documents have all of it")
    return kept


def _without_contaminated(work: Path, job: DataJob, batch: TextBatch, rows: list[int], tally: Tally) -> list[int]:
    assert job.pipeline.decontaminate is not None
    num = job.pipeline.decontaminate.ngram
    with tally.timed(DECONTAMINATE) as step:
        texts = [batch.texts[row] for row in rows]
        step.docs_in += len(rows)
        step.bytes_in += sum(map(len, texts))
        shared: list[int] = shared_ngrams(texts, mapped_array(work / "benchmarks.npy"), num).tolist() if texts else []
        kept = []
        for row, count in zip(rows, shared, strict=True):
            if count:
                why = f"{count} of its {num}-grams are in a benchmark"
                _example(tally, DECONTAMINATE, f"shares {num} words with a benchmark", batch, row, why)
            else:
                kept.append(row)
        step.docs_out += len(kept)
        step.bytes_out += sum(len(batch.texts[row]) for row in kept)
    return kept


def _tokenised(job: DataJob, batch: TextBatch, rows: list[int], tally: Tally) -> list[NDArray[Any]] | None:
    if job.pipeline.tokenise is None:
        return None
    tokenizer = open_text_tokenizer(job.pipeline.tokenise, job.path)
    with tally.timed(TOKENISE) as step:
        texts = [batch.texts[row].decode("utf-8") for row in rows]
        tokens = tokenizer.tokens(texts)
        step.docs_in += len(rows)
        step.docs_out += len(rows)
        step.bytes_in += sum(len(batch.texts[row]) for row in rows)
        step.bytes_out += sum(one.nbytes for one in tokens)
    return tokens


def read_edges(files: TaskFiles, number: int, piece: int) -> Ints:
    """Where each shard begins in a piece."""
    return np.asarray(read_array(files.path(number, f"{piece:04d}.edges.npy")), np.int64)
