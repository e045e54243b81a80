"""The same steps with datatrove's local executor: Gopher's filter, MinHash in four stages, tokens."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import (
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.filters import GopherQualityFilter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer
from datatrove.pipeline.writers import JsonlWriter
from datatrove.utils.hashing import HashConfig

SOURCE, TOKENIZER, OUT, NUM_WORKERS = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
CONFIG = MinhashConfig(num_buckets=16, hashes_per_bucket=6, n_grams=5, hash_config=HashConfig(precision=32))
"""As ours: 16 bands of 6 hashes of 32 bits over 5-grams of words."""


LEAST_ALPHABETIC = 0.5
"""Of words with a letter. Its words have punctuation split off, so that Gopher's 0.8 drops nearly all of a corpus with
source code; 0.5 keeps about as many documents as 0.8 does of words between spaces."""


def run(name: str, steps: list[object], num_tasks: int) -> None:
    LocalPipelineExecutor(  # forked, so that its processor time can be seen from outside
        steps, tasks=num_tasks, workers=NUM_WORKERS, logging_dir=f"{OUT}/log-{name}", start_method="fork"
    ).run()


def main() -> None:
    """SOURCE is a folder with a file for each worker: a task of its reader takes whole files."""
    quality = GopherQualityFilter(max_non_alpha_words_ratio=LEAST_ALPHABETIC)
    clean, signatures = f"{OUT}/clean", f"{OUT}/signatures"
    run("filter", [JsonlReader(str(SOURCE)), quality, JsonlWriter(clean, compression=None)], NUM_WORKERS)
    run("signatures", [JsonlReader(clean), MinhashDedupSignature(signatures, config=CONFIG)], NUM_WORKERS)
    run("buckets", [MinhashDedupBuckets(signatures, f"{OUT}/buckets", config=CONFIG)], 16)
    run("clusters", [MinhashDedupCluster(f"{OUT}/buckets", f"{OUT}/remove", config=CONFIG)], 1)
    tokenizer = DocumentTokenizer(
        f"{OUT}/tokens", tokenizer_name_or_path=TOKENIZER, eos_token="<|endoftext|>", shuffle_documents=False
    )
    run("tokens", [JsonlReader(clean), MinhashDedupFilter(f"{OUT}/remove"), tokenizer], NUM_WORKERS)
    num_bytes = {
        end: sum(one.stat().st_size for one in Path(OUT, "tokens").rglob(f"*{end}")) for end in (".ds", ".index")
    }
    print(json.dumps({"num_documents": num_bytes[".index"] // 8, "num_tokens": num_bytes[".ds"] // 2}))


if __name__ == "__main__":
    main()
