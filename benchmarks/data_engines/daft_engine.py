"""The same steps with Daft: read, filter by words, native MinHash, tokenise in a batch function, write Parquet."""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import Any

import daft
from daft import col

os.environ["TOKENIZERS_PARALLELISM"] = "false"
SOURCE, TOKENIZER, OUT = sys.argv[1:4]


@cache
def tokenizer() -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(TOKENIZER)


@daft.func.batch(return_dtype=daft.DataType.list(daft.DataType.uint32()))
def tokens(texts: Any) -> list[list[int]]:
    return [one.ids for one in tokenizer().encode_batch_fast(texts.to_pylist(), add_special_tokens=False)]


frame = daft.read_json(SOURCE).with_column("num", col("text").regexp_count(r"\S+"))
frame = frame.where((col("num") >= 50) & (col("num") <= 100_000))
frame = frame.with_column("signature", col("text").minhash(num_hashes=96, ngram_size=5, seed=1))
frame.with_column("ids", tokens(col("text"))).exclude("text").write_parquet(OUT)
