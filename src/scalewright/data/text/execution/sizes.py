"""What a pipeline will take on disk, before anything is written: bytes, files and shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scalewright.data.room import room_at
from scalewright.data.text.execution.job import DataJob
from scalewright.data.text.execution.preparation import WORK_PER_TEXT, expected_text_bytes
from scalewright.data.text.pipeline_file import TOKEN_FORMATS
from scalewright.data.text.tokens.text_tokenizer import SHORT_VOCAB, open_text_tokenizer

BYTES_PER_TOKEN = 3.5
"""Of text: byte-level tokenizers of 32,000 to 128,000 tokens give 3 to 4.5 on English text and on code."""
FILES_PER_TASK = 12
FILES_PER_SHARD = {"megatron": 2}
TEXT_OUT = {"parquet": 0.4, "jsonl": 0.4, "tar": 1.3}
"""Bytes written for a byte of text."""


def pipeline_sizes(job: DataJob) -> dict[str, Any]:
    """Upper estimates: nothing is dropped."""
    pipeline = job.pipeline
    text_bytes = expected_text_bytes(job.files)
    num_shards = pipeline.write.num_shards or max(1, -(-text_bytes // pipeline.write.shard))
    num_tokens, token_bytes = 0, 4
    if pipeline.tokenise is not None:
        num_tokens = int(text_bytes / BYTES_PER_TOKEN)
        token_bytes = 2 if open_text_tokenizer(pipeline.tokenise, job.path).vocab < SHORT_VOCAB else 4
    if pipeline.write.format in TOKEN_FORMATS or pipeline.pack is not None:
        result_bytes = num_tokens * token_bytes
    else:
        result_bytes = int(text_bytes * TEXT_OUT[pipeline.write.format]) + num_tokens * token_bytes
    room = room_at(Path(job.out))
    return {
        "input_bytes": job.input_bytes, "num_input_files": len(job.files), "num_tasks": len(job.chunks),
        "text_bytes": text_bytes, "num_tokens": num_tokens, "num_shards": num_shards, "result_bytes": result_bytes,
        "num_result_files": num_shards * FILES_PER_SHARD.get(pipeline.write.format, 1) + 1,
        "work_bytes": int(text_bytes * WORK_PER_TEXT), "num_work_files": FILES_PER_TASK * len(job.chunks),
        "free_bytes": room.free_bytes, "fits": int(text_bytes * WORK_PER_TEXT) <= room.usable_bytes,
    }  # fmt: skip
