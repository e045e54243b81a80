"""The baseline: a plain multiprocessing script. Filter, MinHash, drop what shares a band, tokenise the rest, write."""

from __future__ import annotations

import json
import os
import sys
import zlib
from collections.abc import Iterator
from multiprocessing import Pool
from pathlib import Path

import numpy as np

os.environ["TOKENIZERS_PARALLELISM"] = "false"
SOURCE, TOKENIZER, OUT, NUM_WORKERS = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
STOP = {"the", "be", "to", "of", "and", "that", "have", "with"}
BANDS, ROWS = 16, 6
RNG = np.random.default_rng(0)
FACTORS = RNG.integers(1, 2**32, BANDS * ROWS, np.uint64) | np.uint64(1)
SHIFTS = RNG.integers(0, 2**32, BANDS * ROWS, np.uint64)
LINES_AT_ONCE = 100
TOKENIZERS = []


def begin() -> None:
    from tokenizers import Tokenizer

    TOKENIZERS.append(Tokenizer.from_file(TOKENIZER))


def is_good(text: str) -> bool:
    """Gopher's rules of quality, written as most people write them."""
    words, lines = text.split(), text.splitlines()
    num = len(words)
    if not 50 <= num <= 100_000 or not 3 <= sum(map(len, words)) / num <= 10:
        return False
    if (text.count("#") + text.count("...")) / num > 0.1:
        return False
    if sum(line.lstrip().startswith(("-", "*", "•")) for line in lines) > 0.9 * len(lines):
        return False
    if sum(line.rstrip().endswith(("...", "…")) for line in lines) > 0.3 * len(lines):
        return False
    if sum(any(c.isalpha() for c in word) for word in words) < 0.8 * num:
        return False
    return len(STOP & set(words)) >= 2


def signature(text: str) -> np.ndarray:
    words = text.lower().split()
    grams = [zlib.crc32(" ".join(words[at : at + 5]).encode()) for at in range(max(1, len(words) - 4))]
    hashes = np.array(grams, np.uint64)[:, None] * FACTORS + SHIFTS
    return (hashes & np.uint64(0xFFFFFFFF)).min(axis=0).astype(np.uint32)


def signed(lines: list[str]) -> list[np.ndarray | None]:
    texts = [json.loads(line)["text"] for line in lines]
    return [signature(text) if is_good(text) else None for text in texts]


def encoded(lines: list[str]) -> list[np.ndarray]:
    texts = [json.loads(line)["text"] for line in lines]
    return [np.array(one.ids, np.uint16) for one in TOKENIZERS[0].encode_batch_fast(texts, add_special_tokens=False)]


def chunks(keeps: list[bool] | None = None) -> Iterator[list[str]]:
    """Lines of the input, those that stay only where that is known."""
    batch: list[str] = []
    with SOURCE.open() as file:
        for number, line in enumerate(file):
            if keeps is None or keeps[number]:
                batch.append(line)
            if len(batch) >= LINES_AT_ONCE:
                yield batch
                batch = []
    if batch:
        yield batch


def main() -> None:
    seen: set[tuple[int, bytes]] = set()
    keeps: list[bool] = []
    with Pool(NUM_WORKERS, begin) as pool, OUT.open("wb") as out:
        for signatures in pool.imap(signed, chunks()):
            for one in signatures:
                keys = [] if one is None else [(at, one[at * ROWS : (at + 1) * ROWS].tobytes()) for at in range(BANDS)]
                keeps.append(bool(keys) and not any(key in seen for key in keys))
                seen.update(keys)
        num_tokens = 0
        for tokens in pool.imap(encoded, chunks(keeps)):
            for ids in tokens:
                ids.tofile(out)
                num_tokens += len(ids)
    print(json.dumps({"num_documents": sum(keeps), "num_tokens": num_tokens}))


if __name__ == "__main__":
    main()
