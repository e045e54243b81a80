"""The same steps with datatrove's local executor: Gopher's filter, MinHash in four stages, tokens."""

from __future__ import annotations

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

SOURCE, TOKENIZER, OUT, NUM_WORKERS = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
CONFIG = MinhashConfig(num_buckets=16, hashes_per_bucket=6, n_grams=5)


def run(name: str, steps: list[object], num_tasks: int) -> None:
    LocalPipelineExecutor(  # forked, so that its processor time can be seen from outside
        steps, tasks=num_tasks, workers=NUM_WORKERS, logging_dir=f"{OUT}/log-{name}", start_method="fork"
    ).run()


def main() -> None:
    inputs = Path(OUT) / "in"
    inputs.mkdir(parents=True)
    lines = SOURCE.read_text().splitlines(keepends=True)
    for task in range(NUM_WORKERS):  # a task of its reader takes whole files
        (inputs / f"{task}.jsonl").write_text("".join(lines[task::NUM_WORKERS]))
    clean, signatures = f"{OUT}/clean", f"{OUT}/signatures"
    run("filter", [JsonlReader(str(inputs)), GopherQualityFilter(), JsonlWriter(clean, compression=None)], NUM_WORKERS)
    run("signatures", [JsonlReader(clean), MinhashDedupSignature(signatures, config=CONFIG)], NUM_WORKERS)
    run("buckets", [MinhashDedupBuckets(signatures, f"{OUT}/buckets", config=CONFIG)], 16)
    run("clusters", [MinhashDedupCluster(f"{OUT}/buckets", f"{OUT}/remove", config=CONFIG)], 1)
    tokenizer = DocumentTokenizer(
        f"{OUT}/tokens", tokenizer_name_or_path=TOKENIZER, eos_token="<|endoftext|>", shuffle_documents=False
    )
    run("tokens", [JsonlReader(clean), MinhashDedupFilter(f"{OUT}/remove"), tokenizer], NUM_WORKERS)


if __name__ == "__main__":
    main()
