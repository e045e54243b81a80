"""Made texts and pipelines that several tests of text sets use."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from scalewright.data.text.execution.backend import Backend
from scalewright.data.text.execution.local import LocalBackend
from scalewright.data.text.execution.preparation import prepare_job
from scalewright.data.text.execution.run import run_job

COMMON = ("the", "of", "and", "to", "that", "with", "have", "be", "in", "is")


def made_text(seed: int, *, num_words: int = 120) -> str:
    """Sentences of made words, which pass Gopher's rules of quality."""
    rng = random.Random(seed)
    words = [
        rng.choice(COMMON) if at % 3 == 0 else f"{rng.choice('bcdfgklm')}a{rng.randrange(10**4)}x"
        for at in range(num_words)
    ]
    return ". ".join(" ".join(words[at : at + 12]) for at in range(0, num_words, 12)) + "."


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_pipeline(folder: Path, *tables: str, paths: str = "in.jsonl", write: str = 'format = "jsonl"') -> Path:
    path = folder / "pipeline.toml"
    head = ['schema = "scalewright.data-pipeline/1"', "seed = 3", "[read]", f'paths = ["{paths}"]']
    body = [*head, *tables, "[write]", write]
    path.write_text("\n".join(body) + "\n", encoding="utf-8")
    return path


def run_pipeline(path: Path, out: Path, *, num_workers: int = 1, backend: Backend | None = None) -> dict[str, Any]:
    used = backend or LocalBackend(num_workers)
    try:
        return run_job(prepare_job(path, out=out), used)
    finally:
        used.close()


def written_rows(out: Path) -> list[dict[str, Any]]:
    """The documents of a result in JSON lines, in their order."""
    import pyarrow as pa

    rows = []
    for path in sorted(out.glob("shard-*.jsonl.zst")):
        with pa.OSFile(str(path)) as file, pa.CompressedInputStream(file, "zstd") as stream:
            rows += [json.loads(line) for line in stream.read().decode().splitlines()]
    return rows


def train_small_tokenizer(folder: Path) -> Path:
    """A byte-level tokenizer of 300 tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator([made_text(number) for number in range(5)], trainer)
    folder.mkdir(exist_ok=True)
    inner.save(str(folder / "tokenizer.json"))
    return folder
