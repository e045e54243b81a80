"""The task of a shard: gather its documents from all chunks, put them in order, pack them and write them."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalewright.data.text.arrow_arrays import number_array, numbers_of
from scalewright.data.text.execution.job import DataJob, read_job
from scalewright.data.text.execution.work_files import TaskFiles
from scalewright.data.text.pipeline_file import TOKEN_FORMATS, PipelineFile
from scalewright.data.text.pyarrow_module import pyarrow
from scalewright.data.text.tokens.finish_task import FINISH, read_edges
from scalewright.data.text.writing.formats import (
    write_json_lines,
    write_megatron,
    write_npy,
    write_parquet,
    write_tar,
)

SHARD = "write"
TOKENS = "tokens"
"""The column of pieces that holds them."""


def shard_name(number: int) -> str:
    return f"shard-{number:05d}"


def write_shard(work: Path, number: int) -> dict[str, Any]:
    """Write one shard to the output folder; returns its files and what they hold."""
    began_s = time.process_time()
    job = read_job(work)
    table = _gathered(work, job, number)
    prefix = Path(job.out) / shard_name(number)
    if job.pipeline.pack is not None or job.pipeline.write.format in TOKEN_FORMATS:
        body = _write_tokens(job.pipeline, table, number, prefix)
    else:
        body = _write_texts(job.pipeline, table, prefix)
    files = [{"name": path.name, "bytes": path.stat().st_size} for path in body.pop("paths")]
    return {**body, "files": files, "num_documents": table.num_rows, "cpu_s": time.process_time() - began_s}


def _gathered(work: Path, job: DataJob, shard: int) -> Any:
    """The documents of a shard in their order."""
    pa: Any = pyarrow()
    files, parts = TaskFiles(work, FINISH), []
    for chunk in range(len(job.chunks)):
        for piece in range(files.summary(chunk)["num_pieces"]):
            edges = read_edges(files, chunk, piece)
            start, stop = int(edges[shard]), int(edges[shard + 1])
            if start == stop:
                continue
            path = files.path(chunk, f"{piece:04d}.arrow")
            batch = pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
            parts.append(batch.slice(start, stop - start))
    if not parts:
        return pa.table({"index": number_array(np.empty(0, np.int64))})
    index = np.concatenate([numbers_of(part.column("index"), np.int64) for part in parts])
    place = np.concatenate([numbers_of(part.column("place"), np.uint64) for part in parts])
    order = np.lexsort((index, place))
    names = [name for name in parts[0].schema.names if name != TOKENS]
    table = pa.Table.from_batches([part.select(names) for part in parts]).take(number_array(order)).combine_chunks()
    if TOKENS in parts[0].schema.names:
        table = table.append_column(TOKENS, _tokens_in_order([part.column(TOKENS) for part in parts], order))
    return table


def _tokens_in_order(parts: list[Any], order: NDArray[np.int64]) -> Any:
    """The lists of all parts in another order. Arrow's own way makes an index of eight bytes for each token."""
    all_offsets = [numbers_of(part.offsets, np.int64) for part in parts]
    lengths = np.concatenate([np.diff(offsets) for offsets in all_offsets])
    ends = np.concatenate([[0], np.cumsum(lengths[order])])
    places = np.empty(len(order), np.int64)
    places[order] = ends[:-1]
    kind = np.uint16 if parts[0].values.type == pyarrow().uint16() else np.int32
    tokens = np.empty(ends[-1], kind)
    document = 0
    for part, offsets in zip(parts, all_offsets, strict=True):
        values = numbers_of(part.values, kind)
        for start, stop in pairwise(offsets.tolist()):
            tokens[places[document] : places[document] + stop - start] = values[start:stop]
            document += 1
    return pyarrow().LargeListArray.from_arrays(number_array(ends), number_array(tokens))


def _write_tokens(pipeline: PipelineFile, table: Any, number: int, prefix: Path) -> dict[str, Any]:
    if "tokens" not in table.column_names:
        return {"paths": [], "num_sequences": 0, "num_tokens": 0}
    lists = table["tokens"].chunk(0)
    offsets = numbers_of(lists.offsets, np.int64)
    kind = np.uint16 if lists.values.type == pyarrow().uint16() else np.int32
    tokens = numbers_of(lists.values, kind)[offsets[0] : offsets[-1]]
    lengths = np.diff(offsets)
    if pipeline.pack is None:
        paths = write_megatron(prefix, tokens, lengths)
        return {"paths": paths, "num_sequences": len(lengths), "num_tokens": len(tokens)}
    sequence = pipeline.pack.sequence
    num_whole = len(tokens) // sequence
    rows = tokens[: num_whole * sequence].reshape(num_whole, sequence)[_buffer_order(pipeline, number, num_whole)]
    if pipeline.write.format == "npy":
        paths, num_tokens = write_npy(prefix, rows), rows.size
    elif pipeline.write.format == "parquet":
        pa: Any = pyarrow()
        starts = number_array(np.arange(num_whole + 1, dtype=np.int64) * sequence)
        column = pa.LargeListArray.from_arrays(starts, number_array(rows.reshape(-1)))
        paths, num_tokens = write_parquet(prefix, pa.table({"input_ids": column})), rows.size
    else:
        rest = tokens[num_whole * sequence :] if pipeline.pack.keep_rest else tokens[:0]
        sizes = np.array([sequence] * num_whole + ([len(rest)] if len(rest) else []), np.int64)
        paths, num_tokens = (
            write_megatron(prefix, np.concatenate([rows.reshape(-1), rest]), sizes),
            rows.size + len(rest),
        )
        return {"paths": paths, "num_sequences": len(sizes), "num_tokens": num_tokens}
    return {"paths": paths, "num_sequences": num_whole, "num_tokens": num_tokens}


def _buffer_order(pipeline: PipelineFile, shard: int, num: int) -> NDArray[np.int64]:
    """The second shuffle: neighbours that come from one long document are spread within a buffer."""
    order = np.arange(num)
    if pipeline.shuffle is None or not pipeline.shuffle.buffer:
        return order
    generator = np.random.default_rng([pipeline.seed, shard])
    for start in range(0, num, pipeline.shuffle.buffer):
        generator.shuffle(order[start : start + pipeline.shuffle.buffer])
    return order


def _write_texts(pipeline: PipelineFile, table: Any, prefix: Path) -> dict[str, Any]:
    if "text" not in table.column_names:
        return {"paths": [], "num_sequences": 0, "num_tokens": 0}
    pa: Any = pyarrow()
    columns = {"id": table["index"], "text": table["text"].cast(pa.large_utf8()), "url": table["url"]}
    num_tokens = 0
    if "tokens" in table.column_names:
        columns["input_ids"] = table["tokens"]
        num_tokens = len(table["tokens"].chunk(0).flatten())
    texts = pa.table(columns)
    write = {"parquet": write_parquet, "jsonl": write_json_lines, "tar": write_tar}[pipeline.write.format]
    return {"paths": write(prefix, texts), "num_sequences": texts.num_rows, "num_tokens": num_tokens}
